//===- CudaRowsTest.cpp - commands that are given together ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Commands that are held back, given together, recorded and given again are done once
// each, in order.
//
//===----------------------------------------------------------------------===//

#include "../Device/DeviceKernels.h"
#include "CudaTestParts.h"
#include "FakeCuda.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include <chrono>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>

using namespace segue;
using namespace segue::test;

namespace {
class CudaRowsTest : public testing::Test {
protected:
  static constexpr int64_t count = 300;

  void SetUp() override { fakecuda::reset(); }
  void TearDown() override {
    device->drain();
    EXPECT_EQ(fakecuda::misuse(), "");
    fakecuda::reset();
  }

  /// Queues a command of a number; what it fails with goes to `message`. It has no number if `number` is 0.
  Fence enqueue(uint64_t number, std::vector<void *> addresses, std::function<void()> give,
                std::string *message = nullptr, const Fence &after = {}) {
    auto kept = std::make_shared<std::vector<void *>>(std::move(addresses));
    Work work;
    work.command = {number, *kept};
    work.run = [kept, give = std::move(give)] { give(); };
    work.ended = [message](const Error *error) {
      if (message)
        *message = error ? error->what() : "";
    };
    return Fence(Queue::Compute, device->enqueue(Queue::Compute, after, std::move(work)));
  }
  float *takeFloats(float first) {
    auto *data = static_cast<float *>(device->memory().allocate(dram, count * sizeof(float), 512).data);
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    device->copy(data, values.data(), count * sizeof(float));
    return data;
  }
  std::vector<float> read(const float *data) {
    std::vector<float> values(count);
    device->copy(values.data(), data, count * sizeof(float));
    return values;
  }
  /// Queues a row of two commands, sum = (sum + addend) * 2, and does the same to `values`.
  void addAndDouble(float *sum, float *addend, std::vector<float> &values, std::string *message = nullptr) {
    enqueue(1, {sum, addend}, [this, sum, addend] { device->engine().add(sum, addend, count); }, message);
    enqueue(2, {sum}, [this, sum] { device->engine().scale(sum, count, 2); }, message);
    device->submit();
    for (int64_t i = 0; i < count; ++i)
      values[size_t(i)] = (values[size_t(i)] + float(i + 1)) * 2;
  }
  uint64_t calls(const char *call) { return fakecuda::callCount(call); }

  DeviceRef device = Device::open("cuda:16,dram=16MiB,pinned=4MiB");
  float *sum = takeFloats(0), *addend = takeFloats(1);
  std::vector<float> wanted = read(sum);
};
} // namespace

TEST_F(CudaRowsTest, ARowIsGivenByOneCallFromItsSecondSight) {
  for (int run = 0; run < 6; ++run)
    addAndDouble(sum, addend, wanted);
  device->drain();
  EXPECT_EQ(read(sum), wanted);
  EXPECT_GE(calls("cuGraphLaunch"), 1u);
  fakecuda::reset();
  for (int run = 0; run < 6; ++run) {
    addAndDouble(sum, addend, wanted);
    device->drain();
  }
  EXPECT_EQ(read(sum), wanted);
  EXPECT_EQ(calls("cuLaunchKernel"), 0u);
  EXPECT_EQ(calls("cuGraphLaunch"), 6u);
  EXPECT_EQ(calls("cuEventRecord"), 6u) << "one for the row";
}

TEST_F(CudaRowsTest, WhatIsHeldBackIsGivenToWhoAsks) {
  auto isDoneSoon = [&](const Fence &fence) {
    for (int i = 0; i < 20000 && !device->isDone(fence); ++i)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    return device->isDone(fence);
  };
  auto add = [&] { return enqueue(1, {sum, addend}, [this] { device->engine().add(sum, addend, count); }); };
  Fence first = add();
  EXPECT_EQ(calls("cuLaunchKernel"), 0u) << "held back";
  EXPECT_TRUE(isDoneSoon(first));
  Fence second = add();
  device->wait(second);
  // Another queue waits for it.
  Fence third = add();
  MemoryBlock there = device->memory().allocate(Space::HostPinned, count * sizeof(float), 64);
  Work copy{[&] { device->copy(there.data, sum, count * sizeof(float)); }};
  Fence copied(Queue::DeviceToHost, device->enqueue(Queue::DeviceToHost, third, std::move(copy)));
  device->wait(copied);
  EXPECT_EQ(static_cast<float *>(there.data)[7], 7 + 3 * 8);
  device->memory().free(Space::HostPinned, there.data, count * sizeof(float), 64, there.account, copied);
  // An entry without a body is nothing to give, and waits for its turn.
  Work nothing;
  bool hasBegun = false;
  nothing.mayBegin = [&] { return hasBegun = true; };
  device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(nothing))));
  EXPECT_TRUE(hasBegun);
}

