//===- CudaCodesTest.cpp - products of cuda:N that read codes -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Held to what QuantizedMatmulTest holds the CPU's engine to, sums in double; in each of the
// ways in which a GPU makes such a product (QuantizedProducts.h).
//
//===----------------------------------------------------------------------===//

#include "../Engine/CodedWeight.h"
#include "CudaSpecs.h"
#include "Sample.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <span>
#include <tuple>

using namespace segue;
using namespace segue::test;

namespace {
/// Bytes in the device's memory, `skipped` of them behind where a tensor begins.
class Placed {
public:
  Placed(const DeviceRef &device, const void *data, uint64_t bytes, uint64_t skipped)
      : device_(device), tensor_(Tensor::empty(device, TensorDesc({int64_t(bytes + skipped)}, ElementType::i8))),
        bytes_(bytes), skipped_(skipped) {
    device->copy(at(), data, bytes);
  }
  std::byte *at() const { return tensor_.bytes() + skipped_; }
  void read(void *to) const { device_->copy(to, at(), bytes_); }

private:
  DeviceRef device_;
  Tensor tensor_;
  uint64_t bytes_, skipped_;
};

class CudaCodesTest : public testing::TestWithParam<std::string> {
protected:
  /// Runs the product of `spec` outside of a body and within one, and expects sums that are off by `error` of the
  /// magnitudes that were added, and the same bits.
  void check(const QuantizedMatmulSpec &spec, double error, bool isAligned = true) {
    ASSERT_EQ(spec.findProblem(), "");
    SCOPED_TRACE(testing::Message() << spec.rows << " x " << spec.out << " x " << spec.in << ", " << name(spec.storage)
                                    << (spec.transposed ? " transposed, " : ", ") << name(spec.x) << " to "
                                    << name(spec.y) << (isAligned ? "" : ", not aligned"));
    CodedWeight weight(spec, 7);
    Values x(spec.x, std::max<int64_t>(1, spec.rows * spec.xStride), 1);
    Values y(spec.y, std::max<int64_t>(1, spec.rows * spec.yStride), 2), before = y;
    Values bias(spec.bias, std::max<int64_t>(1, spec.columns()), 3);
    for (int64_t i = 0; spec.x == ElementType::f32 && i < x.size(); ++i)
      x.set(i, float(x.at(i)) * 0.7310586f); // sums of the values as they are would be exact
    auto placed = [&](const Values &values) {
      uint64_t bytes = values.bytes().size();
      return Placed(device, values.bytes().data(), bytes, isAligned ? 0 : bytes / uint64_t(values.size()));
    };
    Placed xt = placed(x), yt = placed(y), biasT = placed(bias);
    Placed zeros(device, weight.zero.data(), weight.zero.size() * 4, 0);
    Placed codes(device, weight.codes.data(), weight.codes.size(), isAligned ? 0 : 1);
    Placed scales(device, weight.scales(), weight.group ? weight.groupScale.size() * 2 : weight.scale.size() * 4, 0);
    auto plan = device->engine().planQuantizedMatmul(spec);
    auto run = [&] {
      plan->run({.x = xt.at(), .codes = codes.at(), .scales = scales.at(),
                 .zeroPoints = spec.hasZeroPoints ? zeros.at() : nullptr,
                 .bias = spec.hasBias ? biasT.at() : nullptr, .y = yt.at()});
    };
    uint64_t calls = device->engine().fusedCalls();
    run();
    yt.read(y.data());
    expectProduct(weight, x, bias, before, y, error);
    std::vector<uint8_t> first = y.bytes();
    device->copy(yt.at(), before.bytes().data(), before.bytes().size());
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, Work{run, {}, "test"})));
    yt.read(y.data());
    EXPECT_EQ(y.bytes(), first) << "another run gives other bits";
    EXPECT_EQ(device->engine().fusedCalls() - calls, 2u);
  }
  std::string describe(const QuantizedMatmulSpec &spec) {
    return device->engine().planQuantizedMatmul(spec)->describe();
  }

  DeviceRef device = Device::open(GetParam());
};

constexpr StorageType storages[] = {StorageType::Int8Row, StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row,
                                    StorageType::Int4Group32, StorageType::Int4Group64};

