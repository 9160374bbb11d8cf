//===- LowBitFormsTest.cpp - rotation and low rank beside codes -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/LowBitForms.h"
#include "../lib/Services/SquareQ/LowRank.h"
#include "Services/SquareQ/SlabDevices.h"
#include "Services/SquareQ/SlabFixture.h"
#include "Session/ExpectError.h"
#include "segue/runtime/Config/ConfigReader.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Layout/GroupStorage.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;

//===----------------------------------------------------------------------===//
// The formulas
//===----------------------------------------------------------------------===//

// Entry by entry what the head of the header says, and its own inverse.
TEST(Rotation, IsTheHadamardMatrix) {
  for (size_t i : {0u, 1u, 77u, 128u, 255u}) {
    std::vector<float> unit(512);
    unit[i] = 1;
    unit[256 + i] = -2;
    rotateRows(unit);
    for (size_t j = 0; j < 256; ++j) {
      float entry = __builtin_popcountll(i & j) % 2 ? -0.0625f : 0.0625f;
      ASSERT_EQ(unit[j], entry);
      ASSERT_EQ(unit[256 + j], -2 * entry);
    }
  }
  std::vector<float> values = gaussian(1024, 3), there = values;
  rotateRows(there);
  double before = 0, after = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    before += double(values[i]) * double(values[i]);
    after += double(there[i]) * double(there[i]);
  }
  EXPECT_NEAR(after / before, 1, 1e-6); // lengths are kept
  rotateRows(there);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(there[i], values[i], 1e-7);
  EXPECT_TRUE(canRotate(256) && canRotate(3072));
  EXPECT_FALSE(canRotate(0) || canRotate(100) || canRotate(257));
}

static double sumOfSquares(const std::vector<float> &values) {
  double sum = 0;
  for (float value : values)
    sum += double(value) * double(value);
  return sum;
}

/// [256, 256] with the singular values `singular`: a diagonal rotated on both
/// sides.
static std::vector<float> matrixWith(const std::vector<float> &singular) {
  std::vector<float> matrix(256 * 256), turned(256 * 256);
  for (size_t i = 0; i < singular.size(); ++i)
    matrix[i * 257] = singular[i];
  rotateRows(matrix);
  for (size_t i = 0; i < 256; ++i)
    for (size_t j = 0; j < 256; ++j)
      turned[j * 256 + i] = matrix[i * 256 + j];
  rotateRows(turned);
  return turned;
}

// What is left is what no matrix of that rank can take, but for a rounding to
// bf16; and the bytes do not depend on the number of threads.
TEST(LowRank, LeavesTheSmallestSingularValues) {
  std::vector<float> singular(256);
  double all = 0, rest = 0;
  for (size_t i = 0; i < singular.size(); ++i) {
    singular[i] = 10 * std::pow(0.8f, float(i)) + 0.05f;
    all += double(singular[i]) * double(singular[i]);
    rest += i < 16 ? 0 : double(singular[i]) * double(singular[i]);
  }
  std::vector<float> matrix = matrixWith(singular);
  EXPECT_NEAR(sumOfSquares(matrix) / all, 1, 1e-5);
  LowRankPair pair = fitLowRank(matrix, 256, 256, 16, Threads(1));
  EXPECT_EQ(pair.a.size(), 256u * 16);
  EXPECT_EQ(pair.b.size(), 256u * 16);
  std::vector<float> left = matrix;
  addLowRank(pair, 256, 256, 16, -1, Threads(2), left);
  EXPECT_NEAR(sumOfSquares(left), rest, 1e-5 * all + 0.01 * rest);
  LowRankPair other = fitLowRank(matrix, 256, 256, 16, Threads(3));
  EXPECT_EQ(other.a, pair.a);
  EXPECT_EQ(other.b, pair.b);
}

// A matrix of less rank than asked for, and none at all.
TEST(LowRank, MeetsDegenerateMatrices) {
  std::vector<float> zero(40 * 24);
  LowRankPair pair = fitLowRank(zero, 40, 24, 8, Threads(1));
  addLowRank(pair, 40, 24, 8, 1, Threads(1), zero);
  EXPECT_EQ(sumOfSquares(zero), 0);
  std::vector<float> one(40 * 24);
  for (size_t i = 0; i < one.size(); ++i)
    one[i] = float(i / 24 % 5) * float(i % 24 % 3);
  double before = sumOfSquares(one);
  pair = fitLowRank(one, 40, 24, 4, Threads(1));
  addLowRank(pair, 40, 24, 4, -1, Threads(1), one);
  EXPECT_LT(sumOfSquares(one), 1e-4 * before);
}

