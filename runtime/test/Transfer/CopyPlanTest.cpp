//===- CopyPlanTest.cpp - any layout to any layout ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/CopyPlan.h"
#include "Transfer/LayoutCases.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Engine/Threads.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Layout/RowStorage.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

using namespace segue;
using namespace segue::test;

static constexpr InstructionSet instructionSets[] = {InstructionSet::x86_64, InstructionSet::x86_64_v3,
                                                     InstructionSet::x86_64_v4};

namespace {
/// Memory at a multiple of 64 bytes with a guard behind it.
class Buffer {
public:
  explicit Buffer(const std::vector<std::byte> &bytes, uint64_t misalign = 0)
      : size_(bytes.size()), memory_(size_ + misalign + 2 * guard, fill) {
    at_ = memory_.data() + (-reinterpret_cast<uintptr_t>(memory_.data()) & (guard - 1)) + misalign;
    std::ranges::copy(bytes, at_);
  }

  std::byte *data() { return at_; }
  std::vector<std::byte> bytes() const { return {at_, at_ + size_}; }
  bool isGuardWhole() const {
    return std::all_of(memory_.data(), const_cast<const std::byte *>(at_), [](std::byte b) { return b == fill; }) &&
           std::all_of(const_cast<const std::byte *>(at_ + size_), memory_.data() + memory_.size(),
                       [](std::byte b) { return b == fill; });
  }

  static constexpr std::byte fill{0xa5};

private:
  static constexpr uint64_t guard = 64;
  uint64_t size_;
  std::vector<std::byte> memory_;
  std::byte *at_;
};
} // namespace

namespace {
/// Random contents and what a copy must make of them.
struct Reference {
  Reference(const TensorDesc &source, const TensorDesc &target, uint32_t seed, bool nonFinite)
      : seed(seed), contents(makeContents(source, seed, nonFinite)), before(target.spanBytes(), Buffer::fill),
        expected(referenceCopy(source, contents, target, before, expectedRow)) {}

  uint32_t seed;
  int64_t expectedRow = -1;
  std::vector<std::byte> contents, before, expected;
};
} // namespace

/// Copies and compares every byte of the target, gaps included, with the
/// reference. Returns what is wrong, or "".
static std::string checkCopy(const TensorDesc &source, const TensorDesc &target, const Reference &reference, int threads,
                             InstructionSet set, uint64_t misalign = 0) {
  const auto &[seed, expectedRow, contents, before, expected] = reference;
  Buffer from(contents, misalign), to(before, misalign);
  int64_t row = CopyPlan(source, target, set).run(from.data(), to.data(), threads);
  std::string what = source.str() + " to " + target.str() + ", seed " + std::to_string(seed) + ", " +
                     std::to_string(threads) + " threads, instruction set " + std::to_string(int(set)) + ": ";
  std::vector<std::byte> copied = to.bytes();
  for (size_t i = 0; i < copied.size(); ++i)
    if (copied[i] != expected[i])
      return what + "byte " + std::to_string(i) + " is " + std::to_string(int(copied[i])) + ", not " +
             std::to_string(int(expected[i]));
  if (row != expectedRow)
    return what + "row " + std::to_string(row) + " is reported, not " + std::to_string(expectedRow);
  if (!to.isGuardWhole() || from.bytes() != contents)
    return what + "memory outside of the target was written";
  return "";
}

static std::string checkCopy(const TensorDesc &source, const TensorDesc &target, uint32_t seed, int threads,
                             InstructionSet set, bool nonFinite = false, uint64_t misalign = 0) {
  return checkCopy(source, target, Reference(source, target, seed, nonFinite), threads, set, misalign);
}

// Issue 4: all ordered pairs of at least 40 layouts, here in one address space.
TEST(CopyPlan, AllPairsOfLayouts) {
  std::vector<LayoutCase> cases = layoutCases();
  std::vector<Shape> shapes = layoutShapes();
  ASSERT_GE(cases.size(), 40u);
  uint32_t copies = 0, pairs = 0;
  for (const LayoutCase &from : cases)
    for (const LayoutCase &to : cases) {
      if (to.isReadOnly())
        continue;
      ++pairs;
      for (const Shape &shape : shapes) {
        ++copies;
        std::string wrong =
            checkCopy(from.desc(shape), to.desc(shape), copies, int(1 + copies % 2), instructionSets[copies % 3]);
        ASSERT_EQ(wrong, "") << from.name << " to " << to.name;
      }
    }
  std::printf("%u pairs of %zu layouts (%u copies of %zu shapes)\n", pairs, cases.size(), copies, shapes.size());
}