QuantizedMatmulSpec specOf(int64_t rows, int64_t out, int64_t in, StorageType storage, bool transposed) {
  QuantizedMatmulSpec spec{.rows = rows, .out = out, .in = in, .codeStride = (in + 63) / 64 * 64};
  spec.storage = storage;
  spec.transposed = transposed;
  spec.xStride = spec.depth();
  spec.yStride = spec.columns();
  return spec;
}
} // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, CudaCodesTest, testing::Values(cudaSpecs().front()));

// Both forms, all types, extents of 0 and 1 and around tiles, warps and slices, padded rows.
TEST_P(CudaCodesTest, AgreesWithLoops) {
  using enum ElementType;
  int64_t extents[][3] = {{1, 1, 1},    {3, 33, 17}, {8, 9, 600}, {9, 70, 130},
                          {70, 66, 64}, {0, 8, 8},   {5, 7, 0},   {2, 0, 5}};
  for (auto [rows, out, in] : extents)
    for (bool transposed : {false, true})
      for (StorageType storage : storages)
        for (auto [x, y] : {std::pair{f32, f32}, {bf16, bf16}, {bf16, f32}, {f16, f16}}) {
          QuantizedMatmulSpec spec = specOf(rows, out, in, storage, transposed);
          spec.hasZeroPoints = isRowStorage(storage) && (rows + out + int64_t(x)) % 2;
          spec.x = x;
          spec.y = y;
          spec.hasBias = rows % 3 != 0;
          spec.bias = rows % 2 ? y : f32;
          spec.xStride += 3;
          spec.yStride += 2;
          check(spec, tolerance(y));
          if (HasFatalFailure())
            return;
        }
}

// Codes, operands and rows that begin at no multiple of what an access reads at once.
TEST_P(CudaCodesTest, ReadsWhatIsNotAligned) {
  for (StorageType storage : storages)
    for (bool transposed : {false, true})
      for (int64_t rows : {7, 10}) {
        QuantizedMatmulSpec spec = specOf(rows, 37, 67, storage, transposed);
        if (isRowStorage(storage))
          spec.codeStride = 67;
        check(spec, tolerance(ElementType::f32), /*isAligned=*/false);
      }
}

// Products that are large beside the workspace, whose last panel is narrower, and one whose sums do not fit into it.
TEST_P(CudaCodesTest, MultipliesLargeProductsByPanels) {
  using enum ElementType;
  device = Device::open(GetParam() + ",panels=256KiB");
  for (auto [rows, out, sumsFit] : {std::tuple(150, 420, true), {1100, 70, false}})
    for (bool transposed : {false, true})
      for (StorageType storage : storages)
        for (auto [x, y] : {std::pair{f32, f32}, {bf16, bf16}, {bf16, f32}, {f16, f16}}) {
          if (!sumsFit && (transposed || !isRowStorage(storage)))
            continue; // they have none
          QuantizedMatmulSpec spec = specOf(rows, out, 141, storage, transposed);
          spec.hasZeroPoints = storage == StorageType::Fp8E4M3Row || storage == StorageType::Int8Row;
          spec.x = x;
          spec.y = y;
          spec.hasBias = storage != StorageType::Fp8E5M2Row;
          spec.bias = x == f16 ? f32 : y;
          spec.yStride += 2;
          bool scalesLast = !transposed && isRowStorage(storage) && (sumsFit || y == f32);
          EXPECT_EQ(describe(spec).starts_with("codes by panels of "), scalesLast || x != f16) << describe(spec);
          // bf16 rounds what a panel holds, but for codes and what whole numbers are taken from.
          bool isExact = scalesLast && (!spec.hasZeroPoints || storage == StorageType::Int8Row);
          check(spec, tolerance(y) + (x == bf16 && !isExact ? 0x1p-9 : 0));
          if (HasFatalFailure())
            return;
        }
  EXPECT_TRUE(describe(specOf(150, 420, 141, storages[0], false)).starts_with("codes by panels of 320,"));
}

