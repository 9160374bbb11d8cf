//===- GroupStorageTest.cpp - the formulas and layouts of group storages --===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Layout/GroupStorage.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Layout/TensorDesc.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

using namespace segue;

// The packing: two codes per byte, the even column low; scale = bf16(absmax / 7).
TEST(GroupStorage, PacksTwoCodesPerByte) {
  std::vector<float> row(64);
  for (size_t i = 0; i < 16; ++i)
    row[i] = float(int(i) - 8);
  row[32] = 14; // the second group: scale 2
  row[33] = -3; // -1.5: to even, -2
  std::vector<std::byte> codes(32);
  std::vector<uint16_t> scales(2);
  EXPECT_EQ(quantizeInt4Row(row, 32, codes, scales), -1);
  EXPECT_EQ(scales[0], floatToBf16(8.0f / 7.0f));
  EXPECT_EQ(scales[1], floatToBf16(2.0f));
  float scale = bf16ToFloat(scales[0]);
  EXPECT_EQ(int(codes[0]) & 15, int(std::nearbyint(-8 / scale)) & 15);
  EXPECT_EQ(int(codes[0]) >> 4, int(std::nearbyint(-7 / scale)) & 15);
  EXPECT_EQ(int(codes[16]), 7 | (-2 & 15) << 4);
  std::vector<float> back(64);
  dequantizeInt4Row(codes, scales, 32, back);
  EXPECT_EQ(back[32], 14.0f);
  EXPECT_EQ(back[33], -4.0f);
  EXPECT_EQ(back[40], 0.0f);
}

// A group of zeros, and one whose scale would be no normal number, is stored as
// zeros with scale 1; a value that is not finite is found and counts as 0.
TEST(GroupStorage, MeetsDegenerateGroups) {
  std::vector<float> row(96);
  row[32] = 1e-39f;
  row[64] = std::numeric_limits<float>::quiet_NaN();
  row[65] = 7;
  std::vector<std::byte> codes(48);
  std::vector<uint16_t> scales(3);
  EXPECT_EQ(quantizeInt4Row(row, 32, codes, scales), 64);
  EXPECT_EQ(scales, std::vector<uint16_t>(3, floatToBf16(1.0f)));
  EXPECT_EQ(int(codes[32]), 7 << 4);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), std::byte(0)), 47);
}

// The number nearest in magnitude to the scale may be -8; nothing is below.
TEST(GroupStorage, UsesAllSixteenCodes) {
  std::vector<float> row(32);
  row[0] = -8;
  row[1] = 7;
  row[2] = -100;
  std::vector<std::byte> codes(16);
  std::vector<uint16_t> scales(1);
  quantizeInt4Row(row, 32, codes, scales, ScaleSearch::Mse);
  for (int i = 0; i < 32; ++i) {
    EXPECT_GE(int4Code(codes.data(), i), -8);
    EXPECT_LE(int4Code(codes.data(), i), 7);
  }
  // 0.85 of absmax / 7 puts -100 at -8.2, which is clamped.
  EXPECT_EQ(int4Code(codes.data(), 2), bf16ToFloat(scales[0]) < 13 ? -8 : -7);
}

static TensorDesc desc(Shape shape, StorageType storage, std::vector<int64_t> strides = {}) {
  return TensorDesc(std::move(shape), ElementType::bf16, Layout{.strides = std::move(strides), .storage = storage});
}

// Rows of whole groups, codes, the gap, then a bf16 per group.
TEST(GroupStorage, SaysWhereItsPartsLie) {
  TensorDesc weight = desc({96, 160}, StorageType::Int4Group64);
  weight.validate();
  EXPECT_EQ(weight.strides(), (std::vector<int64_t>{192, 1}));
  LayoutParts parts = weight.parts();
  EXPECT_EQ(parts.rows, 96);
  EXPECT_EQ(parts.groups, 3);
  EXPECT_EQ(parts.elements, 96u * 96);
  EXPECT_EQ(parts.scales, 96u * 96);
  EXPECT_EQ(parts.bytes, 96u * 96 + 96 * 3 * 2);
  EXPECT_EQ(weight.str(), "bf16[96,160] stored as int4_group64");
  // 3 rows of 32 codes are 48 bytes; scales begin at 64.
  EXPECT_EQ(desc({3, 5}, StorageType::Int4Group32).spanBytes(), 64u + 6);
  EXPECT_EQ(desc({3, 5}, StorageType::Int4Group32, {96, 1}).spanBytes(), 192u + 18);
  EXPECT_EQ(desc({130}, StorageType::Int4Group64).spanBytes(), 128u + 6);
  EXPECT_EQ(desc({}, StorageType::Int4Group64).spanBytes(), 64u + 2);
  EXPECT_EQ(desc({0, 4}, StorageType::Int4Group64).spanBytes(), 0u);
}

TEST(GroupStorage, ComparesPlacements) {
  Shape shape{4, 60};
  TensorDesc plain = desc(shape, StorageType::Int4Group64), written = desc(shape, StorageType::Int4Group64, {64, 1});
  TensorDesc padded = desc(shape, StorageType::Int4Group64, {128, 1});
  EXPECT_TRUE(satisfies(shape, written.layout, plain.layout, false));
  EXPECT_EQ(written.hash(), plain.hash());
  EXPECT_FALSE(satisfies(shape, padded.layout, plain.layout, false));
  EXPECT_FALSE(satisfies(shape, desc(shape, StorageType::Int4Group32).layout, plain.layout, false));
  // A single row that is padded has more scales.
  EXPECT_FALSE(satisfies(Shape{1, 60}, padded.layout, plain.layout, false));
  EXPECT_FALSE(plain.isDense());
}

TEST(GroupStorage, RefusesWhatHasNoPlace) {
  auto refusal = [](TensorDesc wrong) -> std::string {
    try {
      wrong.validate();
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "";
  };
  auto expect = [&](const TensorDesc &wrong, const char *sentence) {
    EXPECT_NE(refusal(wrong).find(sentence), std::string::npos) << refusal(wrong);
  };
  expect(desc({4, 60}, StorageType::Int4Group64, {96, 1}),
         "rows in int4_group64 storage are whole groups of 64, but stride 0 is 96 for rows of 60");
  expect(desc({4, 100}, StorageType::Int4Group32, {64, 1}), "but stride 0 is 64 for rows of 100");
  expect(desc({4, 60}, StorageType::Int4Group32, {64, 2}), "rows in int4_group32 storage are dense, but stride 1 is 2");
  TensorDesc tiled = desc({4, 64}, StorageType::Int4Group64);
  tiled.layout.tile = {2, 32};
  expect(tiled, "int4_group64 storage has no tiles");
  TensorDesc zeros = desc({4, 64}, StorageType::Int4Group64);
  zeros.layout.zeroPoints = true;
  expect(zeros, "zero points belong to row storages");
  TensorDesc narrow = desc({4, 64}, StorageType::Int4Group64);
  narrow.layout.alignment = 1;
  expect(narrow, "alignment 1 is too small for the bf16 scales of groups; at least 2");
}
