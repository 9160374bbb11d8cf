//===- FusedMatmulTest.cpp - programs that multiply with codes ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program whose Matmul reads a weight of codes, beside one that unpacks the
// weight first: y = x W'ᵀ + bias and dx = dy W', for every storage, on every
// device. The two sum in another order, so that a y differs by roundings of f32:
// by less than 2^-20 of the sum of the magnitudes of its terms here.
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Layout/GroupStorage.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <gtest/gtest.h>
#include <random>

using namespace segue;
using namespace segue::test;

static constexpr int64_t rows = 9, out = 24, in = 100;

static constexpr StorageType storages[] = {StorageType::Int8Row, StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row,
                                           StorageType::Int4Group32, StorageType::Int4Group64};

/// The weight as both programs declare it.
static TensorDesc weightDesc(StorageType storage, bool zeroPoints = false) {
  return TensorDesc({out, in}, ElementType::f32, Layout{.storage = storage, .zeroPoints = zeroPoints});
}

/// "run": y from x, w and bias; transposed: dx from dy and w. `fused`: the
/// product reads the codes.
static Binary makeProduct(StorageType storage, bool transposed, bool fused, bool zeroPoints = false) {
  TestFile file;
  schema::ProgramT &program = file.addProgram("run");
  TensorDesc desc = weightDesc(storage, zeroPoints);
  int64_t depth = transposed ? out : in, columns = transposed ? in : out;
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {rows, depth}), 0,
                         uint64_t(rows * depth) * 4);
  uint32_t index = addInput(program, "w", {out, in}, schema::ElementType::f32, schema::Role::frozen);
  program.inputs[index]->desc->layout->storage = schema::Storage(storage);
  program.inputs[index]->desc->layout->zero_points = zeroPoints;
  uint32_t w = addBuffer(program, schema::BufferKind::input, index, 0, desc.spanBytes());
  uint32_t bias =
      addBuffer(program, schema::BufferKind::input, addInput(program, "bias", {columns}), 0, uint64_t(columns) * 4);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {rows, columns}), 0,
                         uint64_t(rows * columns) * 4);
  auto codes = view(w, {out, in}, desc.strides());
  codes->storage = schema::Storage(storage);
  codes->zero_points = zeroPoints;
  schema::MatmulT matmul;
  matmul.a = view(x, {1, rows, depth}, {rows * depth, depth, 1});
  matmul.c = view(y, {1, rows, columns}, {rows * columns, columns, 1});
  matmul.bias = view(bias, {columns}, {1});
  if (fused) {
    matmul.b = std::move(codes);
    matmul.b_transposed = !transposed;
  } else {
    program.arenas.push_back(std::make_unique<schema::ArenaT>());
    program.arenas[0]->bytes = program.arenas[0]->lower_bound = out * in * 4;
    uint32_t dense = addBuffer(program, schema::BufferKind::arena, 0, 0, out * in * 4);
    schema::ToLayoutT unpack;
    unpack.source = std::move(codes);
    unpack.target = view(dense, {out, in}, {in, 1});
    addCommand(program, std::move(unpack));
    matmul.b = transposed ? view(dense, {1, out, in}, {out * in, in, 1}) : view(dense, {1, in, out}, {out * in, 1, in});
  }
  addCommand(program, std::move(matmul));
  return Binary::fromMemory(file.serialize(), {}, fused ? "fused.segue" : "unpacked.segue");
}

static Tensor random(const DeviceRef &device, TensorDesc desc, uint32_t seed) {
  std::mt19937 bits(seed);
  Tensor host = Tensor::onHost(device, desc.shape, ElementType::f32);
  for (uint64_t i = 0; i < host.elementCount(); ++i)
    host.data<float>()[i] = float(int32_t(bits())) * 0x1p-31f;
  return toLayout(device, host, desc);
}

static std::vector<float> valuesOf(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return {host.data<float>(), host.data<float>() + host.elementCount()};
}

namespace {
class FusedMatmulTest : public testing::TestWithParam<const char *> {};
} // namespace

INSTANTIATE_TEST_SUITE_P(All, FusedMatmulTest,
                         testing::Values("cpu:threads=2", "sim:latency=0s,link=1000GB/s,threads=1",
                                         "sim:latency=0s,link=1000GB/s,threads=1,adversarial=1",
                                         "sim:streams,latency=0s,link=1000GB/s,threads=1",
                                         "sim:streams,latency=0s,link=1000GB/s,threads=1,adversarial=1"),
                         [](const auto &info) { return "device" + std::to_string(info.index); });