/// Plans a product on a device of `spec` with a workspace of 256 KiB: it has one size, which is known once a plan has
/// wanted it, whether there is room or not, and lies in the books.
static void expectForeseen(DeviceRef &device, const std::string &spec, const QuantizedMatmulSpec &product) {
  device = Device::open(spec + ",panels=256KiB");
  uint64_t before = device->memory().liveBytes(Space::DeviceDram);
  EXPECT_EQ(device->bytesForPrograms(), 0u);
  device->memory().setBudget(Space::DeviceDram, before + (128 << 10));
  EXPECT_THROW(device->engine().planQuantizedMatmul(product), OutOfMemory);
  EXPECT_EQ(device->bytesForPrograms(), 256u << 10);
  device->memory().setBudget(Space::DeviceDram, before + (256 << 10));
  auto plan = device->engine().planQuantizedMatmul(product);
  EXPECT_EQ(device->bytesForPrograms(), 0u);
  QuantizedMatmulSpec larger = product;
  larger.rows *= 2;
  auto other = device->engine().planQuantizedMatmul(larger);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram) - before, 256u << 10) << "one for all";
}

TEST_P(CudaCodesTest, ForeseesItsWorkspace) {
  QuantizedMatmulSpec spec = specOf(150, 420, 141, StorageType::Int8Row, false);
  expectForeseen(device, GetParam(), spec);
  device = Device::open(GetParam() + ",panels=0");
  EXPECT_EQ(describe(spec), "codes by tiles");
}

//===----------------------------------------------------------------------===//
// Codes with codes
//===----------------------------------------------------------------------===//

namespace {
/// The numbers of x as their codes give them, rounded row by row as quantizeRows says, in another way.
struct RoundedRows {
  /// `factors`, if there are some, are multiplied with columns first, and taken out of what is returned.
  RoundedRows(const QuantizedMatmulSpec &spec, const Values &x, std::span<const float> factors)
      : numbers(ElementType::f32, x.size(), 0), steps(size_t(spec.rows)) {
    bool isInt8 = spec.storage == StorageType::Int8Row;
    auto factor = [&](int64_t l) { return factors.empty() ? 1.0f : factors[size_t(l)]; };
    for (int64_t i = 0; i < spec.rows; ++i) {
      auto at = [&](int64_t l) { return float(x.at(i * spec.xStride + l)) * factor(l); };
      float most = 0;
      for (int64_t l = 0; l < spec.depth(); ++l)
        most = std::max(most, std::fabs(at(l)));
      float scale = most / (isInt8 ? 127.0f : 448.0f), inverse = scale > 0 ? 1 / scale : 0;
      steps[size_t(i)] = scale;
      for (int64_t l = 0; l < spec.depth(); ++l) {
        StorageType storage = isInt8 ? StorageType::Int8Row : StorageType::Fp8E4M3Row;
        float code = isInt8 ? std::nearbyint(at(l) * inverse)
                            : codeToFloat(floatToCode(std::clamp(at(l) * inverse, -448.0f, 448.0f), storage), storage);
        numbers.set(i * spec.xStride + l, code * scale / factor(l));
      }
    }
  }

  Values numbers;
  /// The scales of the rows.
  std::vector<float> steps;
};

/// Rows of all kinds: of one magnitude; with one number a thousand times the others; zeros; tiny ones.
Values rowsOfAllKinds(const QuantizedMatmulSpec &spec) {
  Values x(spec.x, std::max<int64_t>(1, spec.rows * spec.xStride), 1);
  for (int64_t i = 0; i < spec.rows; ++i)
    for (int64_t l = 0; l < spec.depth(); ++l) {
      float number = float(x.at(i * spec.xStride + l)) * 0.7310586f, tiny = spec.x == ElementType::f16 ? 1e-4f : 1e-20f;
      if (i % 5 == 1 && l == spec.depth() / 2)
        number = 1000;
      x.set(i * spec.xStride + l, i % 5 == 2 ? 0 : i % 5 == 3 ? number * tiny : number);
    }
  return x;
}

class CudaCodeOperandsTest : public CudaCodesTest {
protected:
  void SetUp() override {
    device = Device::open(GetParam() + ",panels=256KiB,codes=on");
    storages = {StorageType::Int8Row};
    for (StorageType storage : {StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row}) // no GPU before sm_89 has them
      if (describe(specOf(150, 432, 144, storage, false)).starts_with("codes by codes, "))
        storages.push_back(storage);
  }

