//===- StitchRulesTest.cpp - the rules of stitching, by submits -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// R1, R2, R6, R7, R9, threads and faults of runtime-stitching, as `submit` keeps
// them. R3 to R5 are the planner's and the engine's (TransferPlanTest,
// TransferEngineTest), R8 is the session's (SessionTest).
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "Transfer/ScriptedDevice.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Tensor/L1Compactor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cmath>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

using namespace segue;
using namespace segue::test;

static TensorDesc vectorOf(int64_t n, Layout layout = {}) {
  return TensorDesc({n}, ElementType::f32, std::move(layout));
}

static Tensor sequence(const DeviceRef &device, int64_t n, float first = 0, Layout layout = {}) {
  Tensor host = Tensor::onHost(device, {n}, ElementType::f32);
  std::iota(host.data<float>(), host.data<float>() + n, first);
  return copyTo(device, host, vectorOf(n, std::move(layout)));
}

static std::vector<float> valuesOf(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return {host.data<float>(), host.data<float>() + host.elementCount()};
}

template <typename Call> static std::string messageOf(ErrorCode code, const Call &call) {
  try {
    call();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

static void expectParts(const std::string &message, std::initializer_list<const char *> parts) {
  for (const char *part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
}

static Binary fileOf(TestFile file) { return Binary::fromMemory(file.serialize()); }

namespace {
class StitchRulesTest : public testing::TestWithParam<const char *> {
protected:
  std::array<uint64_t, queueCount> positions() const {
    std::array<uint64_t, queueCount> at{};
    for (Queue queue : allQueues)
      at[size_t(queue)] = device->position(queue);
    return at;
  }
  TransferCounters &counters() { return device->transfer().counters(); }

  DeviceRef device = Device::open(GetParam());
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, StitchRulesTest,
                         testing::Values("cpu:threads=1", "sim:latency=0s,l1=64KiB",
                                         "sim:latency=0s,l1=64KiB,adversarial=1",
                                         "sim:latency=0s,l1=64KiB,adversarial=2",
                                         "sim:streams,latency=0s,l1=64KiB",
                                         "sim:streams,latency=0s,l1=64KiB,adversarial=2"));

//===----------------------------------------------------------------------===//
// R1, R2
//===----------------------------------------------------------------------===//

// The second input is wrong: the first, which would be converted, is not.
TEST_P(StitchRulesTest, R1NothingIsEnqueuedBeforeAllInputsAreChecked) {
  Binary binary = fileOf(makeAddFile(64));
  Tensor strided = sequence(device, 64, 0, Layout{.strides = {2}}), shorter = sequence(device, 63),
         half = toLayout(device, sequence(device, 64), TensorDesc({64}, ElementType::bf16));
  uint64_t copies = counters().copies, versions = strided.storage()->version();
  auto before = positions();
  auto run = [&](const Tensor &x, const Tensor &y) {
    return messageOf(ErrorCode::LayoutMismatch, [&] { submit(device, binary.program("forward"), {x, y}); });
  };
  expectParts(run(strided, shorter), {"program \"forward\"", "input 1 (\"y\")", "f32[63] given", "f32[64] declared"});
  expectParts(run(strided, half), {"input 1 (\"y\")", "bf16[64] given", "f32[64] declared"});
  // In index order, and of one input shape before element type.
  expectParts(run(half, shorter), {"input 0 (\"x\")", "bf16[64] given"});
  EXPECT_EQ(counters().copies, copies);
  EXPECT_EQ(counters().submits, 0u);
  EXPECT_EQ(positions(), before);
  EXPECT_EQ(strided.storage()->version(), versions);
  EXPECT_EQ(valuesOf(submit(device, binary.program("forward"), {strided, strided})[0])[5], 20);
}

// A tensor of another device is refused as such, before what may be lost.
TEST_P(StitchRulesTest, R1DevicesDoNotMix) {
  Binary binary = fileOf(makeAddFile(64));
  DeviceRef other = Device::open("cpu:threads=1,dram=8MiB");
  expectParts(
      messageOf(ErrorCode::LayoutMismatch,
                [&] { submit(device, binary.program("forward"), {sequence(other, 64), sequence(device, 64)}); }),
      {"input 0 (\"x\")", "it is on device \"cpu:threads=1,dram=8MiB\""});
}

/// "forward" over f32[n]: y = 2 x; `rows` is declared in int8_row and not read.
static TestFile makeRowsFile(int64_t n) {
  TestFile file;
  uint32_t twice = file.addKernel("double_f32", 1, {0, 0}, {4, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint64_t bytes = uint64_t(n) * 4;
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {n}), 0, bytes);
  addInput(program, "rows", {n});
  program.inputs[1]->desc->layout->storage = schema::Storage::int8_row;
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {n}), 0, bytes);
  addLaunch(program, twice, {x, y}, uint64_t(n), 16);
  return file;
}

// What cannot be quantised fails the copy, on whichever side of the link it is
// done, with the copy and the row; the source stays as it was.
TEST_P(StitchRulesTest, WhatIsNotFiniteIsNotQuantised) {
  Tensor host = Tensor::onHost(device, {8, 32}, ElementType::f32);
  std::fill_n(host.data<float>(), 8 * 32, 1.0f);
  host.data<float>()[5 * 32 + 7] = std::numeric_limits<float>::quiet_NaN();
  Tensor dram = toLayout(device, host, TensorDesc({8, 32}, ElementType::f32, Layout{.space = Space::DeviceDram}));
  for (const Tensor &source : {host, dram})
    for (Space space : {Space::Host, Space::HostPinned, Space::DeviceDram}) {
      TensorDesc rows({8, 32}, ElementType::f32, Layout{.space = space, .storage = StorageType::Int8Row});
      expectParts(messageOf(ErrorCode::NonFinite, [&] { wait(toLayout(device, source, rows)); }),
                  {"toLayout: f32[8,32]", "int8_row", "row 5 holds NaN or infinity"});
      EXPECT_TRUE(std::isnan(valuesOf(source)[5 * 32 + 7]));
      EXPECT_EQ(valuesOf(source)[5 * 32 + 8], 1);
    }
}

// f32 where int8_row is wanted loses bits: lossy_casts decides. The way back
// does not, and is always open.
TEST_P(StitchRulesTest, R2LossyConversionsFollowThePolicy) {
  Binary binary = fileOf(makeRowsFile(64));
  const Program &program = binary.program("forward");
  Tensor x = sequence(device, 64);
  std::string message = messageOf(ErrorCode::LayoutMismatch, [&] { submit(device, program, {x, x}); });
  expectParts(message, {"input 1 (\"rows\")", "int8_row", "memory.stitch.lossy_casts"});
  EXPECT_EQ(counters().lossyCasts, 0u);

  StitchOptions options;
  std::vector<std::string> warnings;
  device->transfer().setWarn([&](const std::string &text) { warnings.push_back(text); });
  for (LossyCasts policy : {LossyCasts::Warn, LossyCasts::Allow}) {
    options.lossyCasts = policy;
    device->transfer().configure(options);
    EXPECT_EQ(valuesOf(submit(device, program, {x, x})[0])[7], 14);
  }
  EXPECT_EQ(counters().lossyCasts, 2u);
  ASSERT_EQ(warnings.size(), 1u);
  expectParts(warnings[0], {"program \"forward\", input 1 (\"rows\")", "int8_row"});
  options.lossyCasts = LossyCasts::Error;
  device->transfer().configure(options);

  // Stored in rows, wanted in f32: what the codes mean.
  Tensor rows = toLayout(device, x, vectorOf(64, Layout{.storage = StorageType::Int8Row}));
  std::vector<float> meant = valuesOf(rows), doubled = valuesOf(submit(device, program, {rows, rows})[0]);
  for (size_t i = 0; i < 64; ++i)
    EXPECT_EQ(doubled[i], 2 * meant[i]);
  EXPECT_NEAR(meant[63], 63, 0.3);
  EXPECT_EQ(counters().lossyCasts, 2u);
}

//===----------------------------------------------------------------------===//
// R6
//===----------------------------------------------------------------------===//

/// "forward": y = 2 p with parameter p; "update": p = 2 p in place, where p has
/// a gap behind each element.
static TestFile makeParameterFile(int64_t n) {
  TestFile file;
  uint32_t twice = file.addKernel("double_f32", 1, {0, 0}, {4, 4});
  schema::ProgramT &forward = file.addProgram("forward");
  uint64_t bytes = uint64_t(n) * 4, span = bytes * 2 - 4;
  uint32_t p = addBuffer(forward, schema::BufferKind::input,
                         addInput(forward, "p", {n}, schema::ElementType::f32, schema::Role::parameter), 0, bytes);
  uint32_t y = addBuffer(forward, schema::BufferKind::output, addOutput(forward, "y", {n}), 0, bytes);
  addLaunch(forward, twice, {p, y}, uint64_t(n), 16);
  schema::ProgramT &update = file.addProgram("update");
  uint32_t in = addBuffer(update, schema::BufferKind::input,
                          addInput(update, "p", {n}, schema::ElementType::f32, schema::Role::parameter), 0, span);
  uint32_t out = addBuffer(update, schema::BufferKind::output, addOutput(update, "p", {n}), 0, span);
  update.inputs[0]->desc->layout->strides = update.outputs[0]->desc->layout->strides = {2};
  auto alias = std::make_unique<schema::AliasT>();
  alias->required = true;
  update.aliases.push_back(std::move(alias));
  addLaunch(update, twice, {in, out}, uint64_t(n) * 2 - 1, 16);
  return file;
}

// A parameter that lies otherwise is converted once, and again after each write:
// one version per submit of a program that declares the write.
TEST_P(StitchRulesTest, R6ParametersAreConvertedOncePerVersion) {
  Binary binary = fileOf(makeParameterFile(64));
  const Program &forward = binary.program("forward"), &update = binary.program("update");
  Tensor parameter = sequence(device, 64, 1, Layout{.strides = {2}});
  float factor = 2;
  for (uint64_t version = 0; version < 3; ++version) {
    EXPECT_EQ(parameter.storage()->version(), version);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(valuesOf(submit(device, forward, {parameter})[0])[9], factor * 10);
    SubmitCounters seen = Executor(device, forward).counters();
    EXPECT_EQ(seen.inputsConverted, version + 1);
    EXPECT_EQ(seen.cacheHits, 2 * (version + 1));
    auto outputs = submit(device, update, {parameter});
    EXPECT_EQ(outputs[0].storage(), parameter.storage());
    factor *= 2;
  }
  EXPECT_EQ(counters().inputs, counters().inputsElided + counters().inputsConverted + counters().cacheHits);
}

//===----------------------------------------------------------------------===//
// R7
//===----------------------------------------------------------------------===//

// Programs that read and write in place, copies in both directions over what
// they use, handles dropped at any time: everything as if done one by one.
TEST_P(StitchRulesTest, R7AsIfDoneOneByOne) {
  constexpr int64_t n = 48;
  Binary add = fileOf(makeAddFile(n));
  TestFile inPlaceFile = makeAddFile(n);
  auto alias = std::make_unique<schema::AliasT>();
  alias->required = true;
  inPlaceFile.root.programs[0]->aliases.push_back(std::move(alias));
  Binary inPlace = fileOf(std::move(inPlaceFile));
  for (uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    struct Pair {
      Tensor tensor;
      std::vector<float> expected;
    };
    std::vector<Pair> pairs;
    auto make = [&] {
      float first = float(random() % 100);
      std::vector<float> values(n);
      std::iota(values.begin(), values.end(), first);
      pairs.push_back({sequence(device, n, first), values});
    };
    for (int i = 0; i < 4; ++i)
      make();
    for (int i = 0; i < 60; ++i) {
      Pair &a = pairs[random() % pairs.size()], &b = pairs[random() % pairs.size()];
      std::vector<float> sum(n);
      for (size_t j = 0; j < size_t(n); ++j)
        sum[j] = 2 * (a.expected[j] + b.expected[j]);
      bool isDense = a.tensor.desc().layout.strides.empty() && a.tensor.desc().layout.space == Space::DeviceDram;
      switch (random() % 6) {
      case 0: { // n + 1 reads what n writes
        Tensor result = submit(device, add.program("forward"), {a.tensor, b.tensor})[0];
        pairs.push_back({result, sum});
        break;
      }
      case 1: // writes what earlier copies and programs read
        if (isDense && &a != &b && a.tensor.storage() != b.tensor.storage()) {
          submit(device, inPlace.program("forward"), {a.tensor, b.tensor});
          a.expected = sum;
        }
        break;
      case 2: // a copy over what programs read
        if (&a != &b && a.tensor.storage() != b.tensor.storage()) {
          copyInto(b.tensor, a.tensor);
          a.expected = b.expected;
        }
        break;
      case 3: { // to the host, to other strides, or back; always other bytes
        Layout layout{.space = random() % 2 ? Space::HostPinned : Space::DeviceDram};
        if (random() % 2)
          layout.strides = {3};
        Tensor moved = copyTo(device, a.tensor, vectorOf(n, layout));
        pairs.push_back({moved, a.expected});
        break;
      }
      case 4:
        if (pairs.size() > 3)
          pairs.erase(pairs.begin() + std::ptrdiff_t(random() % pairs.size()));
        break;
      default:
        make();
      }
    }
    for (const Pair &pair : pairs)
      ASSERT_EQ(valuesOf(pair.tensor), pair.expected) << "seed " << seed;
  }
}

//===----------------------------------------------------------------------===//
// R9 and chains
//===----------------------------------------------------------------------===//

/// The add file with inputs and output in device_l1 and, as `alternatives`
/// says, in device_dram.
static TestFile makeL1File(int64_t n, bool alternatives) {
  TestFile file = makeAddFile(n);
  schema::ProgramT &program = *file.root.programs[0];
  for (auto *values : {&program.inputs, &program.outputs})
    for (auto &value : *values) {
      value->desc->layout->space = schema::Space::device_l1;
      if (!alternatives)
        continue;
      auto dram = std::make_unique<schema::LayoutT>();
      dram->space = schema::Space::device_dram;
      value->alternatives.push_back(std::move(dram));
    }
  return file;
}

// At load, by name, before any memory is touched; with a variant for device_dram
// it runs there.
TEST_P(StitchRulesTest, R9L1OnADeviceWithoutIt) {
  DeviceRef without = device->hasSpace(Space::DeviceL1) ? Device::open("sim:latency=0s,l1=0") : device;
  uint64_t live = without->memory().liveBytes(Space::DeviceDram);
  Binary l1 = fileOf(makeL1File(64, false));
  expectParts(messageOf(ErrorCode::Unsupported, [&] { Executor executor(without, l1.program("forward")); }),
              {"program \"forward\"", "input \"x\"", "cannot hold f32[64] in device_l1", "device_dram"});
  EXPECT_EQ(without->memory().liveBytes(Space::DeviceDram), live);
  expectParts(messageOf(ErrorCode::Unsupported,
                        [&] { toLayout(without, sequence(without, 64), vectorOf(64, {.space = Space::DeviceL1})); }),
              {"has no space device_l1"});
  Binary either = fileOf(makeL1File(64, true));
  Tensor x = sequence(without, 64), result = submit(without, either.program("forward"), {x, x})[0];
  EXPECT_EQ(result.desc().layout.space, Space::DeviceDram);
  EXPECT_EQ(valuesOf(result)[4], 16);
  EXPECT_EQ(Executor(without, either.program("forward")).counters().inputsConverted, 0u);
}

// What a program leaves in L1 the next one reads there: the steady state of a
// chain copies nothing.
TEST_P(StitchRulesTest, R9ChainsStayInL1) {
  if (!device->hasSpace(Space::DeviceL1))
    GTEST_SKIP() << "no L1";
  std::vector<Binary> chain;
  for (int i = 0; i < 5; ++i)
    chain.push_back(fileOf(makeL1File(64, false)));
  Tensor one = sequence(device, 64, 1, {.space = Space::DeviceL1});
  for (int step = 0; step < 4; ++step) {
    Tensor value = sequence(device, 64, float(step));
    uint64_t before = counters().inputsConverted;
    float expected = float(step) + 3;
    for (const Binary &binary : chain) {
      value = submit(device, binary.program("forward"), {value, one})[0];
      EXPECT_EQ(value.desc().layout.space, Space::DeviceL1);
      expected = 2 * (expected + 4);
    }
    // The batch alone is brought to L1.
    EXPECT_EQ(counters().inputsConverted - before, 1u);
    EXPECT_EQ(valuesOf(value)[3], expected);
  }
}

// Declared in device_dram with device_l1 as an alternative: what lies there is read
// there, and what lies elsewhere is brought to where it is declared.
TEST_P(StitchRulesTest, R9InputsAreReadInL1) {
  if (!device->hasSpace(Space::DeviceL1))
    GTEST_SKIP() << "no L1";
  for (bool listed : {false, true}) {
    TestFile file = makeAddFile(64);
    for (auto &value : file.root.programs[0]->inputs)
      if (listed) {
        value->alternatives.push_back(std::make_unique<schema::LayoutT>());
        value->alternatives[0]->space = schema::Space::device_l1;
      }
    Binary binary = fileOf(std::move(file));
    Tensor dram = sequence(device, 64), l1 = sequence(device, 64, 1, {.space = Space::DeviceL1});
    uint64_t before = counters().inputsConverted;
    for (int step = 0; step < 3; ++step)
      EXPECT_EQ(valuesOf(submit(device, binary.program("forward"), {dram, l1})[0])[4], 18);
    EXPECT_EQ(counters().inputsConverted - before, listed ? 0u : 3u);
  }
}

// Too full even when moved together: device_dram where the program can, counted;
// else the table of who holds L1. Inputs are as they were.
TEST_P(StitchRulesTest, R9WithoutRoomInL1) {
  if (!device->hasSpace(Space::DeviceL1))
    GTEST_SKIP() << "no L1";
  constexpr int64_t n = 1024; // 4 KiB each
  Binary either = fileOf(makeL1File(n, true)), only = fileOf(makeL1File(n, false));
  Tensor x = sequence(device, n);
  OwnerId owner = device->memory().intern({.program = "earlier", .value = "kept", .role = "output"});
  auto storage = Storage::allocate(device, Space::DeviceL1, 60 << 10, 64, owner);
  Tensor result = submit(device, either.program("forward"), {x, x})[0];
  EXPECT_EQ(result.desc().layout.space, Space::DeviceDram);
  EXPECT_EQ(valuesOf(result)[5], 20);
  EXPECT_GT(counters().l1Fallbacks, 0u);

  uint64_t version = x.storage()->version(), live = device->memory().liveBytes(Space::DeviceL1);
  expectParts(messageOf(ErrorCode::DeviceOom, [&] { submit(device, only.program("forward"), {x, x}); }),
              {"device_l1", "61440 B in 1  earlier: kept (output)"});
  EXPECT_EQ(x.storage()->version(), version);
  EXPECT_EQ(valuesOf(x)[5], 5);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceL1), live);
  storage.reset();
  EXPECT_EQ(submit(device, only.program("forward"), {x, x})[0].desc().layout.space, Space::DeviceL1);
}