// NaN and infinity take their way through casts, and are reported where they
// are quantised.
TEST(CopyPlan, AllPairsWithNonFiniteValues) {
  uint32_t seed = 0;
  for (const LayoutCase &from : layoutCases())
    for (const LayoutCase &to : layoutCases())
      if (!to.isReadOnly())
        for (const Shape &shape : {Shape{12, 40}, Shape{5, 3, 7}}) {
          ++seed;
          std::string wrong = checkCopy(from.desc(shape), to.desc(shape), seed, 1, instructionSets[seed % 3], true);
          ASSERT_EQ(wrong, "") << from.name << " to " << to.name;
        }
}

// Sizes at which threads share the work and writes go around the caches.
TEST(CopyPlan, LargeCopies) {
  auto strided = [](std::vector<int64_t> strides) { return Layout{.strides = std::move(strides)}; };
  auto rows = [](StorageType storage, std::vector<int64_t> strides = {}, std::vector<uint32_t> tile = {}) {
    return Layout{.strides = std::move(strides), .tile = std::move(tile), .storage = storage};
  };
  using E = ElementType;
  struct Case {
    Shape shape;
    E from;
    Layout source;
    E to;
    Layout target;
  };
  int64_t r = 1100, c = 1030;
  std::vector<Case> cases = {
      {{r, c}, E::f32, {}, E::f32, {}},
      {{r, c}, E::f32, {}, E::f32, strided({1, r})},
      {{1088, 1024}, E::f32, {}, E::f32, strided({1, 1088})},
      {{1088, 2048}, E::bf16, {}, E::bf16, strided({1, 1088})},
      {{2048, 2112}, E::i8, {}, E::i8, strided({1, 2048})},
      {{1024, 1024}, E::i64, {}, E::i64, strided({1, 1024})},
      // Lines of the target that are put together first: all that begin and end
      // inside a line of the cache.
      {{2053, 2051}, E::i8, {}, E::i8, strided({1, 2053})},
      {{1601, 1403}, E::bf16, {}, E::bf16, strided({1, 1601})},
      {{811, 907}, E::i64, {}, E::i64, strided({1, 811})},
      {{2, 1023, 1030}, E::f32, {}, E::f32, strided({1023 * 1030, 1, 1023})},
      // Short lines of the target, whole or with a rest.
      {{300, 64, 64}, E::f32, {}, E::f32, strided({64 * 64, 1, 64})},
      {{300, 96, 136}, E::bf16, {}, E::bf16, strided({96 * 136, 1, 96})},
      {{300, 128, 120}, E::i8, {}, E::i8, strided({128 * 120, 1, 128})},
      {{300, 40, 50}, E::i64, {}, E::i64, strided({40 * 50, 1, 40})},
      {{5000, 20, 12}, E::f32, {}, E::f32, strided({32 * 12, 1, 32})},
      {{2500, 40, 24}, E::bf16, {}, E::bf16, strided({64 * 24, 1, 64})},
      {{1600, 70, 40}, E::i8, {}, E::i8, strided({128 * 40, 1, 128})},
      {{4, 64, 40, 128}, E::f32, {}, E::f32, strided({40 * 64 * 128, 128, 64 * 128, 1})},
      {{r, c}, E::f32, {}, E::bf16, {}},
      {{2 * r, c}, E::f32, strided({1, 2 * r}), E::bf16, {}},
      {{2112, 1024}, E::f32, {}, E::bf16, strided({1, 2112})},
      {{2048, 1024}, E::f32, {}, E::bf16, Layout{.tile = {32, 32}}},
      {{r, c}, E::bf16, {}, E::f32, {}},
      {{r, c}, E::f32, {}, E::f32, Layout{.tile = {32, 32}}},
      {{1024, 1024}, E::f32, {}, E::f32, Layout{.tile = {32, 32}}},
      {{r, c}, E::f32, Layout{.tile = {32, 32}}, E::f32, {}},
      {{r, c}, E::f32, Layout{.tile = {32, 32}}, E::f32, Layout{.tile = {16, 64}}},
      {{r, c}, E::f32, Layout{.tile = {24, 32}}, E::f32, Layout{.tile = {16, 20}}},
      {{r, c}, E::f32, Layout{.tile = {32, 32}}, E::bf16, strided({1, r})},
      {{r, c}, E::f32, {}, E::f32, rows(StorageType::Int8Row)},
      {{r, c}, E::f32, strided({1, r}), E::f32, rows(StorageType::Fp8E4M3Row)},
      {{r, c}, E::bf16, {}, E::bf16, rows(StorageType::Fp8E5M2Row, {1, r})},
      {{3, 300001}, E::f32, {}, E::f32, rows(StorageType::Int8Row)},
      {{3, 300001}, E::f32, strided({1, 3}), E::f32, rows(StorageType::Int8Row, {}, {2, 7})},
      {{1000003}, E::f32, {}, E::f32, rows(StorageType::Int8Row)},
      {{r, c}, E::f32, Layout{.tile = {24, 32}}, E::f32, rows(StorageType::Int8Row, {}, {16, 20})},
      {{r, c}, E::f32, rows(StorageType::Int8Row), E::f32, {}},
      {{2 * r, c}, E::f32, rows(StorageType::Int8Row, {}, {16, 16}), E::bf16, strided({1, 2 * r})},
      {{r, c}, E::f32, rows(StorageType::Int8Row), E::f32, rows(StorageType::Fp8E4M3Row, {}, {32, 32})},
      {{r, c}, E::f32, rows(StorageType::Int4Group64), E::bf16, {}},
      {{r, c}, E::f32, rows(StorageType::Int4Group32), E::f32, rows(StorageType::Int8Row)},
      {{r, c}, E::f32, strided({1, r}), E::f32, rows(StorageType::Int4Group64)},
      {{r, c}, E::f32, rows(StorageType::Int4Group64), E::f32, rows(StorageType::Int4Group64, {1088, 1})},
      {{1000003}, E::f32, {}, E::f32, rows(StorageType::Int4Group32)},
      {{64, 700, 24}, E::f32, {}, E::f32, strided({24, 24 * 64, 1})},
      {{64, 700, 24}, E::f32, {}, E::bf16, strided({24, 24 * 64, 1})},
      {{300, 1200, 3}, E::f32, {}, E::f32, strided({1200, 1, 360000})},
      {{1000, 1100}, E::f32, strided({0, 1}), E::f32, {}},
      {{1000, 1100}, E::f32, strided({1, 0}), E::bf16, {}},
  };
  for (const Case &test : cases) {
    TensorDesc source(test.shape, test.from, test.source), target(test.shape, test.to, test.target);
    Reference reference(source, target, 7, /*nonFinite=*/false);
    EXPECT_EQ(checkCopy(source, target, reference, 1, InstructionSet::x86_64_v3), "");
    EXPECT_EQ(checkCopy(source, target, reference, 3, InstructionSet::x86_64_v4), "");
  }
}