  /// Runs the product of `spec` with `x`.
  Values run(const QuantizedMatmulSpec &spec, const CodedWeight &weight, const Values &x, uint64_t skipped = 0) {
    Values y(spec.y, std::max<int64_t>(1, spec.rows * spec.yStride), 2), bias(spec.bias, spec.columns(), 3);
    auto placed = [&](const auto &bytes, uint64_t skip = 0) {
      return Placed(device, bytes.data(), bytes.size() * sizeof(bytes[0]), skip);
    };
    Placed xt = placed(x.bytes()), yt = placed(y.bytes()), biasT = placed(bias.bytes()), zeros = placed(weight.zero),
           codes = placed(weight.codes, skipped), scales = placed(weight.scale);
    QuantizedMatmulArgs args{.x = xt.at(), .codes = codes.at(), .scales = scales.at(),
                             .zeroPoints = spec.hasZeroPoints ? zeros.at() : nullptr,
                             .bias = spec.hasBias ? biasT.at() : nullptr, .y = yt.at()};
    auto plan = device->engine().planQuantizedMatmul(spec);
    auto runOnce = [&] {
      Work work{[&] { plan->run(args); }, {}, "test"};
      device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(work))));
      yt.read(y.data());
    };
    runOnce();
    std::vector<uint8_t> first = y.bytes();
    runOnce();
    EXPECT_EQ(y.bytes(), first) << "another run gives other bits";
    return y;
  }

  /// The forms of weights that are multiplied as codes.
  std::vector<StorageType> storages;
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, CudaCodeOperandsTest, testing::Values(cudaSpecs().front()));

// The sums are those of the rounded rows: exact ones of INT8, and of FP8 as the tensor cores have them (a GPU keeps
// fewer bits than f32 between two steps).
TEST_P(CudaCodeOperandsTest, MultipliesCodesWithCodes) {
  using enum ElementType;
  device = Device::open(GetParam() + ",panels=512KiB,codes=on");
  uint64_t number = 0;
  for (auto [rows, columns, depth, pieces] : {std::tuple(300, 432, 80, "256 x 432"), {150, 1200, 64, "150 x 832"}})
    for (bool transposed : {false, true})
      for (StorageType storage : storages)
        for (auto [xType, yType] : {std::pair{f32, f32}, {bf16, bf16}, {bf16, f32}, {f16, f16}}) {
          if (!isDrawn(number++, 3))
            continue;
          auto [out, in] = transposed ? std::pair(depth, columns) : std::pair(columns, depth);
          QuantizedMatmulSpec spec = specOf(rows, out, in, storage, transposed);
          spec.hasZeroPoints = (out + int64_t(xType)) % 3 == 0;
          spec.x = xType;
          spec.y = yType;
          spec.hasBias = rows == 150;
          spec.bias = xType == f16 ? f32 : yType;
          spec.xStride += 3;
          spec.yStride += 2;
          ASSERT_TRUE(describe(spec).starts_with("codes by codes, " + std::string(transposed ? "" : pieces)))
              << describe(spec);
          CodedWeight weight(spec, 7);
          Values x = rowsOfAllKinds(spec);
          std::span<const float> factors;
          if (transposed)
            factors = weight.scale;
          RoundedRows rounded(spec, x, factors);
          Values y = run(spec, weight, x), bias(spec.bias, spec.columns(), 3);
          SCOPED_TRACE(testing::Message()
                       << describe(spec) << ", " << name(storage) << (transposed ? " transposed" : ""));
          double sums = storage == StorageType::Int8Row ? 0 : 0x1p-10;
          expectProduct(weight, rounded.numbers, bias, Values(yType, spec.rows * spec.yStride, 2), y,
                        tolerance(yType) + sums);
          if (HasFatalFailure())
            return;
        }
}

