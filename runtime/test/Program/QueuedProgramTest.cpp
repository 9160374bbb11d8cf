//===- QueuedProgramTest.cpp - programs on devices with queues ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <gtest/gtest.h>
#include <numeric>

using namespace segue;
using namespace segue::test;

namespace {
class QueuedProgramTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam());

  Tensor ramp(int64_t n, float start = 0) {
    std::vector<float> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), start);
    Tensor host = Tensor::wrap(device, TensorDesc({n}, ElementType::f32), values.data(), {});
    Tensor placed = copyTo(device, host, TensorDesc({n}, ElementType::f32));
    wait(placed);
    return placed;
  }
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, QueuedProgramTest, testing::Values("cpu:threads=1", "sim", "sim:adversarial=3",
                                         "sim:streams,adversarial=3"));

// A chain of programs, each output used where it lies: nothing is copied, and
// the values are those of the cpu.
TEST_P(QueuedProgramTest, ChainCopiesNothing) {
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  Executor executor(device, binary.program("forward"));
  Tensor value = ramp(64), one = ramp(64, 1);
  float expected = 3;
  for (int i = 0; i < 10; ++i) {
    value = executor.run({value, one})[0];
    expected = 2 * (expected + 4);
  }
  EXPECT_EQ(toHost(value).data<float>()[3], expected);
  EXPECT_EQ(executor.counters().inputsConverted, 0u);
  EXPECT_EQ(executor.counters().inputsElided, 20u);
  uint64_t seam = 0;
  for (const StitchEdge &edge : stitchReport(*device).edges()) {
    EXPECT_EQ(edge.converted, 0u);
    if (edge.producer.value == "doubled") {
      seam += edge.elided;
    }
  }
  EXPECT_EQ(seam, 9u);
}

// A submit that is refused changes nothing: given tensors are the caller's.
TEST_P(QueuedProgramTest, RefusedSubmitGivesBack) {
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  std::vector<Tensor> inputs{ramp(64), ramp(32)};
  EXPECT_THROW(submit(device, binary.program("forward"), std::move(inputs)), Error);
  ASSERT_TRUE(inputs[0] && inputs[1]);
  inputs[1] = ramp(64);
  auto outputs = submit(device, binary.program("forward"), std::move(inputs));
  EXPECT_EQ(toHost(outputs[0]).data<float>()[5], 20);
  EXPECT_FALSE(inputs[0]);
}

// Tensors that the caller keeps in place: the output's storage serves again.
TEST_P(QueuedProgramTest, SpansKeepInputsAndReuseOutputs) {
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  Executor executor(device, binary.program("forward"));
  std::vector<Tensor> inputs{ramp(64), ramp(64, 1)}, outputs(1);
  executor.run(inputs, outputs);
  const Storage *storage = outputs[0].storage().get();
  uint64_t id = outputs[0].storage()->id();
  executor.run(inputs, outputs);
  EXPECT_EQ(outputs[0].storage().get(), storage);
  EXPECT_NE(outputs[0].storage()->id(), id) << "a storage that is given out again is a new one";
  Tensor held = outputs[0];
  executor.run(inputs, outputs);
  EXPECT_NE(outputs[0].storage().get(), storage) << "somebody still holds it";
  EXPECT_EQ(toHost(held).data<float>()[2], 10);
  EXPECT_EQ(toHost(outputs[0]).data<float>()[2], 10);
  EXPECT_TRUE(inputs[0] && inputs[1]);
}