// A row ends where one waits for more than those before it did; what they waited for is no reason.
TEST_F(CudaRowsTest, ACommandThatWaitsBeginsARow) {
  for (int run = 0; run < 5; ++run) {
    fakecuda::reset();
    Fence copied(Queue::HostToDevice, device->enqueueCall(Queue::HostToDevice, {}, [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }));
    auto add = [&](const Fence &after) {
      enqueue(1, {sum, addend}, [this] { device->engine().add(sum, addend, count); }, nullptr, after);
    };
    add({}), add({});
    add(copied), add(copied), add({});
    device->drain();
    EXPECT_EQ(calls("cuGraphLaunch"), run ? 2u : 0u) << run;
  }
}

// Whoever has other operands gets what it asked for, and both are kept.
TEST_F(CudaRowsTest, OtherAddressesAreAnotherRecording) {
  float *other = takeFloats(5);
  std::vector<float> otherWanted = read(other);
  for (int run = 0; run < 5; ++run) {
    addAndDouble(sum, addend, wanted);
    addAndDouble(other, addend, otherWanted);
    device->drain();
  }
  EXPECT_EQ(read(sum), wanted);
  EXPECT_EQ(read(other), otherWanted);
  EXPECT_EQ(calls("cuGraphLaunch"), 8u);
  EXPECT_EQ(calls("cuGraphInstantiateWithFlags"), 2u);
  // Many that are seen once are not recorded, and push nothing out that comes again.
  float *many = static_cast<float *>(device->memory().allocate(dram, 8 * mib, 512).data);
  std::vector<float> unused(count);
  for (int i = 0; i < 1500; ++i) {
    addAndDouble(many + 1024 * i, addend, unused);
    if (i % 500 == 0)
      addAndDouble(sum, addend, wanted);
  }
  addAndDouble(sum, addend, wanted);
  device->drain();
  EXPECT_EQ(read(sum), wanted);
  EXPECT_EQ(calls("cuGraphInstantiateWithFlags"), 2u);
}

// A fault is that of the run that had it and of its command, while others are queued behind it.
TEST_F(CudaRowsTest, AFaultIsThatOfItsRun) {
  KernelSource source{"test", "failBehind", {}};
  source.variants.push_back(
      {KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), "failBehind"});
  KernelRef kernel = device->makeKernel(source);
  auto takeLimit = [&](int64_t units) {
    auto *limit = static_cast<int64_t *>(device->memory().allocate(dram, 512, 512).data);
    device->copy(limit, &units, sizeof(units));
    return limit;
  };
  int64_t *far = takeLimit(100), *limit = takeLimit(100);
  // The limit of each run lies in page-locked memory, and comes with it.
  constexpr size_t runs = 40;
  MemoryBlock limits = device->memory().allocate(Space::HostPinned, runs * sizeof(int64_t), 64);
  auto *limitOf = static_cast<int64_t *>(limits.data);
  std::string messages[runs][3];
  for (size_t run = 0; run < runs; ++run) {
    limitOf[run] = run % 5 == 3 ? 2 : 100;
    Work bring{[&, run] { device->copy(limit, &limitOf[run], sizeof(int64_t)); }};
    device->enqueue(Queue::Compute, {}, std::move(bring));
    for (size_t i = 0; i < 3; ++i) {
      void *each = i == 1 ? limit : far;
      enqueue(10 + i, {each},
              [&, each] {
                void *args[] = {each};
                device->launch(*kernel, args, 8, 4, 1);
              },
              &messages[run][i]);
    }
    if (run % 7 == 6)
      device->drain();
  }
  device->drain();
  for (size_t run = 0; run < runs; ++run)
    for (size_t i = 0; i < 3; ++i)
      if (run % 5 == 3 && i == 1)
        expectWords(messages[run][i], "a kernel ended with code");
      else
        EXPECT_EQ(messages[run][i], "") << run << ", " << i;
  EXPECT_GT(calls("cuGraphLaunch"), runs / 8);
  device->memory().free(Space::HostPinned, limits.data, runs * sizeof(int64_t), 64, limits.account, {});
}