// Temporaries that were compiled for L1 lie in DRAM where there is none, or no room:
// commands do not mind.
TEST_P(StitchRulesTest, R9TemporariesWithoutL1) {
  constexpr int64_t n = 1024;
  TestFile file = makeAddFile(n);
  file.root.programs[0]->arenas[0]->space = schema::Space::device_l1;
  Executor executor(device, fileOf(std::move(file)).program("forward"));
  Tensor x = sequence(device, n);
  uint64_t before = counters().l1Fallbacks;
  EXPECT_EQ(valuesOf(executor.run({x, x})[0])[5], 20);
  EXPECT_EQ(counters().l1Fallbacks, before);
  if (!device->hasSpace(Space::DeviceL1))
    return;
  device->drain();
  auto storage = Storage::allocate(device, Space::DeviceL1, 62 << 10, 64);
  EXPECT_EQ(valuesOf(executor.run({x, x})[0])[5], 20);
  EXPECT_EQ(counters().l1Fallbacks, before + 1);
}

// Holes that add up to enough: tensors are moved together, and keep their values.
TEST_P(StitchRulesTest, R9CompactsWhatIsScattered) {
  if (!device->hasSpace(Space::DeviceL1))
    GTEST_SKIP() << "no L1";
  std::vector<Tensor> held;
  for (int i = 0; i < 16; ++i) // 64 KiB in pieces of 4
    held.push_back(sequence(device, 1024, float(i), {.space = Space::DeviceL1}));
  std::vector<Tensor> left;
  for (size_t i = 0; i < held.size(); i += 2)
    left.push_back(std::move(held[i]));
  held.clear();
  Binary only = fileOf(makeL1File(2048, false));
  Tensor x = sequence(device, 2048);
  Tensor result = submit(device, only.program("forward"), {x, x})[0];
  EXPECT_GT(device->l1Compactor()->compactions(), 0u);
  EXPECT_EQ(result.desc().layout.space, Space::DeviceL1);
  EXPECT_EQ(valuesOf(result)[2047], 4 * 2047);
  for (size_t i = 0; i < left.size(); ++i)
    EXPECT_EQ(valuesOf(left[i])[1023], float(2 * i) + 1023);
}

