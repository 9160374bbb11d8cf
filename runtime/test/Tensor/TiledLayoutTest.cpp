//===- TiledLayoutTest.cpp - tiles and row storages in the arithmetic -----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Error.h"
#include "segue/runtime/Layout/TensorDesc.h"
#include <gtest/gtest.h>
#include <random>
#include <set>

using namespace segue;

static Layout tiled(std::vector<uint32_t> tile, std::vector<int64_t> strides = {}) {
  return Layout{.strides = std::move(strides), .tile = std::move(tile)};
}

static Layout rows(StorageType storage, bool zeroPoints = false) {
  return Layout{.storage = storage, .zeroPoints = zeroPoints};
}

// The picture at the head of Layout.h.
TEST(TiledLayout, AddressesOfTheManual) {
  Shape shape{4, 6};
  Layout layout = tiled({2, 4});
  EXPECT_EQ(effectiveStrides(shape, layout), (std::vector<int64_t>{16, 8}));
  EXPECT_EQ(paddedExtents(shape, layout), (Shape{4, 8}));
  int64_t expected[4][6] = {
      {0, 1, 2, 3, 8, 9}, {4, 5, 6, 7, 12, 13}, {16, 17, 18, 19, 24, 25}, {20, 21, 22, 23, 28, 29}};
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 6; ++j)
      EXPECT_EQ(elementOffset(shape, layout, std::vector<int64_t>{i, j}), expected[i][j]);
  EXPECT_EQ(TensorDesc(shape, ElementType::bf16, layout).spanBytes(), 4 * 8 * 2u);
  // A trailing tile leaves the outer dimension as it was.
  EXPECT_EQ(effectiveStrides(Shape{3, 5, 6}, layout), (std::vector<int64_t>{48, 16, 8}));
  EXPECT_EQ(TensorDesc({3, 5, 6}, ElementType::i8, layout).spanBytes(), 3 * 6 * 8u);
}

TEST(TiledLayout, Canonical) {
  Shape shape{64, 96};
  auto canonical = [&](Layout layout) { return canonicalize(shape, layout); };
  // Ones, whole or leading, step as no tile does.
  EXPECT_EQ(canonical(tiled({1, 1})), Layout{});
  EXPECT_EQ(canonicalize(Shape{64, 95}, tiled({1, 32})), tiled({32}));
  // Dense strides of tiles may be written or left out.
  EXPECT_EQ(canonical(tiled({32, 32}, {3 * 1024, 1024})), tiled({32, 32}));
  EXPECT_EQ(canonical(tiled({32, 32}, {1024, 2 * 1024})), tiled({32}, {32, 2 * 1024}));
  EXPECT_EQ(canonical(tiled({32, 32}, {4096, 1024})), tiled({32, 32}, {4096, 1024}));
  // A tile that changes no address: of one dimension, or as wide as the rows.
  EXPECT_EQ(canonical(tiled({32})), Layout{});
  EXPECT_EQ(canonical(tiled({16, 96})), Layout{});
  // But a ragged one has padding, and a tile of the same elements elsewhere.
  EXPECT_EQ(canonicalize(Shape{64, 95}, tiled({16, 96})).tile.size(), 1u);
  EXPECT_EQ(canonicalize(Shape{60}, tiled({32})), tiled({32}));
  EXPECT_EQ(canonical(tiled({96, 32})).tile.size(), 2u);
  // The stride of a dimension of a single tile is irrelevant.
  EXPECT_EQ(canonicalize(Shape{20, 60}, tiled({32, 32}, {77777, 1024})), tiled({32, 32}));
  // Without elements nothing but the space is left.
  EXPECT_EQ(canonicalize(Shape{0, 6}, Layout{.tile = {4}, .storage = StorageType::Int8Row, .zeroPoints = true}),
            Layout{});
}

TEST(TiledLayout, Satisfies) {
  Shape shape{64, 64};
  EXPECT_TRUE(satisfies(shape, tiled({32, 32}), tiled({32, 32}, {2048, 1024}), false));
  EXPECT_FALSE(satisfies(shape, tiled({32, 32}), tiled({16, 32}), false));
  EXPECT_FALSE(satisfies(shape, tiled({32, 32}), Layout{}, false));
  EXPECT_TRUE(satisfies(shape, rows(StorageType::Int8Row), rows(StorageType::Int8Row), false));
  EXPECT_FALSE(satisfies(shape, rows(StorageType::Int8Row), rows(StorageType::Fp8E4M3Row), false));
  EXPECT_FALSE(satisfies(shape, rows(StorageType::Int8Row), rows(StorageType::Int8Row, true), false));
  EXPECT_FALSE(satisfies(shape, rows(StorageType::Int8Row, true), rows(StorageType::Int8Row), false));
}