// What rounding costs: each number of x is off by half a step of its row's scale (INT8), or by a part of itself (E4M3).
TEST_P(CudaCodeOperandsTest, IsOffByWhatRoundingExplains) {
  for (StorageType storage : storages)
    for (bool transposed : {false, true}) {
      QuantizedMatmulSpec spec = specOf(150, 432, 144, storage, transposed);
      CodedWeight weight(spec, 7);
      Values x = rowsOfAllKinds(spec), y = run(spec, weight, x);
      RoundedRows rounded(spec, x, transposed ? std::span<const float>(weight.scale) : std::span<const float>());
      for (int64_t i = 0; i < spec.rows; ++i)
        for (int64_t j = 0; j < spec.columns(); ++j) {
          double sum = 0, off = 0, size = 1e-30;
          for (int64_t l = 0; l < spec.depth(); ++l) {
            double number = x.at(i * spec.xStride + l), w = transposed ? weight.at(l, j) : weight.at(j, l);
            double step = rounded.steps[size_t(i)] / (transposed ? weight.scale[size_t(l)] : 1);
            sum += number * w;
            size += std::fabs(number * w);
            off += std::fabs(w) *
                   (storage == StorageType::Int8Row ? step / 2 : std::max(std::fabs(number) / 16, step / 1024));
          }
          ASSERT_NEAR(y.at(i * spec.yStride + j), sum, off * 1.001 + size * 0x1p-10) << "at " << i << ", " << j;
        }
    }
}

// The largest numbers there are, an infinity, NaN: as floats give them, but that a row with an infinity is NaN.
TEST_P(CudaCodeOperandsTest, KeepsWhatIsNoNumber) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  for (StorageType storage : storages)
    for (bool transposed : {false, true}) {
      QuantizedMatmulSpec spec = specOf(150, 432, 144, storage, transposed);
      spec.hasBias = true;
      spec.hasZeroPoints = true;
      CodedWeight weight(spec, 7);
      Values x(spec.x, spec.rows * spec.xStride, 1), bias(spec.bias, spec.columns(), 3);
      for (int64_t l = 0; l < spec.depth(); ++l) {
        x.set(3 * spec.xStride + l, 0.0f);
        x.set(4 * spec.xStride + l, l ? 0.0f : 1e33f);
        x.set(5 * spec.xStride + l, 1.2e-36f); // a scale of it is denormal
        x.set(6 * spec.xStride + l, l ? 0.0f : most);
      }
      x.set(1 * spec.xStride + 5, infinity);
      x.set(2 * spec.xStride + 5, std::numeric_limits<float>::quiet_NaN());
      Values y = run(spec, weight, x);
      for (int64_t j = 0; j < spec.columns(); ++j) {
        auto at = [&](int64_t i) { return y.at(i * spec.yStride + j); };
        EXPECT_TRUE(std::isfinite(at(0)));
        EXPECT_TRUE(std::isnan(at(1)));
        EXPECT_TRUE(std::isnan(at(2)));
        EXPECT_EQ(at(3), bias.at(j));
        EXPECT_EQ(at(5), bias.at(j));
        double wanted = 1e33 * (transposed ? weight.at(0, j) : weight.at(j, 0));
        ASSERT_NEAR(at(4), wanted, std::fabs(wanted) * 1e-5 + 1) << j;
        EXPECT_FALSE(std::isnan(at(6))) << "a sum that is infinite in floats may be so";
      }
    }
}

// A sum of INT8 of the greatest depth, of the greatest codes, fits into 32 bits; one more goes another way.
TEST_P(CudaCodeOperandsTest, Int8IsAsDeepAsInt32Allows) {
  device = Device::open(GetParam() + ",panels=4MiB,codes=on");
  constexpr int64_t deepest = 1 << 17;
  QuantizedMatmulSpec spec = specOf(16, 48, deepest, StorageType::Int8Row, false);
  spec.x = ElementType::bf16;
  ASSERT_TRUE(describe(spec).starts_with("codes by codes, ")) << describe(spec);
  CodedWeight weight(spec, 7);
  std::ranges::fill(weight.codes, std::byte(0x80)); // -128, which files of others may hold
  std::ranges::fill(weight.scale, 1.0f);
  Values x(spec.x, spec.rows * spec.xStride, 1);
  for (int64_t i = 0; i < x.size(); ++i)
    x.set(i, 1.0f);
  Values y = run(spec, weight, x);
  for (int64_t i = 0; i < y.size(); ++i)
    ASSERT_EQ(y.at(i), -128.0 * deepest);
  spec.in = spec.codeStride = spec.xStride = deepest + 16;
  EXPECT_FALSE(describe(spec).starts_with("codes by codes, ")) << describe(spec);
}

