//===- OutputAlternativesTest.cpp - a producer writes what is wanted ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Producers that list layouts of their output, and readers that want another one
// than is declared: after two conversions the seam copies nothing, and every
// reader sees the same bits as before.
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

using Vector = std::vector<float>;
using Strides = std::vector<int64_t>;

static constexpr int64_t rows = 12, columns = 20, inner = 7;
static const Strides dense{columns, 1}, turned{1, rows}, padded{32, 1};

static uint64_t spanOf(const Strides &strides) {
  return uint64_t((rows - 1) * strides[0] + (columns - 1) * strides[1] + 1) * 4;
}

static std::unique_ptr<schema::LayoutT> layoutOf(const Strides &strides) {
  auto layout = std::make_unique<schema::LayoutT>();
  layout->strides = strides;
  return layout;
}

/// y = a b by a matmul, or a copy of x; y is laid by `declared`, and may be written
/// in `alternatives`.
static Binary makeProducer(bool matmul, const std::vector<Strides> &alternatives, const Strides &declared = dense) {
  TestFile file;
  schema::ProgramT &program = file.addProgram("produce");
  uint32_t a =
      addBuffer(program, schema::BufferKind::input, addInput(program, "a", {rows, inner}), 0, rows * inner * 4);
  uint32_t b =
      addBuffer(program, schema::BufferKind::input, addInput(program, "b", {inner, columns}), 0, inner * columns * 4);
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {rows, columns}), 0, spanOf(dense));
  uint32_t y =
      addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {rows, columns}), 0, spanOf(declared));
  program.outputs[0]->desc->layout = layoutOf(declared);
  for (const Strides &strides : alternatives)
    program.outputs[0]->alternatives.push_back(layoutOf(strides));
  if (matmul) {
    schema::MatmulT command;
    command.a = view(a, {1, rows, inner}, {rows * inner, inner, 1});
    command.b = view(b, {1, inner, columns}, {inner * columns, columns, 1});
    command.c = view(y, {1, rows, columns}, {rows * columns, declared[0], declared[1]});
    if (declared == turned) { // c' = b' a'
      command.a = view(b, {1, columns, inner}, {inner * columns, 1, columns});
      command.b = view(a, {1, inner, rows}, {rows * inner, 1, inner});
      command.c = view(y, {1, columns, rows}, {rows * columns, rows, 1});
    }
    addCommand(program, std::move(command));
  } else {
    schema::ToLayoutT command;
    command.source = view(x, {rows, columns}, dense);
    command.target = view(y, {rows, columns}, declared);
    addCommand(program, std::move(command));
  }
  return Binary::fromMemory(file.serialize(), {}, "producer.segue");
}

/// z = dense copy of y, which it wants by `wanted`.
static Binary makeReader(const std::string &name, const Strides &wanted) {
  TestFile file;
  schema::ProgramT &program = file.addProgram(name);
  uint32_t index = addInput(program, "y", {rows, columns});
  program.inputs[index]->desc->layout = layoutOf(wanted);
  uint32_t y = addBuffer(program, schema::BufferKind::input, index, 0, spanOf(wanted));
  uint32_t z =
      addBuffer(program, schema::BufferKind::output, addOutput(program, "z", {rows, columns}), 0, spanOf(dense));
  schema::ToLayoutT command;
  command.source = view(y, {rows, columns}, wanted);
  command.target = view(z, {rows, columns}, dense);
  addCommand(program, std::move(command));
  return Binary::fromMemory(file.serialize(), {}, name + ".segue");
}

namespace {
struct OutputAlternativesTest : testing::TestWithParam<const char *> {
  DeviceRef device = Device::open(GetParam());

  Tensor ramp(int64_t n, int64_t m) {
    Tensor host = Tensor::onHost(device, {n, m}, ElementType::f32);
    for (int64_t i = 0; i < n * m; ++i)
      host.data<float>()[i] = 1.0f / float(3 + (i * 7) % 31);
    return copyTo(device, host, TensorDesc(host.shape(), host.element()));
  }
  Tensor a = ramp(rows, inner), b = ramp(inner, columns), x = ramp(rows, columns);

