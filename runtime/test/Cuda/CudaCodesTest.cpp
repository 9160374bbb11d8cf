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
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <gtest/gtest.h>
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

// The workspace has one size, which is known once a plan has wanted it, and lies in the books.
TEST_P(CudaCodesTest, ForeseesItsWorkspace) {
  QuantizedMatmulSpec spec = specOf(150, 420, 141, StorageType::Int8Row, false);
  device = Device::open(GetParam() + ",panels=256KiB");
  uint64_t before = device->memory().liveBytes(Space::DeviceDram);
  EXPECT_EQ(device->bytesForPrograms(), 0u);
  device->memory().setBudget(Space::DeviceDram, before + (128 << 10));
  EXPECT_THROW(device->engine().planQuantizedMatmul(spec), OutOfMemory);
  EXPECT_EQ(device->bytesForPrograms(), 256u << 10);
  device->memory().setBudget(Space::DeviceDram, before + (256 << 10));
  auto plan = device->engine().planQuantizedMatmul(spec);
  EXPECT_EQ(device->bytesForPrograms(), 0u);
  spec.rows = 300;
  auto other = device->engine().planQuantizedMatmul(spec);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram) - before, 256u << 10) << "one for all";
  device = Device::open(GetParam() + ",panels=0");
  EXPECT_EQ(describe(spec), "codes by tiles");
}
