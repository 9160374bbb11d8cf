//===- ExpectError.h - a call must throw this error -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SESSION_EXPECTERROR_H
#define SEGUE_RUNTIME_TEST_SESSION_EXPECTERROR_H

#include "segue/runtime/Error.h"
#include <gtest/gtest.h>

/// `statement` throws a segue::Error of ErrorCode::`expected` whose message
/// contains `part`.
#define EXPECT_ERROR(statement, expected, part)                                                                        \
  try {                                                                                                                \
    (void)(statement);                                                                                                 \
    ADD_FAILURE() << #statement " threw nothing";                                                                      \
  } catch (const segue::Error &error) {                                                                                \
    EXPECT_EQ(segue::errorCodeName(error.code()), segue::errorCodeName(segue::ErrorCode::expected)) << error.what();   \
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();                                \
  }

#endif // SEGUE_RUNTIME_TEST_SESSION_EXPECTERROR_H