// A kernel that fails on a queue fails what it was to write, and whoever reads
// that, with the first cause.
TEST_P(QueuedProgramTest, FailureReachesTheReader) {
  TestFile file;
  uint32_t gather = file.addKernel("gather_f32", 1, {16, 0, 0}, {0, 8, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t table = addBuffer(program, schema::BufferKind::input, addInput(program, "table", {4}), 0, 16);
  uint32_t tokens = addBuffer(program, schema::BufferKind::input,
                              addInput(program, "tokens", {64}, schema::ElementType::i64), 0, 512);
  uint32_t out = addBuffer(program, schema::BufferKind::output, addOutput(program, "out", {64}), 0, 256);
  addLaunch(program, gather, {table, tokens, out}, 64, 8);
  Binary binary = Binary::fromMemory(file.serialize()), next = Binary::fromMemory(makeAddFile(64).serialize());
  std::vector<int64_t> indices(64, 9);
  Tensor host = Tensor::wrap(device, TensorDesc({64}, ElementType::i64), indices.data(), {});
  try {
    auto outputs = submit(device, binary.program("forward"), {ramp(4), host});
    auto later = submit(device, next.program("forward"), {outputs[0], outputs[0]});
    wait(later[0]);
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::IndexOutOfRange);
    EXPECT_NE(std::string(error.what()).find("input \"tokens\""), std::string::npos) << error.what();
  }
}

// A run that fails in its queue does not fail the next one, which is queued
// before that is known and writes to the same storage.
TEST_P(QueuedProgramTest, ALaterRunDoesNotInheritAFailure) {
  TestFile file;
  uint32_t gather = file.addKernel("gather_f32", 1, {16, 0, 0}, {0, 8, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t table = addBuffer(program, schema::BufferKind::input, addInput(program, "table", {4}), 0, 16);
  uint32_t tokens = addBuffer(program, schema::BufferKind::input,
                              addInput(program, "tokens", {64}, schema::ElementType::i64), 0, 512);
  uint32_t out = addBuffer(program, schema::BufferKind::output, addOutput(program, "out", {64}), 0, 256);
  addLaunch(program, gather, {table, tokens, out}, 64, 8);
  Binary binary = Binary::fromMemory(file.serialize());
  std::vector<int64_t> outside(64, 9), inside(64, 2);
  auto on = [&](std::vector<int64_t> &indices) {
    return Tensor::wrap(device, TensorDesc({64}, ElementType::i64), indices.data(), {});
  };
  Tensor bad = on(outside), good = on(inside), values = ramp(4, 5);
  for (int i = 0; i < 20; ++i) {
    try {
      submit(device, binary.program("forward"), {values, bad});
    } catch (const Error &error) { // where work runs inline
      EXPECT_EQ(error.code(), ErrorCode::IndexOutOfRange);
    }
    auto outputs = submit(device, binary.program("forward"), {values, good});
    EXPECT_EQ(toHost(outputs[0]).data<float>()[63], 7) << "run " << i;
  }
}

namespace {
/// saved.i = x + y over f32[n], each saved as soon as it is written; x is free
/// after the last.
TestFile makeSavesFile(int64_t n, uint32_t count) {
  TestFile file;
  uint32_t add = file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint64_t bytes = uint64_t(n) * 4;
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {n}), 0, bytes);
  uint32_t y = addBuffer(program, schema::BufferKind::input, addInput(program, "y", {n}), 0, bytes);
  for (uint32_t i = 0; i < count; ++i) {
    std::string name = "saved." + std::to_string(i);
    uint32_t output = addOutput(program, name, {n}, schema::ElementType::f32, schema::Role::saved);
    uint32_t buffer = addBuffer(program, schema::BufferKind::output, output, 0, bytes);
    addLaunch(program, add, {x, y, buffer}, uint64_t(n), 64);
    schema::SaveT save;
    save.output = output;
    addCommand(program, std::move(save));
  }
  addCommand(program, schema::FreeT{});
  return file;
}

/// Takes what is saved to the host.
struct Spiller : EventSink {
  DeviceRef device;
  std::vector<uint32_t> freed;
  explicit Spiller(DeviceRef device) : device(std::move(device)) {}
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::Save &save) {
    TensorDesc desc = save.saved.desc();
    desc.layout.space = Space::HostPinned;
    save.saved = toLayout(device, save.saved, desc);
  }
  void on(const event::Free &free) { freed.push_back(free.input); }
};
} // namespace

// Where a sink watches, an output takes its memory when it is first written, so
// that what the sink has taken away serves the next one.
TEST_P(QueuedProgramTest, SavedOutputsTakeMemoryWhenTheyAreWritten) {
  constexpr uint64_t MiB = 1 << 20;
  Binary binary = Binary::fromMemory(makeSavesFile(MiB / 4, 8).serialize());
  Tensor x = ramp(MiB / 4), y = ramp(MiB / 4, 1);
  uint64_t before = device->memory().liveBytes(Space::DeviceDram);
  device->memory().resetPeak();
  Spiller spiller(device);
  std::vector<Tensor> outputs = submit(device, binary.program("forward"), {x, y}, &spiller);
  uint64_t peak = device->memory().peakBytes(Space::DeviceDram) - before;
  if (!device->hasUnifiedMemory()) { // there a copy to the host is none
    EXPECT_LT(peak, 4 * MiB);
  }
  EXPECT_EQ(spiller.freed, std::vector<uint32_t>{0});
  ASSERT_EQ(outputs.size(), 8u);
  for (const Tensor &output : outputs)
    EXPECT_EQ(toHost(output).data<float>()[5], 11);
  device->memory().resetPeak();
  outputs = submit(device, binary.program("forward"), {x, y});
  EXPECT_GE(device->memory().peakBytes(Space::DeviceDram) - before, 8 * MiB) << "without a sink, all at the start";
}

