//===- ByteQuantityTest.cpp -----------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/ByteQuantity.h"
#include <gtest/gtest.h>

using namespace segue;

TEST(ByteQuantity, UnitsAndDecimals) {
  const std::pair<std::string_view, uint64_t> cases[] = {
      {"0", 0},
      {"536870912", 512 << 20},
      {"7B", 7},
      {"512MiB", 512 << 20},
      {"512mib", 512 << 20},
      {" 1.5 GB ", 1'500'000'000},
      {"64MB", 64'000'000},
      {"2KB", 2000},
      {"2.5KiB", 2560},
      {"1.3GiB", 1'395'864'371}, // 1395864371.2
      {"0.5TiB", uint64_t(1) << 39},
      {"3TB", 3'000'000'000'000},
      {"8192TiB", mostBytesOfQuantity},
      {"9007199254740992", mostBytesOfQuantity},
  };
  for (auto [text, bytes] : cases)
    EXPECT_EQ(parseByteQuantity(text), bytes) << text;
}

TEST(ByteQuantity, WhatIsNone) {
  for (std::string_view text : {"", " ", "MiB", "-1", "+1", "1e3", "inf", "nan", "0x10", "0.3B", "1GBit", "1 Mi B", "1,5GB",
                                "8193TiB", "9007199254740994", "99999999999999999999999999", "1\n"})
    EXPECT_EQ(parseByteQuantity(text), std::nullopt) << text;
}
