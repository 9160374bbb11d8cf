// ===- Precompiled.cpp - what a precompiled header is made for ---------------------=== //
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// ===------------------------------------------------------------------------=== //
//
// A precompiled header belongs to a target, and a target has a source.
