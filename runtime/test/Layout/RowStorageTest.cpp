//===- RowStorageTest.cpp - the formulas of row storages ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Layout/RowStorage.h"
#include <cmath>
#include <gtest/gtest.h>
#include <random>

using namespace segue;

static constexpr StorageType rowStorages[] = {StorageType::Int8Row, StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row};

namespace {
struct Quantized {
  RowScale result;
  std::vector<std::byte> codes;

  std::vector<int> int8() const {
    std::vector<int> values;
    for (std::byte code : codes)
      values.push_back(int8_t(code));
    return values;
  }
};
} // namespace

static Quantized quantize(const std::vector<float> &row, StorageType storage,
                          ScaleSearch search = ScaleSearch::AbsMax) {
  Quantized quantized{{}, std::vector<std::byte>(row.size())};
  quantized.result = quantizeRow(row, storage, quantized.codes, search);
  return quantized;
}

static std::vector<float> dequantize(const Quantized &quantized, StorageType storage) {
  std::vector<float> row(quantized.codes.size());
  dequantizeRow(quantized.codes, storage, quantized.result.scale, 0, row);
  return row;
}

/// Gaussian weights, the same for the same seed.
static std::vector<float> gaussian(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> row(count);
  for (float &value : row)
    value = normal(random);
  return row;
}

// The table of the SquareQ contract, line by line.
TEST(RowStorage, Int8Table) {
  struct Line {
    std::vector<float> row;
    uint32_t scaleBits;
    std::vector<int> codes;
    bool floored;
  };
  auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  for (const Line &line : {
           Line{{1, -0.5f, 0.25f, 0}, 0x3C010204, {127, -64, 32, 0}, false},
           Line{{127, 63.5f, -62.5f, 0.5f}, bits(1.0f), {127, 64, -62, 0}, false},
           Line{{254, -1, 3, -127}, bits(2.0f), {127, 0, 2, -64}, false},
           Line{{0, 0, 0, 0}, bits(1e-8f), {0, 0, 0, 0}, true},
           Line{{1e-7f, -5e-8f, 2e-8f, 0}, bits(1e-8f), {10, -5, 2, 0}, true},
       }) {
    Quantized quantized = quantize(line.row, StorageType::Int8Row);
    EXPECT_EQ(bits(quantized.result.scale), line.scaleBits);
    EXPECT_EQ(quantized.int8(), line.codes);
    EXPECT_EQ(quantized.result.floored, line.floored);
    EXPECT_EQ(quantized.result.firstNonFinite, -1);
  }
}

// A row of zeros comes back as exact zeros from every form.
TEST(RowStorage, ZeroStaysZero) {
  for (StorageType storage : rowStorages)
    for (float value : dequantize(quantize({0, -0.0f, 0}, storage), storage))
      EXPECT_EQ(value, 0.0f);
}

TEST(RowStorage, NoRowIsEmpty) {
  for (StorageType storage : rowStorages)
    EXPECT_EQ(quantize({}, storage).result.scale, smallestRowScale);
}

// The error bounds of the contract, and -128 is never produced.
TEST(RowStorage, ErrorBounds) {
  for (float factor : {1.0f, 1e-9f, 1e30f}) {
    std::vector<float> row = gaussian(4099, 11);
    for (float &value : row)
      value *= factor;
    Quantized int8 = quantize(row, StorageType::Int8Row), e4m3 = quantize(row, StorageType::Fp8E4M3Row),
              e5m2 = quantize(row, StorageType::Fp8E5M2Row);
    auto int8Row = dequantize(int8, StorageType::Int8Row), e4m3Row = dequantize(e4m3, StorageType::Fp8E4M3Row),
         e5m2Row = dequantize(e5m2, StorageType::Fp8E5M2Row);
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_NE(int8.int8()[i], -128);
      double magnitude = std::abs(double(row[i])), slack = 1 + 0x1p-14;
      EXPECT_LE(std::abs(double(row[i]) - int8Row[i]), int8.result.scale * (0.5 + 0x1p-14));
      EXPECT_LE(std::abs(double(row[i]) - e4m3Row[i]),
                std::max(0x1p-4 * magnitude, 0x1p-10 * e4m3.result.scale) * slack);
      EXPECT_LE(std::abs(double(row[i]) - e5m2Row[i]),
                std::max(0x1p-3 * magnitude, 0x1p-17 * e5m2.result.scale) * slack);
    }
  }
}

// Re-quantising what was dequantised gives the same codes.
TEST(RowStorage, QuantisingAgainIsStable) {
  for (StorageType storage : rowStorages)
    for (uint32_t seed = 0; seed < 20; ++seed) {
      Quantized first = quantize(gaussian(257, seed), storage);
      ASSERT_FALSE(first.result.floored);
      EXPECT_EQ(quantize(dequantize(first, storage), storage).codes, first.codes) << "seed " << seed;
    }
}

