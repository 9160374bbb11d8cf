//===- LayerQuantizerTest.cpp - one weight into its stored form -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/LayerQuantizer.h"
#include "Services/SquareQ/SlabModel.h"
#include "Session/ExpectError.h"
#include <gtest/gtest.h>
#include <limits>

using namespace segue;

static RowReader rowsOf(const std::vector<float> &weight, int64_t in) {
  return [&weight, in](int64_t first, int64_t count, std::span<float> values) {
    std::copy_n(weight.begin() + first * in, count * in, values.begin());
  };
}

static QuantizedLayer quantized(const std::vector<float> &weight, int64_t out, int64_t in, const SlabForm &form = {},
                                int threads = 2, ScaleSearch search = ScaleSearch::AbsMax) {
  QuantizedLayer layer;
  quantizeLayer(form, slabSize(form, out, in, false).value(), search, rowsOf(weight, in), Threads(threads), layer);
  return layer;
}

static std::vector<int> codesOf(const QuantizedLayer &layer) {
  std::vector<int> codes;
  for (std::byte code : layer.qweight)
    codes.push_back(int(int8_t(code)));
  return codes;
}

static float scaleOf(const QuantizedLayer &layer, size_t row = 0) {
  float scale;
  std::memcpy(&scale, &layer.scale[4 * row], 4);
  return scale;
}

static std::vector<float> restored(const SlabForm &form, const QuantizedLayer &layer) {
  std::vector<float> values(size_t(layer.size.out * layer.size.in));
  dequantizeRows(form, layer, 0, layer.size.out, values);
  return values;
}

// Every row of the table of docs/specs/squareq.md.
TEST(LayerQuantizer, RowsOfTheSpecification) {
  struct Case {
    std::vector<float> row;
    uint32_t scale;
    std::vector<int> codes;
    int64_t floored;
  };
  uint32_t floor = std::bit_cast<uint32_t>(1e-8f);
  for (const Case &each :
       {Case{{1, -0.5f, 0.25f, 0}, 0x3C010204, {127, -64, 32, 0}, 0},
        Case{{127, 63.5f, -62.5f, 0.5f}, 0x3F800000, {127, 64, -62, 0}, 0},
        Case{{254, -1, 3, -127}, 0x40000000, {127, 0, 2, -64}, 0}, Case{{0, 0, 0, 0}, floor, {0, 0, 0, 0}, 1},
        Case{{1e-7f, -5e-8f, 2e-8f, 0}, floor, {10, -5, 2, 0}, 1}}) {
    QuantizedLayer layer = quantized(each.row, 1, 4, {.padK = 1});
    EXPECT_EQ(std::bit_cast<uint32_t>(scaleOf(layer)), each.scale);
    EXPECT_EQ(codesOf(layer), each.codes);
    EXPECT_EQ(layer.error.flooredRows, each.floored);
    EXPECT_EQ(layer.zeroPoint, std::vector<std::byte>(4));
  }
  QuantizedLayer zero = quantized({0, 0, 0, 0}, 1, 4, {.padK = 1});
  EXPECT_EQ(restored({.padK = 1}, zero), std::vector<float>(4));
  EXPECT_EQ(zero.error.relRmse, 0);
  EXPECT_EQ(zero.error.cosine, 1);
}

// The columns beyond `in` are stored as 0 and take no part in the error.
TEST(LayerQuantizer, PadsWithZeros) {
  std::vector<float> weight = gaussian(3 * 100, 5);
  QuantizedLayer padded = quantized(weight, 3, 100), bare = quantized(weight, 3, 100, {.padK = 1});
  ASSERT_EQ(padded.qweight.size(), 3u * 128);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(std::memcmp(&padded.qweight[r * 128], &bare.qweight[r * 100], 100), 0);
    for (size_t c = 100; c < 128; ++c)
      EXPECT_EQ(padded.qweight[r * 128 + c], std::byte(0));
  }
  EXPECT_EQ(padded.scale, bare.scale);
  EXPECT_EQ(padded.error.relRmse, bare.error.relRmse);
}

// The bounds of docs/specs/squareq.md: |w - w'| <= scale (0.5 + 2^-14) per element,
// relative RMSE under 5 %, cosine at least 0.9996; quantising again is the
// identity, since the largest code of a row is 127.
TEST(LayerQuantizer, KeepsTheBoundsForGaussianWeights) {
  for (uint32_t seed : {1u, 2u, 3u}) {
    std::vector<float> weight = gaussian(64 * 320, seed);
    QuantizedLayer layer = quantized(weight, 64, 320);
    std::vector<float> back = restored({}, layer);
    for (size_t i = 0; i < weight.size(); ++i)
      ASSERT_LE(std::fabs(double(weight[i]) - double(back[i])), double(scaleOf(layer, i / 320)) * (0.5 + 0x1p-14));
    EXPECT_LT(layer.error.relRmse, 0.05);
    EXPECT_GT(layer.error.cosine, 0.9996);
    EXPECT_EQ(layer.error.flooredRows, 0);
    QuantizedLayer again = quantized(back, 64, 320);
    EXPECT_EQ(again.qweight, layer.qweight);
    // -128 never occurs.
    EXPECT_EQ(std::count(layer.qweight.begin(), layer.qweight.end(), std::byte(0x80)), 0);
  }
}