//===----------------------------------------------------------------------===//
// Slabs
//===----------------------------------------------------------------------===//

namespace {
class LowBitSlabTest : public SlabFixture {
protected:
  void SetUp() override {
    // Columns that stick out, as activations make them; a part of low rank; and
    // a layer that cannot be rotated.
    std::vector<float> outliers = gaussian(192 * 512, 5), odd = gaussian(96 * 160, 6);
    std::vector<float> u = gaussian(192 * 4, 7), v = gaussian(4 * 512, 8);
    for (size_t i = 0; i < outliers.size(); ++i) {
      for (size_t r = 0; r < 4; ++r)
        outliers[i] += 30 * u[i / 512 * 4 + r] * v[r * 512 + i % 512];
      outliers[i] *= i % 512 % 97 == 5 ? 12.0f : 1.0f;
    }
    model_["a.fc.weight"] = tensorOf({192, 512}, ElementType::f32, outliers);
    model_["b.fc.weight"] = tensorOf({96, 160}, ElementType::bf16, odd);
  }

  BuildReport build(bool rotated, int64_t rank, int threads = 2) const {
    return SlabFixture::build({.scheme = SlabScheme::Int4Group, .rotated = rotated, .rank = rank}, threads);
  }

  /// Changes the manifest and opens.
  template <typename Change> void refuse(Change change, const char *sentence) const {
    Json manifest = Json::parse(readText(manifestPath()));
    Json layer = manifest["layers"][0];
    change(manifest["layers"][0]);
    manifest.erase(manifestHashKey);
    std::ofstream(manifestPath()) << manifest.dump();
    Slab slab(slabPath());
    EXPECT_ERROR(slab.open(), SlabInvalid, sentence);
    manifest["layers"][0] = layer;
    std::ofstream(manifestPath()) << manifest.dump();
  }
};
} // namespace

// Each makes the weight with outliers better; the layer that cannot be rotated
// is stored plainly, and the report says so.
TEST_F(LowBitSlabTest, MakesTheErrorSmaller) {
  std::vector<double> errors;
  for (auto [rotated, rank] : {std::pair(false, 0), {true, 0}, {false, 16}, {true, 16}}) {
    BuildReport report = build(rotated, rank);
    ASSERT_EQ(report.layers.size(), 2u);
    EXPECT_EQ(report.layers[0].rotated, rotated);
    EXPECT_FALSE(report.layers[1].rotated);
    EXPECT_EQ(report.layers[0].rank, rank);
    EXPECT_EQ(report.notRotated, rotated ? std::vector<std::string>{"b.fc"} : std::vector<std::string>());
    EXPECT_EQ(report.json()["not_rotated"], report.notRotated);
    EXPECT_EQ(report.json()["per_layer"][0]["rotated"], rotated);
    EXPECT_EQ(report.layers[0].size.lowRank, 2u * uint64_t(rank) * (192 + 512));
    errors.push_back(report.layers[0].error.relRmse);
    // The reported error is that of what is served.
    auto slab = open(SlabVerify::Full);
    std::vector<float> served = dequantized(*slab, "a.fc.weight"), weight = valuesOf(model_["a.fc.weight"]);
    double error = 0;
    for (size_t i = 0; i < served.size(); ++i)
      error += (double(served[i]) - double(weight[i])) * (double(served[i]) - double(weight[i]));
    EXPECT_NEAR(std::sqrt(error / sumOfSquares(weight)) / errors.back(), 1, 1e-3);
    EXPECT_EQ(slab->layer("a.fc").rotation, rotated ? std::optional<std::string>("hadamard_256") : std::nullopt);
    EXPECT_EQ(slab->isRestored("a.fc.weight"), rotated || rank);
    EXPECT_EQ(slab->isRestored("b.fc.weight"), rank > 0);
  }
  EXPECT_LT(errors[1], 0.8 * errors[0]);
  EXPECT_LT(errors[2], 0.9 * errors[0]);
  EXPECT_LT(errors[3], 0.9 * errors[1]);
}