//===----------------------------------------------------------------------===//
// Threads
//===----------------------------------------------------------------------===//

// One thread submits; others make inputs, wait for outputs, read and drop them.
TEST_P(StitchRulesTest, OtherThreadsCreateWaitAndRelease) {
  constexpr int64_t n = 256;
  Binary binary = fileOf(makeAddFile(n));
  Executor executor(device, binary.program("forward"));
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Tensor> made, done;
  std::atomic<int> right{0}, wrong{0};
  constexpr int each = 100, producers = 2;
  std::vector<std::thread> threads;
  for (int t = 0; t < producers; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < each; ++i) {
        Tensor host = Tensor::onHost(device, {n}, ElementType::f32);
        std::fill_n(host.data<float>(), n, float(t * each + i));
        std::lock_guard lock(mutex);
        made.push_back(std::move(host));
        changed.notify_all();
      }
    });
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < producers * each / 2; ++i) {
        Tensor tensor;
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return !done.empty(); });
          tensor = std::move(done.front());
          done.pop_front();
        }
        wait(tensor);
        const float *values = tensor.data<float>();
        bool same = std::all_of(values, values + n, [&](float value) { return value == values[0]; });
        ++(same && std::fmod(values[0], 4) == 0 ? right : wrong);
      }
    });
  for (int i = 0; i < producers * each; ++i) {
    Tensor input;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !made.empty(); });
      input = std::move(made.front());
      made.pop_front();
    }
    Tensor output = executor.run({input, input})[0];
    Tensor host = toLayout(device, output, vectorOf(n, {.space = Space::HostPinned}));
    output = Tensor();
    std::lock_guard lock(mutex);
    done.push_back(std::move(host));
    changed.notify_all();
  }
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(right, producers * each);
  EXPECT_EQ(wrong, 0);
}