// What the host does in its turn cannot be recorded, and is done each time.
TEST_F(CudaRowsTest, HostFunctionsAreCalledEachTime) {
  int called = 0;
  for (int run = 0; run < 5; ++run) {
    enqueue(1, {sum, addend}, [&] { device->engine().add(sum, addend, count); });
    enqueue(2, {sum}, [&] { device->call([&] { ++called; }); });
    device->drain();
  }
  EXPECT_EQ(called, 5);
  EXPECT_EQ(calls("cuGraphLaunch"), 0u);
  EXPECT_EQ(calls("cuStreamBeginCapture_v2"), 1u) << "tried once";
}

// A body may wait for what stands before it in its row, as it does where it takes memory.
TEST_F(CudaRowsTest, ABodyMayWaitForThoseBeforeIt) {
  for (int run = 0; run < 4; ++run) {
    Fence first = enqueue(1, {sum, addend}, [&] { device->engine().add(sum, addend, count); });
    std::string message, last;
    enqueue(2, {sum}, [&] { device->wait(first); device->engine().add(sum, addend, count); }, &message);
    enqueue(3, {sum}, [&] { device->engine().add(sum, addend, count); }, &last);
    device->drain();
    EXPECT_EQ(message + last, "") << run;
  }
  EXPECT_EQ(read(sum)[7], 7 + 4 * 3 * 8);
  EXPECT_EQ(calls("cuGraphLaunch"), 0u);
  Fence own;
  std::string message;
  own = enqueue(1, {sum}, [&] { device->wait(own); }, &message);
  device->drain();
  expectWords(message, "a body waits for its own entry");
}

TEST_F(CudaRowsTest, WithoutAGraphARowIsGivenAsItIs) {
  uint64_t number = 0;
  for (const char *call : {"cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuStreamEndCapture"}) {
    fakecuda::reset();
    fakecuda::failCalls(call, 2, 0, 1);
    float *own = takeFloats(float(number++));
    std::vector<float> ownWanted = read(own);
    for (int run = 0; run < 4; ++run)
      addAndDouble(own, addend, ownWanted);
    device->drain();
    EXPECT_EQ(read(own), ownWanted) << call;
    EXPECT_EQ(calls("cuGraphLaunch"), 0u) << call;
  }
}

TEST_F(CudaRowsTest, ALaunchThatFailsIsAnErrorOfItsEntries) {
  std::string message;
  for (int run = 0; run < 3; ++run)
    addAndDouble(sum, addend, wanted);
  device->drain();
  fakecuda::failCalls("cuGraphLaunch", 2, 0, 1);
  std::vector<float> unused(count);
  addAndDouble(sum, addend, unused, &message);
  device->drain();
  expectWords(message, "cuGraphLaunch gives CUDA_ERROR_OUT_OF_MEMORY");
  addAndDouble(sum, addend, wanted, &message);
  device->drain();
  EXPECT_EQ(message, "");
  EXPECT_EQ(read(sum), wanted) << "the one that failed did nothing";
}

TEST_F(CudaRowsTest, CallsThatFailAroundARowAreItsErrors) {
  uint64_t number = 0; // each row is seen once, as a recording that fails is no error
  for (const char *call : {"cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel"}) {
    std::string message;
    Fence copied(Queue::HostToDevice, device->enqueueCall(Queue::HostToDevice, {}, [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }));
    fakecuda::failCalls(call, 3, 0, 1);
    std::string first;
    enqueue(++number, {sum}, [&] { device->engine().scale(sum, count, 1); }, &first, copied);
    enqueue(++number, {sum}, [&] { device->engine().scale(sum, count, 1); }, &message);
    device->drain();
    expectWords(first + message, call);
  }
}

// Rows of a device that is lost end with that, and it can be destroyed.
TEST(CudaRows, ALostDeviceEndsItsRows) {
  fakecuda::reset();
  DeviceRef device = Device::open("cuda:17,dram=16MiB,pinned=4MiB");
  KernelSource source{"test", "storeAtNull", {}};
  source.variants.push_back(
      {KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), "storeAtNull"});
  KernelRef kernel = device->makeKernel(source);
  std::string messages[4];
  for (std::string &message : messages) {
    Work work;
    work.command.number = 1;
    work.run = [&] { device->launch(*kernel, {}, 8, 4, 1); };
    work.ended = [&](const Error *error) { message = error ? error->what() : ""; };
    device->enqueue(Queue::Compute, {}, std::move(work));
  }
  device->drain();
  for (const std::string &message : messages)
    expectWords(message, "DEVICE_LOST");
  device.reset();
}
