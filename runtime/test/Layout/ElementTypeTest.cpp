//===- ElementTypeTest.cpp - conversions of scalars -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Layout/ElementType.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace segue;

TEST(ElementType, NamesParseBack) {
  for (ElementType type : allElementTypes)
    EXPECT_EQ(parseElementType(name(type)), type);
  EXPECT_FALSE(parseElementType("f128"));
}

// Every bit pattern of the 16-bit floats survives the way through f32.
TEST(ElementType, SixteenBitFloatsRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    float half = f16ToFloat(uint16_t(bits)), brain = bf16ToFloat(uint16_t(bits));
    if (std::isnan(half))
      EXPECT_TRUE(std::isnan(f16ToFloat(floatToF16(half))));
    else
      EXPECT_EQ(floatToF16(half), bits);
    if (std::isnan(brain))
      EXPECT_TRUE(std::isnan(bf16ToFloat(floatToBf16(brain))));
    else
      EXPECT_EQ(floatToBf16(brain), bits);
  }
}

// The compiler's own f16 is the oracle for rounding, subnormals and overflow.
TEST(ElementType, RoundsToNearestEvenF16) {
  uint32_t state = 12345;
  for (int i = 0; i < 2000000; ++i) {
    state = state * 1664525u + 1013904223u;
    // Exponents around the range of f16, so that every branch is taken.
    uint32_t bits = (state & 0x807fffffu) | ((95u + (state >> 8) % 50u) << 23);
    float value = std::bit_cast<float>(bits);
    ASSERT_EQ(floatToF16(value), std::bit_cast<uint16_t>(_Float16(value))) << "bits " << std::hex << bits;
  }
}

// A tie goes to the even neighbour.
TEST(ElementType, RoundsToNearestEvenBf16) {
  EXPECT_EQ(floatToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(floatToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(floatToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(floatToBf16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
}