//===----------------------------------------------------------------------===//
// Faults
//===----------------------------------------------------------------------===//

namespace {
class StitchFaultsTest : public testing::Test {
protected:
  std::shared_ptr<ScriptedDevice> scripted =
      std::make_shared<ScriptedDevice>("sim:dram=1MiB,pinned=1MiB,l1=16KiB,threads=1,latency=0s,link=100GB/s");
  DeviceRef device = scripted;
  Binary binary = fileOf(makeAddFile(64));
  const Program &program = binary.program("forward");
};
} // namespace

// A copy that fails for good: whoever reads what depends on it gets tensor, hop
// and bytes; the source is whole, and the same submit works afterwards.
TEST_F(StitchFaultsTest, ACopyOfAnInputFails) {
  Tensor x = Tensor::onHost(device, {64}, ElementType::f32), y = sequence(device, 64);
  std::iota(x.data<float>(), x.data<float>() + 64, 0.0f);
  wait(y);
  scripted->copiesToFail = 2; // one try and one retry
  auto run = [&] {
    Tensor result = submit(device, program, {x, y})[0];
    wait(result);
    return result;
  };
  expectParts(messageOf(ErrorCode::TransferFailed, run),
              {"program \"forward\", input 0 (\"x\")", "256 bytes", "host -> device_dram"});
  EXPECT_EQ(device->transfer().counters().retries, 1u);
  EXPECT_EQ(x.data<float>()[9], 9);
  EXPECT_EQ(x.storage()->state(), StorageState::Ready);
  EXPECT_EQ(valuesOf(run())[9], 36);
  // Once is no failure.
  scripted->copiesToFail = 1;
  EXPECT_EQ(valuesOf(run())[9], 36);
}

