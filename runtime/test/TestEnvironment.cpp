//===- TestEnvironment.cpp - what every program of tests begins with ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tests make their own files, so that the machine code in them may run, and the
// compilers that they start sign with a key of this build, not of its user.
//
//===----------------------------------------------------------------------===//

#include <cstdlib>

static const bool isPrepared =
    ::setenv("SEGUE_ALLOW_NATIVE", "1", 0) == 0 && ::setenv("XDG_DATA_HOME", SEGUE_TEST_DATA_HOME, 1) == 0;
