//===- Units.h - what figures are given in ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_UNITS_H
#define SEGUE_TOOLS_SEGUERUN_UNITS_H

namespace segue::tool {

/// Of keys and fields that end in `mb`.
inline constexpr double bytesPerMiB = 1048576;

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_UNITS_H
