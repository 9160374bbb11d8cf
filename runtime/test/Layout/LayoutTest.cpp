//===- LayoutTest.cpp - the arithmetic of layouts -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Error.h"
#include "segue/runtime/Layout/TensorDesc.h"
#include <gtest/gtest.h>

using namespace segue;

static Layout layout(Space space, std::vector<int64_t> strides = {}, uint32_t alignment = 64,
                     std::vector<uint32_t> tile = {}) {
  return Layout{.space = space, .strides = std::move(strides), .tile = std::move(tile), .alignment = alignment};
}

// The table of the stitching contract, row by row.
TEST(Layout, EqualityTable) {
  Space dram = Space::DeviceDram;
  Shape odd{8, 1, 4}, square{64, 64}, vector{4};
  // The stride of an extent-1 dimension is ignored: elided.
  EXPECT_TRUE(satisfies(odd, layout(dram, {4, 99, 1}), layout(dram, {4, 4, 1}), false));
  // A greater alignment satisfies a smaller one, not the reverse.
  EXPECT_TRUE(satisfies(square, layout(dram, {}, 512), layout(dram, {}, 64), false));
  EXPECT_FALSE(satisfies(square, layout(dram, {}, 64), layout(dram, {}, 512), false));
  // Row-major is not tiled.
  EXPECT_FALSE(satisfies(square, layout(dram), layout(dram, {}, 64, {32, 32}), false));
  // Host is not pinned host, except where memory is unified and alignment fits.
  EXPECT_FALSE(satisfies(vector, layout(Space::Host), layout(Space::HostPinned), false));
  EXPECT_TRUE(satisfies(vector, layout(Space::Host), layout(Space::HostPinned), true));
  EXPECT_FALSE(satisfies(vector, layout(Space::Host, {}, 16), layout(Space::HostPinned, {}, 64), true));
}

TEST(Layout, OtherRulesOfEquality) {
  Space dram = Space::DeviceDram;
  Shape shape{2, 3};
  // Dense strides may be written or left out; a tile of ones is no tile.
  EXPECT_TRUE(satisfies(shape, layout(dram, {3, 1}), layout(dram), false));
  EXPECT_TRUE(satisfies(shape, layout(dram, {}, 64, {1, 1}), layout(dram), false));
  // Without elements any layout of the same space will do.
  EXPECT_TRUE(satisfies(Shape{0, 3}, layout(dram, {99, 7}, 16, {2}), layout(dram), false));
  EXPECT_FALSE(satisfies(Shape{0, 3}, layout(Space::Host), layout(dram), false));
  // L1 is never the same as anything else.
  EXPECT_FALSE(satisfies(shape, layout(Space::DeviceL1), layout(dram), true));
  // A transposed matrix is not row-major.
  EXPECT_FALSE(satisfies(shape, layout(dram, {1, 2}), layout(dram), false));
  // Another storage is another layout.
  Layout rows = layout(dram);
  rows.storage = StorageType::Int8Row;
  EXPECT_FALSE(satisfies(shape, layout(dram), rows, false));
}

// Layouts that are equal by the rules hash alike; others do not.
TEST(Layout, HashFollowsCanonicalForm) {
  auto hash = [](Shape shape, std::vector<int64_t> strides) {
    return TensorDesc(shape, ElementType::f32, Layout{.strides = strides}).hash();
  };
  EXPECT_EQ(hash({8, 1, 4}, {4, 99, 1}), hash({8, 1, 4}, {}));
  EXPECT_EQ(hash({8, 1, 4}, {1, 99, 8}), hash({8, 1, 4}, {1, 5, 8}));
  EXPECT_NE(hash({2, 3}, {1, 2}), hash({2, 3}, {}));
  EXPECT_NE(hash({2, 3}, {}), hash({3, 2}, {}));
  EXPECT_NE(TensorDesc({2}, ElementType::i32).hash(), TensorDesc({2}, ElementType::f32).hash());
}

TEST(Layout, SpanCountsFromFirstToLast) {
  std::vector<int64_t> shape{3, 4}, padded{10, 2}, repeated{0, 1}, empty{0, 4};
  EXPECT_EQ(checkedSpanBytes(shape, padded, 4), (2 * 10 + 3 * 2 + 1) * 4u);
  EXPECT_EQ(checkedSpanBytes(shape, repeated, 4), 16u);
  EXPECT_EQ(checkedSpanBytes(empty, padded, 4), 0u);
}

// No number from a file may wrap around.
TEST(Layout, OverflowIsFound) {
  int64_t huge = int64_t(1) << 40;
  std::vector<int64_t> shape{huge, huge}, strides{huge, 1}, negative{-1, 4}, one{1, 1};
  EXPECT_FALSE(checkedElementCount(shape));
  EXPECT_FALSE(checkedElementCount(negative));
  EXPECT_FALSE(checkedSpanBytes(shape, strides, 4));
  EXPECT_FALSE(checkedSpanBytes(one, negative, 4));
  EXPECT_FALSE(checkedAdd(UINT64_MAX, 1));
  EXPECT_FALSE(rangeFits(UINT64_MAX, 2, 100));
  EXPECT_FALSE(rangeFits(99, 2, 100));
  EXPECT_TRUE(rangeFits(98, 2, 100));
  EXPECT_TRUE(rangeFits(100, 0, 100));
}

TEST(Layout, InjectiveMeansNoTwoIndicesMeet) {
  EXPECT_TRUE(isInjective(Shape{2, 3}, std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(isInjective(Shape{2, 3}, std::vector<int64_t>{0, 1}));
  EXPECT_FALSE(isInjective(Shape{2, 3}, std::vector<int64_t>{2, 1}));
  EXPECT_TRUE(isInjective(Shape{1, 3}, std::vector<int64_t>{0, 1}));
}

TEST(TensorDesc, ValidateNamesTheRule) {
  auto message = [](const TensorDesc &desc) -> std::string {
    try {
      desc.validate();
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(TensorDesc({2, 3}, ElementType::f32)), "");
  EXPECT_NE(message(TensorDesc({-1}, ElementType::f32)).find("must not be negative"), std::string::npos);
  EXPECT_NE(message(TensorDesc({2, 3}, ElementType::f32, Layout{.strides = {1}})).find("number of dimensions"),
            std::string::npos);
  EXPECT_NE(message(TensorDesc({2}, ElementType::f32, Layout{.alignment = 48})).find("power of two"),
            std::string::npos);
  EXPECT_NE(message(TensorDesc({2}, ElementType::f32, Layout{.tile = {2, 2}})).find("more dimensions"),
            std::string::npos);
  EXPECT_NE(message(TensorDesc({2}, ElementType::f32, Layout{.offset = 4})).find("multiple of the alignment"),
            std::string::npos);
}

TEST(TensorDesc, PrintsAsInTheManual) {
  EXPECT_EQ(TensorDesc({8, 128}, ElementType::bf16).str(), "bf16[8,128]");
  EXPECT_EQ(TensorDesc({}, ElementType::f32).str(), "f32[]");
  EXPECT_EQ(TensorDesc({2, 8}, ElementType::f32, Layout{.space = Space::Host, .strides = {1, 2}}).str(),
            "f32[2,8] strides [1,2] in host");
}