// Room is asked for once per allocation; then the table. Inputs are as they were.
TEST_F(StitchFaultsTest, NoDeviceMemoryForAnInput) {
  constexpr int64_t n = 1 << 15; // 128 KiB each
  Binary large = fileOf(makeAddFile(n));
  Tensor x = Tensor::onHost(device, {n}, ElementType::f32);
  std::iota(x.data<float>(), x.data<float>() + n, 0.0f);
  OwnerId owner = device->memory().intern({.program = "earlier", .value = "kept", .role = "saved"});
  auto storage = Storage::allocate(device, Space::DeviceDram, 1000 << 10, 64, owner);
  int asked = 0;
  bool gives = false;
  auto maker = device->memory().addRoomMaker("stagehand", 0, [&](Space space, uint64_t) -> uint64_t {
    EXPECT_EQ(space, Space::DeviceDram);
    ++asked;
    if (!gives || !storage)
      return 0;
    storage.reset();
    return 1000 << 10;
  });
  std::vector<Tensor> inputs{x, x};
  uint64_t uses = uint64_t(x.storage().use_count());
  expectParts(messageOf(ErrorCode::DeviceOom, [&] { submit(device, large.program("forward"), std::move(inputs)); }),
              {"device_dram", "earlier: kept (saved)", "stagehand"});
  EXPECT_EQ(asked, 1);
  ASSERT_TRUE(inputs[0] && inputs[1]) << "given back";
  EXPECT_EQ(uint64_t(x.storage().use_count()), uses);
  EXPECT_EQ(x.data<float>()[9], 9);
  gives = true;
  EXPECT_EQ(valuesOf(submit(device, large.program("forward"), std::move(inputs))[0])[9], 36);
  EXPECT_EQ(asked, 2);
}