// What the library does not multiply as codes goes as it does without the choice, and nothing does without it.
TEST_P(CudaCodeOperandsTest, IsByChoiceAndForWhatTheLibraryHas) {
  if (storages.size() == 1)
    GTEST_SKIP() << "this GPU multiplies no FP8";
  auto isByCodes = [&](auto change) {
    QuantizedMatmulSpec spec = specOf(150, 432, 144, StorageType::Fp8E4M3Row, false);
    change(spec);
    EXPECT_EQ(spec.findProblem(), "");
    return describe(spec).starts_with("codes by codes, ");
  };
  using Spec = QuantizedMatmulSpec;
  EXPECT_TRUE(isByCodes([](Spec &) {}));
  EXPECT_FALSE(isByCodes([](Spec &spec) { spec.rows = 8; }));
  EXPECT_FALSE(isByCodes([](Spec &spec) { spec.rows = 20; })) << "few terms";
  EXPECT_FALSE(isByCodes([](Spec &spec) { spec.out = spec.yStride = 440; }));
  EXPECT_FALSE(isByCodes([](Spec &spec) { spec.in = 140; })) << "what pads a row may be NaN";
  EXPECT_TRUE(isByCodes([](Spec &spec) { spec.in = 140, spec.storage = StorageType::Int8Row; }));
  EXPECT_FALSE(isByCodes([](Spec &spec) { spec.codeStride = 200; }));
  EXPECT_FALSE(isByCodes([](Spec &spec) { spec.storage = StorageType::Int4Group64; }));
  // Nothing is asked of extents by a copy of the weight.
  EXPECT_TRUE(isByCodes([](Spec &spec) { spec.out = 437, spec.in = 141, spec.transposed = true, spec.xStride = 437; }));
  device = Device::open(GetParam() + ",panels=256KiB");
  EXPECT_FALSE(isByCodes([](Spec &) {}));
  EXPECT_THROW(Device::open(GetParam() + ",codes=int8"), Error);
}

// Odd extents by the copy of the weight, with NaN in what pads its rows; and more tiles of it than a GPU has blocks.
TEST_P(CudaCodeOperandsTest, TransposesWeightsOfAnyExtents) {
  auto check = [&](const QuantizedMatmulSpec &spec) {
    ASSERT_TRUE(describe(spec).starts_with("codes by codes, ")) << describe(spec);
    CodedWeight weight(spec, 7);
    Values x = rowsOfAllKinds(spec), y = run(spec, weight, x), bias(spec.bias, spec.columns(), 3);
    RoundedRows rounded(spec, x, weight.scale);
    expectProduct(weight, rounded.numbers, bias, y, y, spec.storage == StorageType::Int8Row ? 2e-6 : 0x1p-10);
  };
  for (StorageType storage : storages)
    check(specOf(150, 437, 141, storage, true));
  device = Device::open(GetParam() + ",panels=1MiB,codes=on");
  check(specOf(40, 1200, 512, StorageType::Int8Row, true));
}

// A weight that begins where the library cannot read is multiplied by tiles, with x as it is.
TEST_P(CudaCodeOperandsTest, ReadsWeightsThatAreNotAligned) {
  QuantizedMatmulSpec spec = specOf(150, 432, 144, StorageType::Int8Row, false);
  CodedWeight weight(spec, 7);
  Values x = rowsOfAllKinds(spec), y = run(spec, weight, x, /*skipped=*/8), bias(spec.bias, spec.columns(), 3);
  expectProduct(weight, x, bias, y, y, 2e-6);
}

TEST_P(CudaCodeOperandsTest, ForeseesItsWorkspace) {
  expectForeseen(device, GetParam() + ",codes=on", specOf(150, 432, 144, StorageType::Int8Row, false));
}