// W' = Q R + A B from the stored tensors, computed the slow way.
TEST_F(LowBitSlabTest, ReadsWhatIsStored) {
  build(true, 8);
  auto slab = open(SlabVerify::Full);
  std::vector<float> values = dequantized(*slab, "a.fc.weight");
  std::span<const std::byte> codes = slab->mapped("a.fc.qweight"), scales = slab->mapped("a.fc.wscales");
  auto bf16 = [](std::span<const std::byte> bytes, size_t at) {
    uint16_t bits;
    std::memcpy(&bits, &bytes[2 * at], 2);
    return double(bf16ToFloat(bits));
  };
  std::span<const std::byte> a = slab->mapped("a.fc.lowrank_a"), b = slab->mapped("a.fc.lowrank_b");
  ASSERT_EQ(a.size(), 2u * 192 * 8);
  for (size_t row : {0u, 100u, 191u})
    for (size_t j : {0u, 255u, 300u, 511u}) {
      double sum = 0;
      for (size_t i = j / 256 * 256; i < j / 256 * 256 + 256; ++i) {
        double q = int4Code(&codes[row * 256], int64_t(i)) * bf16(scales, i / 64 * 192 + row);
        sum += q * (__builtin_popcountll(i % 256 & j % 256) % 2 ? -0.0625 : 0.0625);
      }
      for (size_t r = 0; r < 8; ++r)
        sum += bf16(a, row * 8 + r) * bf16(b, r * 512 + j);
      EXPECT_NEAR(values[row * 512 + j], sum, 1e-6);
    }
}

// Rotation spreads a NaN over 256 columns; what is named is where it was.
TEST_F(LowBitSlabTest, NamesTheColumnThatIsNotFinite) {
  std::vector<float> values = gaussian(192 * 512, 5);
  values[7 * 512 + 300] = std::numeric_limits<float>::quiet_NaN();
  model_["a.fc.weight"] = tensorOf({192, 512}, ElementType::f32, values);
  for (int64_t rank : {0, 4})
    EXPECT_ERROR(build(true, rank), NonFinite, "layer \"a.fc\", row 7, column 300");
}

TEST_F(LowBitSlabTest, DoesNotDependOnThreads) {
  build(true, 8, 1);
  std::string one = readText(slabPath());
  build(true, 8, 3);
  EXPECT_EQ(readText(slabPath()), one);
}

// The link carries what is stored, and every device restores the same bits.
TEST_F(LowBitSlabTest, ServesTheSameBitsEverywhere) {
  for (auto [rotated, rank] : {std::pair(true, 0), {false, 8}, {true, 8}}) {
    build(rotated, rank);
    auto slab = open(SlabVerify::Full);
    for (const std::string &spec : slabDevices())
      for (ElementType element : {ElementType::f32, ElementType::bf16}) {
        DeviceRef device = Device::open(spec);
        SlabServer server(device, slab);
        server.readAhead({"a.fc.weight", "b.fc.weight"});
        for (std::string name : {"a.fc.weight", "b.fc.weight"}) {
          TensorDesc dense(slab->desc(name).shape, element);
          std::vector<std::byte> expected(dense.spanBytes());
          slab->copyDequantized(name, element, expected);
          Tensor host = toHost(server.serve(name, std::make_shared<const TensorDesc>(dense)));
          EXPECT_EQ(std::vector(host.bytes(), host.bytes() + expected.size()), expected) << name << " on " << spec;
        }
        uint64_t link = slab->layerBytes("a.fc.weight") + slab->layerBytes("b.fc.weight");
        EXPECT_EQ(server.takeTelemetry().bytesH2d, device->hasUnifiedMemory() ? 0 : link);
      }
  }
}

// Codes that are not the weight are given to nobody who might take them for it.
TEST_F(LowBitSlabTest, GivesNoCodesForTheWeight) {
  build(true, 8);
  auto slab = open(SlabVerify::Full);
  DeviceRef device = Device::open("cpu");
  SlabServer server(device, slab);
  auto codes = std::make_shared<const TensorDesc>(
      TensorDesc({192, 512}, ElementType::bf16, Layout{.storage = StorageType::Int4Group64}));
  EXPECT_ERROR(server.serve("a.fc.weight", codes), Unsupported, "is rotated or has a low-rank product");
  EXPECT_ERROR(slab->loadLayer(device, "a.fc.weight"), Unsupported, "its codes alone are not the weight");
  EXPECT_FALSE(isQuantized(server.storedDesc("a.fc.weight").layout.storage));
}