TEST(RowStorage, ZeroPointIsSubtracted) {
  std::vector<std::byte> codes{std::byte(7), std::byte(uint8_t(-3))};
  std::vector<float> row(2);
  dequantizeRow(codes, StorageType::Int8Row, 0.5f, 2.0f, row);
  EXPECT_EQ(row, (std::vector<float>{2.5f, -2.5f}));
}

// Non-finite elements are reported and do not spoil the scale of the others.
TEST(RowStorage, NonFiniteIsReported) {
  for (StorageType storage : rowStorages) {
    std::vector<float> row{1, -0.5f, INFINITY, NAN, -INFINITY, 0.25f};
    Quantized quantized = quantize(row, storage);
    EXPECT_EQ(quantized.result.firstNonFinite, 2);
    EXPECT_EQ(quantized.result.scale, quantize({1, -0.5f, 0.25f}, storage).result.scale);
    auto back = dequantize(quantized, storage);
    EXPECT_NEAR(back[2], 1, 1e-6);
    EXPECT_NEAR(back[4], -1, 1e-6);
    EXPECT_TRUE(storage == StorageType::Int8Row ? back[3] == 0 : std::isnan(back[3]));
  }
}

// `mse` never has a larger squared error than `absmax`, takes a smaller scale
// for an outlier among many equals, and the first of equal candidates.
TEST(RowStorage, MseSearch) {
  auto error = [](const std::vector<float> &row, const Quantized &quantized, StorageType storage) {
    double sum = 0;
    auto back = dequantize(quantized, storage);
    for (size_t i = 0; i < row.size(); ++i)
      sum += (double(row[i]) - back[i]) * (double(row[i]) - back[i]);
    return sum;
  };
  for (StorageType storage : rowStorages)
    for (uint32_t seed = 0; seed < 20; ++seed) {
      std::vector<float> row = gaussian(300, seed);
      Quantized absmax = quantize(row, storage), mse = quantize(row, storage, ScaleSearch::Mse);
      EXPECT_LE(error(row, mse, storage), error(row, absmax, storage)) << "seed " << seed;
      bool isCandidate = false;
      for (float factor : {0.85f, 0.88f, 0.91f, 0.94f, 0.97f, 1.0f})
        isCandidate |= mse.result.scale == absmax.result.scale * factor;
      EXPECT_TRUE(isCandidate);
    }
  // 0.85 and 1 represent 0 equally well: the first wins.
  EXPECT_EQ(quantize({0, 0}, StorageType::Int8Row, ScaleSearch::Mse).result.scale, 1e-8f * 0.85f);
}

// The fp8 codes of OCP, value by value: every code that is a number survives.
TEST(RowStorage, Fp8Codes) {
  EXPECT_EQ(codeToFloat(0x7e, StorageType::Fp8E4M3Row), 448.0f);
  EXPECT_EQ(codeToFloat(0x08, StorageType::Fp8E4M3Row), 0x1p-6f);
  EXPECT_EQ(codeToFloat(0x01, StorageType::Fp8E4M3Row), 0x1p-9f);
  EXPECT_EQ(codeToFloat(0xb8, StorageType::Fp8E4M3Row), -1.0f);
  EXPECT_EQ(codeToFloat(0x7b, StorageType::Fp8E5M2Row), 57344.0f);
  EXPECT_EQ(codeToFloat(0x04, StorageType::Fp8E5M2Row), 0x1p-14f);
  EXPECT_EQ(codeToFloat(0x01, StorageType::Fp8E5M2Row), 0x1p-16f);
  EXPECT_EQ(codeToFloat(0x7c, StorageType::Fp8E5M2Row), INFINITY);
  EXPECT_TRUE(std::isnan(codeToFloat(0x7f, StorageType::Fp8E4M3Row)));
  EXPECT_TRUE(std::isnan(codeToFloat(0xfd, StorageType::Fp8E5M2Row)));
  for (StorageType storage : {StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row})
    for (int code = 0; code < 256; ++code) {
      float value = codeToFloat(uint8_t(code), storage);
      if (std::isfinite(value)) {
        EXPECT_EQ(floatToCode(value, storage), code) << name(storage);
      }
    }
}

// Between two neighbouring codes, each value goes to the nearer, a tie to the
// even code.
TEST(RowStorage, Fp8RoundsToNearestEven) {
  for (StorageType storage : {StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row}) {
    int largest = floatToCode(largestCode(storage), storage);
    for (int code = 0; code < largest; ++code) {
      float low = codeToFloat(uint8_t(code), storage), high = codeToFloat(uint8_t(code + 1), storage);
      float middle = (low + high) / 2;
      EXPECT_EQ(floatToCode(middle, storage), code % 2 ? code + 1 : code);
      EXPECT_EQ(floatToCode(std::nextafter(middle, low), storage), code);
      EXPECT_EQ(floatToCode(-std::nextafter(middle, high), storage), (code + 1) | 0x80);
    }
    EXPECT_EQ(floatToCode(1e30f, storage), largest);
    EXPECT_EQ(floatToCode(-INFINITY, storage), largest | 0x80);
  }
}