// Each f16 and f32 of each exponent, NaNs that signal among them, has the bits on every processor that plain code gives.
TEST(CopyPlan, ElementsOfAllKindsHaveTheSameBitsEverywhere) {
  std::vector<uint16_t> halves;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    halves.push_back(uint16_t(bits));
  std::vector<uint32_t> floats;
  for (uint32_t high = 0; high < 512; ++high)
    for (uint32_t mantissa : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0x3fffffu, 0x400000u, 0x400001u, 0x7fffffu})
      floats.push_back(high << 23 | mantissa);
  std::shuffle(floats.begin(), floats.end(), std::mt19937(3));
  auto check = [](ElementType from, const void *source, size_t count, ElementType to) {
    for (size_t offset : {0, 1, 5}) { // so that every value has several places in a vector
      int64_t left = int64_t(count - offset);
      TensorDesc given({left}, from), wanted({left}, to);
      auto *begin = static_cast<const std::byte *>(source) + offset * byteSize(from);
      std::vector<std::byte> plain(wanted.spanBytes()), found(wanted.spanBytes());
      CopyPlan(given, wanted, InstructionSet::x86_64).run(begin, plain.data(), 1);
      for (InstructionSet set : {InstructionSet::x86_64_v3, InstructionSet::x86_64_v4}) {
        CopyPlan(given, wanted, set).run(begin, found.data(), 1);
        EXPECT_EQ(found, plain) << given.str() << " to " << wanted.str() << ", instruction set " << int(set);
      }
    }
  };
  for (ElementType to : {ElementType::f32, ElementType::bf16, ElementType::i8})
    check(ElementType::f16, halves.data(), halves.size(), to);
  for (ElementType to : {ElementType::f16, ElementType::bf16, ElementType::i8, ElementType::i32, ElementType::i1})
    check(ElementType::f32, floats.data(), floats.size(), to);
}