  Tensor produce(const Binary &producer) { return submit(device, producer.program("produce"), {a, b, x})[0]; }
  Vector read(const Binary &reader, const std::string &name, const Tensor &y) {
    Tensor host = toHost(submit(device, reader.program(name), {y})[0]);
    return Vector(host.data<float>(), host.data<float>() + host.elementCount());
  }
  uint64_t conversions(const std::string &consumer) {
    uint64_t sum = 0;
    for (const StitchEdge &edge : stitchReport(*device).edges())
      if (edge.consumer.program == consumer)
        sum += edge.converted;
    return sum;
  }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Devices, OutputAlternativesTest,
                         testing::Values("cpu:threads=1", "sim:dram=16MiB", "sim:dram=16MiB,adversarial=8",
                                         "sim:streams,dram=16MiB",
                                         "sim:streams,dram=16MiB,adversarial=8"));

// Rows and columns change places, or rows are padded; by a matmul, which is
// turned, or by a copy: two conversions, then none, and the same bits.
TEST_P(OutputAlternativesTest, TheCopyAtARepeatedSeamGoes) {
  for (bool matmul : {true, false})
    for (const Strides &wanted : {turned, padded}) {
      SCOPED_TRACE(std::string(matmul ? "matmul" : "copy") + (wanted == turned ? ", turned" : ", padded"));
      Binary producer = makeProducer(matmul, {padded, turned}), reader = makeReader("read", wanted);
      stitchReport(*device).reset();
      Vector first;
      for (int step = 0; step < 6; ++step) {
        Tensor y = produce(producer);
        EXPECT_EQ(y.desc().strides(), step < 2 ? dense : wanted) << "step " << step;
        Vector z = read(reader, "read", y);
        if (!step)
          first = z;
        EXPECT_EQ(z, first) << "step " << step;
        EXPECT_EQ(conversions("read"), uint64_t(std::min(step + 1, 2))) << "step " << step;
      }
      stitchReport(*device).reset();
      read(reader, "read", produce(producer));
      EXPECT_EQ(conversions("read"), 0u);
      EXPECT_NE(stitchReport(*device).table().find("4 other edges"), std::string::npos)
          << stitchReport(*device).table();
    }
}

// An output that is declared by columns, whose reader wants rows: the same.
TEST_P(OutputAlternativesTest, ColumnsBecomeRows) {
  for (bool matmul : {true, false}) {
    SCOPED_TRACE(matmul ? "matmul" : "copy");
    Binary producer = makeProducer(matmul, {dense}, turned), reader = makeReader("read", dense);
    stitchReport(*device).reset();
    Vector first;
    for (int step = 0; step < 6; ++step) {
      Tensor y = produce(producer);
      EXPECT_EQ(y.desc().strides(), step < 2 ? turned : dense) << "step " << step;
      Vector z = read(reader, "read", y);
      first = step ? first : z;
      EXPECT_EQ(z, first) << "step " << step;
      EXPECT_EQ(conversions("read"), uint64_t(std::min(step + 1, 2))) << "step " << step;
    }
  }
}

// Runs that are still queued write what they were queued to write.
TEST_P(OutputAlternativesTest, QueuedRunsKeepTheirLayout) {
  Binary producer = makeProducer(true, {turned}), reader = makeReader("read", turned);
  std::vector<Tensor> outputs;
  for (int step = 0; step < 6; ++step) {
    Tensor y = produce(producer);
    outputs.push_back(submit(device, reader.program("read"), {y})[0]);
    outputs.push_back(y);
  }
  Tensor expected = toHost(outputs[0]);
  for (const Tensor &output : outputs) {
    Tensor host = toHost(output);
    EXPECT_EQ(Vector(host.data<float>(), host.data<float>() + rows * columns),
              Vector(expected.data<float>(), expected.data<float>() + rows * columns));
  }
}

// What nobody lists stays as it is, and so does what others take as it lies.
TEST_P(OutputAlternativesTest, NothingChangesWhereNothingIsGained) {
  Binary fixed = makeProducer(true, {padded}), reader = makeReader("read", turned);
  for (int step = 0; step < 5; ++step) {
    Tensor y = produce(fixed);
    EXPECT_EQ(y.desc().strides(), dense);
    read(reader, "read", y);
  }
  EXPECT_EQ(conversions("read"), 5u);

  Binary shared = makeProducer(true, {turned}), asItLies = makeReader("as_it_lies", dense);
  for (bool turnedFirst : {true, false})
    for (int step = 0; step < 5; ++step) {
      Tensor y = produce(shared);
      EXPECT_EQ(y.desc().strides(), dense);
      if (turnedFirst)
        read(reader, "read", y);
      read(asItLies, "as_it_lies", y);
      if (!turnedFirst)
        read(reader, "read", y);
    }
  EXPECT_EQ(conversions("as_it_lies"), 0u);
}

// The readers change: the output follows, back to what is declared too, but does
// not go round for ever.
TEST_P(OutputAlternativesTest, FollowsItsReadersAndSettles) {
  Binary producer = makeProducer(true, {padded, turned});
  Binary readers[] = {makeReader("turned", turned), makeReader("dense", dense), makeReader("padded", padded)};
  const char *names[] = {"turned", "dense", "padded"};
  const Strides *wanted[] = {&turned, &dense, &padded};
  for (int turn = 0; turn < 3; ++turn) {
    Tensor y;
    for (int step = 0; step < 4; ++step) {
      y = produce(producer);
      read(readers[turn], names[turn], y);
    }
    EXPECT_EQ(y.desc().strides(), *wanted[turn]) << names[turn];
  }
  Strides last;
  int changes = 0;
  for (int step = 0; step < 40; ++step) {
    Tensor y = produce(producer);
    changes += last != y.desc().strides();
    last = y.desc().strides();
    read(readers[step / 4 % 2], names[step / 4 % 2], y);
  }
  EXPECT_LE(changes, 2);
}