// Element bytes, then scales from the next multiple of 64, then zero points.
TEST(RowLayout, Parts) {
  LayoutParts parts = TensorDesc({3, 5}, ElementType::f32, rows(StorageType::Int8Row, true)).parts();
  EXPECT_EQ(parts.elements, 15u);
  EXPECT_EQ(parts.rows, 3);
  EXPECT_EQ(parts.scales, 64u);
  EXPECT_EQ(parts.zeroPoints, 76u);
  EXPECT_EQ(parts.bytes, 88u);
  // R3 of the stitching contract: 3072 x 3072 is 9,437,184 + 12,288 (+ 12,288).
  EXPECT_EQ(TensorDesc({3072, 3072}, ElementType::bf16, rows(StorageType::Int8Row)).spanBytes(), 9449472u);
  EXPECT_EQ(TensorDesc({3072, 3072}, ElementType::bf16, rows(StorageType::Int8Row, true)).spanBytes(), 9461760u);
  // Rank 0 and 1 are one row; without elements there is nothing.
  EXPECT_EQ(TensorDesc({}, ElementType::f32, rows(StorageType::Int8Row)).spanBytes(), 68u);
  EXPECT_EQ(TensorDesc({70}, ElementType::f32, rows(StorageType::Int8Row)).spanBytes(), 132u);
  EXPECT_EQ(TensorDesc({5, 0}, ElementType::f32, rows(StorageType::Int8Row)).spanBytes(), 0u);
  EXPECT_EQ(rowCount(Shape{7, 1}), 7);
  EXPECT_EQ(rowCount(Shape{7}), 1);
  EXPECT_EQ(rowCount(Shape{7, 0}), 0);
  // Padding of tiles counts.
  Layout both = rows(StorageType::Fp8E5M2Row);
  both.tile = {4, 64};
  EXPECT_EQ(TensorDesc({3, 5}, ElementType::f32, both).spanBytes(), 4 * 64 + 3 * 4u);
}

TEST(TiledLayout, InjectiveCountsThePadding) {
  Shape shape{4, 6};
  EXPECT_TRUE(isInjective(shape, tiled({2, 4})));
  EXPECT_TRUE(isInjective(shape, tiled({2, 4}, {8, 16})));
  EXPECT_FALSE(isInjective(shape, tiled({2, 4}, {16, 7})));
  EXPECT_FALSE(isInjective(shape, tiled({2, 4}, {15, 8})));
  EXPECT_FALSE(isInjective(shape, tiled({2, 4}, {0, 8})));
  EXPECT_TRUE(isInjective(Shape{2, 6}, tiled({2, 4}, {0, 8})));
}

TEST(TiledLayout, DenseMeansRowMajorElements) {
  auto dense = [](Shape shape, Layout layout) { return TensorDesc(shape, ElementType::f32, layout).isDense(); };
  EXPECT_TRUE(dense({64}, tiled({32})));
  EXPECT_FALSE(dense({60}, tiled({32})));
  EXPECT_FALSE(dense({64, 64}, tiled({32, 32})));
  EXPECT_FALSE(dense({64, 64}, rows(StorageType::Int8Row)));
  EXPECT_TRUE(dense({0, 64}, tiled({32, 32})));
}

TEST(TiledLayout, HashFollowsCanonicalForm) {
  auto hash = [](Layout layout) { return TensorDesc({64, 96}, ElementType::f32, layout).hash(); };
  EXPECT_EQ(hash(tiled({32, 32}, {3072, 1024})), hash(tiled({32, 32})));
  EXPECT_EQ(hash(tiled({16, 96})), hash({}));
  std::set<uint64_t> hashes{hash({}),
                            hash(tiled({32, 32})),
                            hash(tiled({32, 16})),
                            hash(rows(StorageType::Int8Row)),
                            hash(rows(StorageType::Int8Row, true)),
                            hash(rows(StorageType::Fp8E4M3Row)),
                            hash(Layout{.tile = {32, 32}, .storage = StorageType::Int8Row})};
  EXPECT_EQ(hashes.size(), 7u);
}