TEST_P(FusedMatmulTest, AgreesWithUnpacking) {
  for (StorageType storage : storages)
    for (bool transposed : {false, true})
      for (bool zeroPoints : {false, true}) {
        if (zeroPoints && !isRowStorage(storage))
          continue;
        DeviceRef device = Device::open(GetParam());
        int64_t depth = transposed ? out : in, columns = transposed ? in : out;
        std::vector<Tensor> inputs{random(device, TensorDesc({rows, depth}, ElementType::f32), 1),
                                   random(device, weightDesc(storage, zeroPoints), 2),
                                   random(device, TensorDesc({columns}, ElementType::f32), 3)};
        auto run = [&](bool fused) {
          Binary binary = makeProduct(storage, transposed, fused, zeroPoints);
          return valuesOf(submit(device, binary.program("run"), inputs)[0]);
        };
        std::vector<float> fused = run(true);
        EXPECT_EQ(device->engine().fusedCalls(), 1u);
        std::vector<float> unpacked = run(false);
        EXPECT_EQ(device->engine().fusedCalls(), 1u);
        std::vector<float> x = valuesOf(inputs[0]), w = valuesOf(inputs[1]), bias = valuesOf(inputs[2]);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j) {
            double size = std::fabs(double(bias[size_t(j)]));
            for (int64_t l = 0; l < depth; ++l)
              size +=
                  std::fabs(double(x[size_t(i * depth + l)]) * double(w[size_t(transposed ? l * in + j : j * in + l)]));
            size_t at = size_t(i * columns + j);
            ASSERT_NEAR(fused[at], unpacked[at], size * 0x1p-20)
                << name(storage) << (transposed ? " transposed" : "") << " at " << i << ", " << j;
          }
      }
}

// The program holds no float copy of the weight: its scratch is empty, and the
// weight it declares is what is on the device.
TEST(FusedMatmul, HoldsNoFloats) {
  Binary fused = makeProduct(StorageType::Int8Row, false, true),
         unpacked = makeProduct(StorageType::Int8Row, false, false);
  EXPECT_EQ(fused.program("run").arenaBytes(), 0u);
  EXPECT_EQ(unpacked.program("run").arenaBytes(), uint64_t(out * in * 4));
}

static std::string refusal(void (*change)(schema::MatmulT &)) {
  TestFile file;
  schema::ProgramT &program = file.addProgram("run");
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {4, 8}), 0, 128);
  uint32_t w =
      addBuffer(program, schema::BufferKind::input, addInput(program, "w", {96}, schema::ElementType::i8), 0, 96);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {4, 2}), 0, 32);
  schema::MatmulT matmul;
  matmul.a = view(x, {1, 4, 8}, {32, 8, 1});
  matmul.b = view(w, {2, 8}, {8, 1});
  matmul.b->storage = schema::Storage::int8_row;
  matmul.b_transposed = true;
  matmul.c = view(y, {1, 4, 2}, {8, 2, 1});
  change(matmul);
  addCommand(program, std::move(matmul));
  try {
    Binary::fromMemory(file.serialize(), {}, "hostile.segue");
  } catch (const Error &error) {
    return error.what();
  }
  return "";
}

// Every rule of the operand is checked when the file is loaded.
TEST(FusedMatmul, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([](schema::MatmulT &) {}), "");
  auto expect = [](void (*change)(schema::MatmulT &), const char *sentence) {
    EXPECT_NE(refusal(change).find(sentence), std::string::npos) << refusal(change) << "\n" << sentence;
  };
  expect([](schema::MatmulT &m) { m.b_transposed = false; }, "the shapes of a, b and c do not fit together");
  expect([](schema::MatmulT &m) { m.b->shape = {2, 4}; }, "the shapes of a, b and c do not fit together");
  expect([](schema::MatmulT &m) { m.b->shape = {1, 2, 8}, m.b->strides = {16, 8, 1}; }, "3 dimensions, 2 needed");
  expect([](schema::MatmulT &m) { m.b->tile = {2, 2}; }, "the rows of codes of b are not contiguous");
  expect([](schema::MatmulT &m) { m.b->strides = {1, 2}; }, "the rows of codes of b are not contiguous");
  expect([](schema::MatmulT &m) { m.a->strides = {32, 1, 4}; }, "the rows of a are not contiguous");
  expect([](schema::MatmulT &m) { m.accumulate = true; }, "accumulates a product with codes");
  expect([](schema::MatmulT &m) { m.b->strides = {64, 1}; }, "b: 136 bytes at 0 of a buffer of 96");
  expect([](schema::MatmulT &m) { m.b->storage = schema::Storage::int4_group64; },
         "rows in int4_group64 storage are whole groups of 64");
  expect([](schema::MatmulT &m) { m.b->storage = schema::Storage(9); }, "storage 9 does not exist");
  expect([](schema::MatmulT &m) { m.b->storage = schema::Storage::element; }, "b: 2 dimensions, 3 needed");
  expect(
      [](schema::MatmulT &m) {
        m.b = view(0, {1, 8, 2}, {16, 2, 1});
        m.b_transposed = true;
      },
      "the shapes of a, b and c do not fit together");
}
