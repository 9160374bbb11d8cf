//===- HostOperandsTest.cpp - programs with tensors on the host -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Commands compute on the device; a copy is the way to and from the host, and its
// bytes are those of a transfer.
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "Transfer/ScriptedDevice.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;
using schema::BufferKind;

static constexpr int64_t count = 64;
static constexpr uint64_t bytes = 4 * count;

static void addCopy(schema::ProgramT &p, uint32_t from, uint32_t to) {
  schema::ToLayoutT copy;
  copy.source = view(from, {count}, {1});
  copy.target = view(to, {count}, {1});
  addCommand(p, std::move(copy));
}

/// "double": y = 2 x, both on the host, by way of an arena that both copies use:
/// the second half of it holds x, then the first half the sum.
static TestFile makeFile(schema::Space space = schema::Space::host) {
  TestFile file;
  uint32_t add = file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4});
  schema::ProgramT &p = file.addProgram("double");
  uint32_t x = addBuffer(p, BufferKind::input, addInput(p, "x", {count}), 0, bytes);
  uint32_t y = addBuffer(p, BufferKind::output, addOutput(p, "y", {count}), 0, bytes);
  for (auto *value : {p.inputs[0].get(), p.outputs[0].get()}) {
    value->desc->layout = std::make_unique<schema::LayoutT>();
    value->desc->layout->space = space;
  }
  p.arenas.push_back(std::make_unique<schema::ArenaT>());
  p.arenas[0]->bytes = p.arenas[0]->lower_bound = 2 * bytes;
  uint32_t sum = addBuffer(p, BufferKind::arena, 0, 0, bytes), on = addBuffer(p, BufferKind::arena, 0, bytes, bytes);
  addCopy(p, x, on);
  addLaunch(p, add, {on, on, sum}, count, 16);
  addCopy(p, sum, y);
  return file;
}

static Binary load(TestFile file) { return Binary::fromMemory(file.serialize(), {}, "host.segue"); }

static Tensor ramp(const DeviceRef &device, float start) {
  Tensor host = Tensor::onHost(device, {count}, ElementType::f32);
  for (int64_t i = 0; i < count; ++i)
    host.data<float>()[i] = start + float(i);
  return host;
}

static std::string errorOf(const std::function<void()> &call) {
  try {
    call();
    return "";
  } catch (const Error &error) {
    return error.what();
  }
}

class HostOperandsTest : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Devices, HostOperandsTest,
                         testing::Values("cpu:threads=1", "sim:threads=1", "sim:threads=1,adversarial=3",
                                         "sim:streams,threads=1",
                                         "sim:streams,threads=1,adversarial=3"));

TEST_P(HostOperandsTest, CopiesAreTransfers) {
  DeviceRef device = Device::open(GetParam());
  for (schema::Space space : {schema::Space::host, schema::Space::host_pinned}) {
    Binary binary = load(makeFile(space));
    TransferCounters &counters = device->transfer().counters();
    uint64_t up = counters.h2dBytes, down = counters.d2hBytes;
    for (int i = 0; i < 4; ++i) {
      Tensor x = toLayout(device, ramp(device, float(i)), binary.program("double").input(0).desc());
      wait(x);
      Tensor y = submit(device, binary.program("double"), {x})[0];
      EXPECT_EQ(y.desc().layout.space, Space(space));
      wait(y);
      for (int64_t k = 0; k < count; ++k)
        ASSERT_EQ(y.data<float>()[k], 2 * float(i + k));
    }
    uint64_t expected = device->hasUnifiedMemory() ? 0 : 4 * bytes;
    EXPECT_EQ(counters.h2dBytes - up, expected);
    EXPECT_EQ(counters.d2hBytes - down, expected);
  }
}

// A copy that fails for good is the error of the outputs; the next run is whole.
TEST(HostOperands, ACopyThatFails) {
  auto device = std::make_shared<ScriptedDevice>("sim:threads=1");
  Binary binary = load(makeFile());
  Executor executor(device, binary.program("double"));
  Tensor x = ramp(device, 1);
  device->copiesToFail = 2; // once more by the engine
  // The copy may have failed before the executor is done with queuing.
  EXPECT_NE(errorOf([&] { wait(executor.run({x})[0]); }).find("TRANSFER_FAILED"), std::string::npos);
  device->drain();
  EXPECT_EQ(device->copiesToFail, 0);
  Tensor y = executor.run({x})[0];
  wait(y);
  EXPECT_EQ(y.data<float>()[3], 8);
}

// A simulated card knows which memory is its own, and the executor asks before it
// queues a command.
TEST(HostOperands, CommandsComputeOnTheDeviceAlone) {
  DeviceRef sim = Device::open("sim:threads=1,l1=1MiB");
  auto isComputedOn = [&](Space space) {
    TensorDesc desc({count}, ElementType::f32);
    desc.layout.space = space;
    Tensor tensor = Tensor::zeros(sim, desc);
    wait(tensor);
    return sim->computesOn(tensor.storage()->data());
  };
  EXPECT_TRUE(isComputedOn(Space::DeviceDram));
  EXPECT_TRUE(isComputedOn(Space::DeviceL1));
  EXPECT_FALSE(isComputedOn(Space::Host));
  EXPECT_FALSE(isComputedOn(Space::HostPinned));

  auto device = std::make_shared<ScriptedDevice>("sim:threads=1");
  Executor executor(device, load(makeFile()).program("double"));
  device->computesNowhere = true;
  EXPECT_EQ(errorOf([&] { executor.run({ramp(device, 0)}); }),
            "INVALID_ARGUMENT: program \"double\", add_f32: operand 0 is not in the memory of device \"" +
                device->name() + "\", where commands compute; only copies reach the host's");
}

// Files in which a command computes on the host, or a value may be on either side.
TEST(HostOperands, FilesAreVerified) {
  auto loading = [](const std::function<void(schema::ProgramT &)> &change) {
    TestFile file = makeFile();
    change(*file.root.programs[0]);
    return errorOf([&] { load(std::move(file)); });
  };
  EXPECT_EQ(loading([](schema::ProgramT &) {}), "");
  const std::string where = "FILE_CORRUPT: host.segue: program \"double\", ";
  EXPECT_EQ(loading([](schema::ProgramT &p) { p.commands[1]->body.AsLaunch()->args[0] = 0; }),
            where + "command 1 (Launch): computes on buffer 0 in host; only to_layout reaches the memory of the host");
  EXPECT_EQ(loading([](schema::ProgramT &p) { p.commands[1]->body.AsLaunch()->args[2] = 1; }),
            where + "command 1 (Launch): computes on buffer 1 in host; only to_layout reaches the memory of the host");
  EXPECT_EQ(loading([](schema::ProgramT &p) { p.arenas[0]->space = schema::Space::host_pinned; }),
            where + "command 1 (Launch): computes on buffer 3 in host_pinned; only to_layout reaches the memory of "
                    "the host");
  EXPECT_EQ(loading([](schema::ProgramT &p) {
              p.inputs[0]->alternatives.push_back(std::make_unique<schema::LayoutT>());
            }),
            "FILE_CORRUPT: host.segue: program \"double\": input 0 (\"x\"), alternative 0: is on the other side of the "
            "link than f32[64] in host");
}