// No memory in the midst of a program: an error like that of a kernel.
TEST_P(QueuedProgramTest, NoMemoryForALateOutput) {
  constexpr uint64_t MiB = 1 << 20;
  Binary binary = Binary::fromMemory(makeSavesFile(MiB / 4, 8).serialize());
  Tensor x = ramp(MiB / 4), y = ramp(MiB / 4, 1);
  uint64_t before = device->memory().liveBytes(Space::DeviceDram);
  device->memory().setBudget(Space::DeviceDram, before + 3 * MiB + MiB / 2);
  EventSink watching;
  EXPECT_THROW(submit(device, binary.program("forward"), {x, y}, &watching), OutOfMemory);
  EXPECT_LE(device->memory().liveBytes(Space::DeviceDram), before + MiB) << "but one that is kept for the next run";
  device->memory().setBudget(Space::DeviceDram, UINT64_MAX);
  EXPECT_EQ(toHost(submit(device, binary.program("forward"), {x, y}, &watching)[7]).data<float>()[5], 11);
}

// A stream goes on with what it was given before a program failed: until then nobody else gets the memory.
TEST(QueuedProgramOnStreams, WhatIsStillWrittenIsFreedAfterwards) {
  constexpr int64_t count = 1024;
  TestFile file;
  uint32_t add = file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {count}), 0, 4 * count);
  uint32_t first = addBuffer(program, schema::BufferKind::output, addOutput(program, "first", {count}), 0, 4 * count);
  uint32_t second = addBuffer(program, schema::BufferKind::output, addOutput(program, "second", {count}), 0, 4 * count);
  // The command that would be the last to write `first` is not reached where `second` gets no memory.
  addLaunch(program, add, {x, x, first}, uint64_t(count), 16);
  addLaunch(program, add, {x, x, second}, uint64_t(count), 16);
  addLaunch(program, add, {second, x, first}, uint64_t(count), 16);
  Binary binary = Binary::fromMemory(file.serialize());
  int failed = 0;
  for (int n = 1; n <= 4; ++n)
    for (int order = 0; order < 8; ++order) {
      DeviceRef device = Device::open("sim:streams,dram=1MiB,adversarial=" + std::to_string(order) +
                                      ",fail-dram=" + std::to_string(n) + "x9");
      EventSink watching;
      try {
        submit(device, binary.program("forward"), {Tensor::empty(device, TensorDesc({count}, ElementType::f32))}, &watching);
      } catch (const OutOfMemory &) {
        ++failed;
      }
      device->drain();
      for (int i = 0; i < 12; ++i) // tries beyond those that fail
        try {
          Tensor::empty(device, TensorDesc({100 * count}, ElementType::f32));
        } catch (const OutOfMemory &) {
        } catch (const Error &error) {
          FAIL() << n << ", order " << order << ": " << error.what();
        }
    }
  EXPECT_GE(failed, 8 * 3);
}

// An output whose memory is taken after a kernel has failed is failed with it.
TEST_P(QueuedProgramTest, LateOutputsFailWithTheirProgram) {
  TestFile file;
  uint32_t gather = file.addKernel("gather_f32", 1, {16, 0, 0}, {0, 8, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t table = addBuffer(program, schema::BufferKind::input, addInput(program, "table", {4}), 0, 16);
  uint32_t tokens = addBuffer(program, schema::BufferKind::input,
                              addInput(program, "tokens", {64}, schema::ElementType::i64), 0, 512);
  for (const char *name : {"first", "second"}) {
    uint32_t out = addBuffer(program, schema::BufferKind::output, addOutput(program, name, {64}), 0, 256);
    addLaunch(program, gather, {table, tokens, out}, 64, 8);
    schema::BlockBeginT block;
    block.name = name;
    addCommand(program, std::move(block));
    addCommand(program, schema::BlockEndT{});
  }
  Binary binary = Binary::fromMemory(file.serialize());
  std::vector<int64_t> indices(64, 9);
  Tensor host = Tensor::wrap(device, TensorDesc({64}, ElementType::i64), indices.data(), {});
  struct Drain : EventSink {
    DeviceRef device;
    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::BlockEnd &) { device->drain(); }
  } drain;
  drain.device = device;
  try {
    wait(submit(device, binary.program("forward"), {ramp(4), host}, &drain)[1]);
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::IndexOutOfRange);
  }
}
