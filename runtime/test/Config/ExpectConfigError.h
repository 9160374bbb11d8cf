//===- ExpectConfigError.h - a config must be refused -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_CONFIG_EXPECTCONFIGERROR_H
#define SEGUE_RUNTIME_TEST_CONFIG_EXPECTCONFIGERROR_H

#include "segue/runtime/Config/ConfigError.h"
#include <gtest/gtest.h>

/// `statement` throws a ConfigError about `expectedKey` with this hint, whose
/// message contains `part`.
#define EXPECT_CONFIG_ERROR(statement, expectedKey, expectedHint, part)                                                \
  try {                                                                                                                \
    (void)(statement);                                                                                                 \
    ADD_FAILURE() << #statement " threw nothing";                                                                      \
  } catch (const segue::ConfigError &error) {                                                                          \
    EXPECT_EQ(error.code(), segue::ErrorCode::ConfigInvalid);                                                          \
    EXPECT_EQ(error.key(), expectedKey) << error.what();                                                               \
    EXPECT_EQ(error.hint(), expectedHint) << error.what();                                                             \
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();                                \
  }

#endif // SEGUE_RUNTIME_TEST_CONFIG_EXPECTCONFIGERROR_H