// Without pinned memory: slower, counted, right.
TEST_F(StitchFaultsTest, NoPinnedMemoryForStaging) {
  scripted->noPinned = true;
  Tensor x = Tensor::onHost(device, {64}, ElementType::f32);
  std::iota(x.data<float>(), x.data<float>() + 64, 0.0f);
  Tensor result = submit(device, program, {x, x})[0];
  EXPECT_EQ(valuesOf(result)[9], 36);
  EXPECT_GT(device->transfer().counters().pageableCopies, 0u);
  EXPECT_EQ(device->transfer().counters().failures, 0u);
}

// A program that cannot end: its outputs are FAILED with the cause, the inputs
// of one that did not start are the caller's.
TEST_F(StitchFaultsTest, AStepIsAborted) {
  TestFile file = makeAddFile(64);
  schema::BlockBeginT block;
  block.name = "h.0";
  schema::ProgramT &table = *file.root.programs[0];
  addCommand(table, std::move(block));
  addCommand(table, schema::BlockEndT{});
  Binary withBlock = fileOf(std::move(file));
  struct Abort final : EventSink {
    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::BlockBegin &) { throw std::runtime_error("the user stopped"); }
  } abort;
  Tensor y = sequence(device, 64);
  std::vector<Tensor> inputs{sequence(device, 64), y}, outputs(1);
  expectParts(messageOf(ErrorCode::StepAborted,
                        [&] {
                          try {
                            Executor(device, withBlock.program("forward")).run(std::span(inputs), outputs, &abort);
                          } catch (const std::runtime_error &) {
                            // Its own type passes through; the output tells the rest.
                            wait(outputs.at(0));
                          }
                        }),
              {"the user stopped"});
  // The next program reads the failed output: it does not start.
  std::vector<Tensor> next{outputs[0], sequence(device, 64)};
  EXPECT_THROW(submit(device, program, std::move(next)), Error);
  ASSERT_TRUE(next[0] && next[1]);
  EXPECT_EQ(valuesOf(next[1])[9], 9);
  EXPECT_EQ(valuesOf(submit(device, program, {y, y})[0])[9], 36) << "the device goes on";
}