// x goes to the codes: rotated before the product, or its derivative after it;
// the low-rank product is a second adapter.
TEST_F(LowBitSlabTest, MultipliesFused) {
  for (auto [rotated, rank] : {std::pair(true, 0), {false, 8}, {true, 8}}) {
    build(rotated, rank);
    auto slab = open(SlabVerify::Full);
    std::vector<float> w = dequantized(*slab, "a.fc.weight");
    for (const std::string &spec : slabDevices()) {
      DeviceRef device = Device::open(spec);
      SlabServer server(device, slab);
      FusedWeight weight = server.serveFused("a.fc.weight");
      EXPECT_EQ(weight.rotated, rotated);
      EXPECT_EQ(weight.residual.has_value(), rank > 0);
      auto product = [&](bool transposed) {
        int64_t depth = transposed ? 192 : 512, columns = transposed ? 512 : 192;
        std::vector<float> values = gaussian(size_t(5 * depth), 9);
        Tensor x =
            toLayout(device, tensorOf({5, depth}, ElementType::f32, values), TensorDesc({5, depth}, ElementType::f32));
        Tensor y = transposed ? fusedLinearGrad(device, x, weight) : fusedLinear(device, x, weight);
        std::vector<float> found = valuesOf(toHost(y));
        ASSERT_EQ(found.size(), size_t(5 * columns));
        for (int64_t i = 0; i < 5; ++i)
          for (int64_t j = 0; j < columns; ++j) {
            double sum = 0, size = 0;
            for (int64_t l = 0; l < depth; ++l) {
              double term =
                  double(values[size_t(i * depth + l)]) * double(w[size_t(transposed ? l * 512 + j : j * 512 + l)]);
              sum += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(found[size_t(i * columns + j)], sum, 1e-5 * size) << spec;
          }
      };
      product(false);
      product(true);
    }
  }
}

TEST_F(LowBitSlabTest, RefusesWhatTheManifestCannotMean) {
  build(true, 8);
  refuse([](Json &layer) { layer["rotation"] = "dct"; }, "unsupported quant_scheme \"int4_group\" with quant_bits 4, "
                                                         "group 64, rotation \"dct\", rank 8");
  refuse([](Json &layer) { layer["group"] = 48; }, "unsupported quant_scheme");
  refuse([](Json &layer) { layer["rank"] = 193; }, "padded to pad_k 64, group 64, rotation \"hadamard_256\", rank 193");
  refuse([](Json &layer) { layer["rank"] = 4; },
         "\"a.fc.lowrank_a\" is BF16[192,8], the manifest declares BF16[192,4]");
  refuse([](Json &layer) { layer.erase("lowrank_b_key"); }, "no lowrank_a_key and lowrank_b_key");
  refuse([](Json &layer) { layer["lowrank_a_key"] = "b.fc.qweight"; }, "\"b.fc.qweight\" is U8");
}

TEST(LowBitConfig, NamesWhatDoesNotGoTogether) {
  auto refuse = [](const char *text, const char *sentence) {
    Json section = Json::parse(text);
    EXPECT_ERROR(
        {
          ConfigReader reader(section, "squareq");
          SquareQConfig::read(reader);
        },
        ConfigInvalid, sentence);
  };
  refuse(R"({"rotation": "hadamard_256"})", "only int4_group is rotated");
  refuse(R"({"scheme": "fp8_e4m3_row", "rank": 4})", "only int4_group has a low-rank product");
  refuse(R"({"scheme": "int4_group", "rotation": "fourier"})", "hadamard_256");
  refuse(R"({"scheme": "int4_group", "rank": -1})", "rank");
  refuse(R"({"scheme": "int4_group", "rotation": "hadamard_256", "serve": "fused"})", "served by dequant");
  Json good = Json::parse(R"({"scheme": "int4_group", "rotation": "hadamard_256", "rank": 32})");
  ConfigReader reader(good, "squareq");
  SquareQConfig config = SquareQConfig::read(reader);
  EXPECT_TRUE(config.form().rotated);
  EXPECT_EQ(config.form().rank, 32);
}