// The mse search never does worse than absmax, and better where one outlier
// sets the scale of many small values.
TEST(LayerQuantizer, SearchesTheScale) {
  std::vector<float> weight = gaussian(8 * 256, 11);
  for (size_t r = 0; r < 8; ++r)
    weight[r * 256] = 0.12f; // one outlier per row
  QuantizedLayer absmax = quantized(weight, 8, 256);
  QuantizedLayer mse = quantized(weight, 8, 256, {}, 2, ScaleSearch::Mse);
  EXPECT_LE(mse.error.relRmse, absmax.error.relRmse);
  for (size_t r = 0; r < 8; ++r) {
    bool isCandidate = false;
    for (float factor : {0.85f, 0.88f, 0.91f, 0.94f, 0.97f, 1.0f})
      isCandidate |= scaleOf(mse, r) == scaleOf(absmax, r) * factor;
    EXPECT_TRUE(isCandidate) << "row " << r;
  }
  SlabForm int4{.scheme = SlabScheme::Int4Group};
  EXPECT_LT(quantized(weight, 8, 256, int4, 2, ScaleSearch::Mse).error.relRmse,
            quantized(weight, 8, 256, int4).error.relRmse);
}

// Bytes and report are the same for any number of threads.
TEST(LayerQuantizer, DoesNotDependOnThreads) {
  int64_t out = 700, in = 1000; // three pieces
  std::vector<float> weight = gaussian(size_t(out * in), 3);
  for (SlabScheme scheme : allSlabSchemes) {
    QuantizedLayer one = quantized(weight, out, in, {.scheme = scheme}, 1);
    for (int threads : {2, 3, 7}) {
      QuantizedLayer many = quantized(weight, out, in, {.scheme = scheme}, threads);
      EXPECT_EQ(one.qweight, many.qweight);
      EXPECT_EQ(one.scale, many.scale);
      EXPECT_EQ(one.error.relRmse, many.error.relRmse);
      EXPECT_EQ(one.error.cosine, many.error.cosine);
    }
  }
}

// The first in row order, whichever thread finds it.
TEST(LayerQuantizer, FindsTheFirstThatIsNotFinite) {
  int64_t out = 700, in = 1000;
  std::vector<float> weight(size_t(out * in), 1.0f);
  weight[650 * 1000 + 2] = std::numeric_limits<float>::infinity();
  weight[40 * 1000 + 999] = -std::numeric_limits<float>::infinity();
  weight[40 * 1000 + 998] = std::numeric_limits<float>::quiet_NaN();
  for (SlabScheme scheme : allSlabSchemes)
    for (int threads : {1, 4})
      EXPECT_EQ(quantized(weight, out, in, {.scheme = scheme}, threads).nonFinite,
                std::pair(int64_t(40), int64_t(998)));
}

// fp8: |w - w'| <= 2^-4 |w| for normal codes, 2^-10 scale for subnormal ones;
// the largest magnitude becomes the largest code.
TEST(LayerQuantizer, KeepsTheBoundsOfFp8) {
  SlabForm form{.scheme = SlabScheme::Fp8E4M3Row};
  std::vector<float> weight = gaussian(16 * 256, 21);
  QuantizedLayer layer = quantized(weight, 16, 256, form);
  std::vector<float> back = restored(form, layer);
  for (size_t i = 0; i < weight.size(); ++i) {
    double bound = std::max(0x1p-4 * std::fabs(double(weight[i])), 0x1p-10 * double(scaleOf(layer, i / 256)));
    ASSERT_LE(std::fabs(double(weight[i]) - double(back[i])), bound * (1 + 1e-6)) << i;
  }
  EXPECT_TRUE(layer.zeroPoint.empty());
}

// v3's figure for Gaussian weights without a low-rank branch.
TEST(Int4Group, KeepsTheCosineOfGaussianWeights) {
  SlabForm form{.scheme = SlabScheme::Int4Group};
  std::vector<float> weight = gaussian(64 * 512, 9);
  QuantizedLayer layer = quantized(weight, 64, 512, form);
  EXPECT_GT(layer.error.cosine, 0.99);
  EXPECT_NEAR(layer.size.ratio(), 0.25 + 1.0 / 64, 0.001);
}

// What reading throws ends the quantisation.
TEST(LayerQuantizer, HandsOnWhatReadingThrows) {
  QuantizedLayer layer;
  SlabSize size = slabSize({}, 700, 1000, false).value();
  RowReader failing = [](int64_t first, int64_t, std::span<float> values) {
    std::fill(values.begin(), values.end(), 1.0f);
    if (first > 0)
      throw Error(ErrorCode::IoFailed, "row " + std::to_string(first));
  };
  EXPECT_ERROR(quantizeLayer({}, size, ScaleSearch::AbsMax, failing, Threads(2), layer), IoFailed, "row ");
}