TEST(TiledLayout, ValidateNamesTheRule) {
  auto message = [](const TensorDesc &desc) -> std::string {
    try {
      desc.validate();
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "";
  };
  auto expect = [&](Shape shape, Layout layout, const char *text) {
    std::string what = message(TensorDesc(std::move(shape), ElementType::f32, std::move(layout)));
    EXPECT_NE(what.find(text), std::string::npos) << what;
  };
  EXPECT_EQ(message(TensorDesc({3, 5}, ElementType::f32, tiled({32, 32}))), "");
  EXPECT_EQ(message(TensorDesc({3, 5}, ElementType::f32, rows(StorageType::Int8Row, true))), "");
  expect({3, 5}, tiled({0, 4}), "tile extents must be positive");
  expect({3, 5}, Layout{.zeroPoints = true}, "zero points belong to row storages");
  expect({3, 5}, Layout{.storage = StorageType::Int8Row, .alignment = 2}, "too small for the f32 scales");
  // Padding may pass the limit where the extents do not.
  expect({int64_t(1) << 30, int64_t(1) << 30}, tiled({4, 8}), "");
  expect({1, 1, 1}, tiled({1u << 31, 1u << 31, 4}), "below 2^63");
  expect({INT64_MAX}, tiled({32}), "below 2^63");
  expect({5, 5}, tiled({4, 4}, {16, INT64_MAX}), "below 2^63");
}

TEST(TiledLayout, PrintsWhatIsNotDefault) {
  Layout layout{.space = Space::HostPinned,
                .tile = {32, 32},
                .storage = StorageType::Int8Row,
                .alignment = 512,
                .zeroPoints = true};
  TensorDesc desc({64, 64}, ElementType::bf16, layout);
  EXPECT_EQ(desc.str(), "bf16[64,64] tile [32,32] stored as int8_row with zero points in host_pinned");
  EXPECT_EQ(TensorDesc({4}, ElementType::f32, Layout{.alignment = 512}).strWithAlignment(), "f32[4] aligned to 512");
  EXPECT_EQ(TensorDesc({4, 4}, ElementType::f32, tiled({2, 2}, {4, 8})).str(), "f32[4,4] strides [4,8] tile [2,2]");
}

// Nonsense is refused or has sizes that can be computed: every reachable
// address of an accepted description lies inside its bytes.
TEST(TiledLayout, FuzzedDescriptionsAreRefusedOrBounded) {
  constexpr uint32_t seed = 20260101;
  std::mt19937_64 random(seed);
  auto number = [&]() -> int64_t {
    switch (random() % 8) {
    case 0:
      return int64_t(random());
    case 1:
      return int64_t(1) << random() % 64;
    case 2:
      return -int64_t(random() % 4);
    default:
      return int64_t(random() % 9);
    }
  };
  int accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    TensorDesc desc;
    for (size_t dim = random() % 6; dim-- > 0;)
      desc.shape.push_back(number());
    desc.element = ElementType(random() % 4 ? random() % 7 : random());
    desc.layout.space = Space(random() % 8 ? random() % 4 : random());
    desc.layout.storage = StorageType(random() % 8 ? random() % 6 : random());
    if (random() % 2)
      for (size_t dim = random() % 8 ? desc.shape.size() : random() % 7; dim-- > 0;)
        desc.layout.strides.push_back(number());
    if (random() % 2)
      for (size_t dim = random() % (desc.shape.size() + 1 + (random() % 8 == 0)); dim-- > 0;)
        desc.layout.tile.push_back(uint32_t(number()));
    desc.layout.zeroPoints = random() % 4 == 0;
    desc.layout.alignment = random() % 8 ? 1u << random() % 12 : uint32_t(random());
    desc.layout.offset = random() % 2 ? 0 : random() % 4 ? desc.layout.alignment * (random() % 100) : random();
    try {
      desc.validate();
    } catch (const Error &error) {
      ASSERT_EQ(error.code(), ErrorCode::InvalidArgument) << "seed " << seed << " case " << i;
      continue;
    }
    ++accepted;
    LayoutParts parts = desc.parts();
    uint64_t stored = storedByteSize(desc.element, desc.layout.storage);
    if (desc.elementCount()) {
      std::vector<int64_t> last;
      for (int64_t extent : desc.shape)
        last.push_back(extent - 1);
      bool isPacked = isGroupStorage(desc.layout.storage);
      uint64_t place = uint64_t(elementOffset(desc.shape, desc.layout, last)) / (isPacked ? 2 : 1);
      ASSERT_TRUE(rangeFits(place * (isPacked ? 1 : stored), isPacked ? 1 : stored, parts.elements))
          << desc.str() << " seed " << seed << " case " << i;
    }
    // The canonical form is valid, spans as much, and is its own.
    TensorDesc canonical = desc;
    canonical.layout = canonicalize(desc.shape, desc.layout);
    ASSERT_NO_THROW(canonical.validate()) << desc.str();
    ASSERT_EQ(canonical.spanBytes(), parts.bytes) << desc.str() << " and " << canonical.str();
    ASSERT_EQ(canonicalize(desc.shape, canonical.layout), canonical.layout) << desc.str();
    ASSERT_EQ(canonical.hash(), desc.hash());
    ASSERT_TRUE(satisfies(desc.shape, desc.layout, canonical.layout, false));
    isInjective(desc.shape, desc.layout);
  }
  EXPECT_GT(accepted, 2000);
}