// Layouts that nobody thought of.
TEST(CopyPlan, RandomLayouts) {
  constexpr uint32_t seed = 4;
  std::mt19937 random(seed);
  std::printf("seed %u\n", seed);
  auto pick = [&](int64_t below) { return int64_t(random() % uint64_t(below)); };
  for (int i = 0; i < 3000; ++i) {
    Shape shape;
    for (int64_t rank = pick(6); rank-- > 0;)
      shape.push_back(pick(3) ? 1 + pick(12) : 1 + pick(shape.size() < 2 ? 70 : 20));
    while (*checkedElementCount(shape) > 20000)
      shape.pop_back();
    auto makeDesc = [&](bool written) {
      LayoutCase layout{.element = allElementTypes[pick(int64_t(elementTypeCount))]};
      layout.storage = pick(3) ? StorageType::Element : StorageType(pick(6));
      layout.zeroPoints = isRowStorage(layout.storage) && pick(2);
      if (pick(2))
        for (int64_t rank = pick(6); rank-- > 0;)
          layout.tile.push_back(uint32_t(pick(4) ? 1 << pick(6) : 1 + pick(9)));
      layout.rotate = int(pick(5));
      layout.reverse = pick(2);
      layout.gap = pick(2) * pick(9);
      layout.repeatsFirst = !written && pick(8) == 0;
      layout.repeatsLast = !written && pick(8) == 0;
      return layout.desc(shape);
    };
    TensorDesc source = makeDesc(false), target = makeDesc(true);
    if (target.spanBytes() > (4 << 20) || source.spanBytes() > (4 << 20))
      continue;
    uint64_t misalign = uint64_t(pick(2)) * 8;
    ASSERT_EQ(
        checkCopy(source, target, uint32_t(i), int(1 + pick(2)), instructionSets[pick(3)], pick(4) == 0, misalign), "")
        << "case " << i;
  }
}

// Codes, scales and zero points of one row storage survive every way through
// strides and tiles and back.
TEST(CopyPlan, RowsMoveBitExactly) {
  for (bool zeroPoints : {false, true}) {
    TensorDesc dense({37, 53}, ElementType::bf16, Layout{.storage = StorageType::Int8Row, .zeroPoints = zeroPoints});
    std::vector<std::byte> contents = makeContents(dense, 3);
    Buffer original(contents);
    for (const LayoutCase &layout : layoutCases()) {
      if (layout.storage != StorageType::Int8Row || layout.isReadOnly() || (zeroPoints && !layout.zeroPoints))
        continue;
      TensorDesc other = layout.desc(dense.shape);
      Buffer there(std::vector<std::byte>(other.spanBytes())), back(std::vector<std::byte>(dense.spanBytes()));
      EXPECT_EQ(CopyPlan(dense, other).run(original.data(), there.data(), 1), -1);
      EXPECT_EQ(CopyPlan(other, dense).run(there.data(), back.data(), 1), -1);
      // The gap before the scales is zero in both.
      for (uint64_t i = dense.parts().elements; i < dense.parts().scales; ++i)
        contents[i] = std::byte(0);
      EXPECT_EQ(back.bytes(), contents) << layout.name;
    }
  }
}

// What a plan quantises is what quantizeRow makes of each row.
TEST(CopyPlan, QuantisesAsRowStorageSays) {
  TensorDesc f32({20, 333}, ElementType::f32);
  Buffer values(makeContents(f32, 5));
  for (StorageType storage : {StorageType::Int8Row, StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row}) {
    TensorDesc rows({20, 333}, ElementType::f32, Layout{.storage = storage});
    Buffer quantized(std::vector<std::byte>(rows.spanBytes()));
    CopyPlan(f32, rows).run(values.data(), quantized.data(), 1);
    for (int64_t row = 0; row < 20; ++row) {
      std::vector<std::byte> codes(333);
      std::span floats(reinterpret_cast<const float *>(values.data()) + row * 333, 333);
      float scale = quantizeRow(floats, storage, codes).scale;
      EXPECT_EQ(std::memcmp(codes.data(), quantized.data() + row * 333, 333), 0);
      EXPECT_EQ(std::memcmp(&scale, quantized.data() + rows.parts().scales + row * 4, 4), 0);
    }
  }
}

// A thread that flushes denormals copies the same bits.
TEST(CopyPlan, DenormalsSurvive) {
  FlushDenormals flush;
  float denormal = std::bit_cast<float>(uint32_t(0x00012345)), copied = 0, dequantized = 0;
  uint8_t isSet = 0;
  TensorDesc f32({1}, ElementType::f32);
  CopyPlan(f32, f32).run(&denormal, &copied, 1);
  CopyPlan(f32, TensorDesc({1}, ElementType::i1)).run(&denormal, &isSet, 1);
  EXPECT_EQ(std::bit_cast<uint32_t>(copied), 0x00012345u);
  EXPECT_EQ(isSet, 1);
  TensorDesc row({1}, ElementType::f32, Layout{.storage = StorageType::Int8Row});
  alignas(64) std::byte stored[68] = {std::byte(3)};
  std::memcpy(stored + 64, &denormal, 4);
  CopyPlan(row, f32).run(stored, &dequantized, 1);
  EXPECT_EQ(std::bit_cast<uint32_t>(dequantized), 3 * 0x00012345u);
}

TEST(CopyPlan, CountsBytes) {
  TensorDesc f32({10, 100}, ElementType::f32);
  CopyPlan tiles(f32, TensorDesc({10, 100}, ElementType::bf16, Layout{.tile = {32, 32}}));
  EXPECT_EQ(tiles.bytesRead(), 4000u);
  EXPECT_EQ(tiles.bytesWritten(), 32 * 128 * 2u);
  CopyPlan rows(f32, TensorDesc({10, 100}, ElementType::f32, Layout{.storage = StorageType::Int8Row}));
  EXPECT_EQ(rows.bytesWritten(), 1000 + 40u);
  CopyPlan repeated(TensorDesc({10, 100}, ElementType::f32, Layout{.strides = {0, 1}}), f32);
  EXPECT_EQ(repeated.bytesRead(), 400u);
  EXPECT_EQ(repeated.bytesWritten(), 4000u);
}

TEST(CopyPlan, KnowsOneRunOfBytes) {
  auto contiguous = [](Shape shape, Layout from, Layout to, ElementType toType = ElementType::f32) {
    return CopyPlan(TensorDesc(shape, ElementType::f32, from), TensorDesc(shape, toType, to)).isContiguous();
  };
  EXPECT_TRUE(contiguous({64, 64}, {}, {}));
  EXPECT_TRUE(contiguous({1000003}, {}, {}));
  EXPECT_TRUE(contiguous({64, 64}, Layout{.strides = {1, 64}}, Layout{.strides = {1, 64}}));
  EXPECT_TRUE(contiguous({64, 64}, Layout{.tile = {32, 32}}, Layout{.tile = {32, 32}}));
  EXPECT_FALSE(contiguous({60, 64}, Layout{.tile = {32, 32}}, Layout{.tile = {32, 32}}));
  EXPECT_FALSE(contiguous({64, 64}, {}, Layout{.strides = {1, 64}}));
  EXPECT_FALSE(contiguous({64, 64}, Layout{.strides = {65, 1}}, Layout{.strides = {65, 1}}));
  EXPECT_FALSE(contiguous({64, 64}, {}, {}, ElementType::i32));
  EXPECT_FALSE(contiguous({64, 64}, Layout{.strides = {0, 1}}, {}));
}

TEST(CopyPlan, MistakesAreTypedErrors) {
  auto error = [](const TensorDesc &source, const TensorDesc &target) -> std::pair<ErrorCode, std::string> {
    try {
      CopyPlan plan(source, target);
    } catch (const Error &error) {
      return {error.code(), error.what()};
    }
    return {ErrorCode(-1), ""};
  };
  TensorDesc f32({2, 3}, ElementType::f32);
  auto [code, text] = error(f32, TensorDesc({3, 2}, ElementType::f32));
  EXPECT_EQ(code, ErrorCode::LayoutMismatch);
  EXPECT_NE(text.find("a layout never changes the shape"), std::string::npos);
  std::tie(code, text) = error(f32, TensorDesc({2, 3}, ElementType::f32, Layout{.strides = {0, 1}}));
  EXPECT_EQ(code, ErrorCode::InvalidArgument);
  EXPECT_NE(text.find("puts two elements in one place"), std::string::npos);
  EXPECT_EQ(error(f32, TensorDesc({2, 3}, ElementType::f32, Layout{.tile = {0}})).first, ErrorCode::InvalidArgument);
}
