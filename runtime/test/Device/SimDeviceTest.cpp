//===- SimDeviceTest.cpp - what only simulated devices do -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The link's time, the adversary's reach, virtual time to the digit.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <cstring>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <set>
#include <sys/stat.h>
#include <thread>

using namespace segue;

static uint64_t enqueue(const DeviceRef &device, Queue queue, const Fence &after, std::function<void()> run,
                        WorkCost cost = {}) {
  return device->enqueue(queue, after, {std::move(run), cost, "test"});
}

static MemoryBlock allocate(const DeviceRef &device, Space space, uint64_t bytes) {
  return device->memory().allocate(space, bytes, 64);
}

static void release(const DeviceRef &device, Space space, const MemoryBlock &block, uint64_t bytes,
                    const Fence &lastUse = {}) {
  device->memory().free(space, block.data, bytes, 64, block.account, lastUse);
}

template <typename Fn> static std::string messageOf(ErrorCode code, Fn fn) {
  try {
    fn();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

//===----------------------------------------------------------------------===//
// Real time
//===----------------------------------------------------------------------===//

// Never faster than latency + bytes / bandwidth, each direction its own.
TEST(SimDeviceTest, TheLinkTakesItsTime) {
  DeviceRef device = Device::open("sim:dram=4MiB,h2d=200MB/s,d2h=100MB/s,latency=1ms");
  constexpr uint64_t bytes = 1 << 20;
  MemoryBlock pinned = allocate(device, Space::HostPinned, bytes), dram = allocate(device, Space::DeviceDram, bytes);
  std::memset(pinned.data, 1, bytes);
  auto time = [&](Queue queue, void *target, void *source, int copies) {
    double before = device->seconds();
    for (int i = 0; i < copies; ++i)
      enqueue(device, queue, {}, [&] { device->copy(target, source, bytes); });
    device->drain();
    return device->seconds() - before;
  };
  EXPECT_GE(time(Queue::HostToDevice, dram.data, pinned.data, 1), 1e-3 + bytes / 200e6);
  EXPECT_GE(time(Queue::DeviceToHost, pinned.data, dram.data, 1), 1e-3 + bytes / 100e6);
  EXPECT_GE(time(Queue::HostToDevice, dram.data, pinned.data, 3), 3 * (1e-3 + bytes / 200e6));
  // Two that meet on one direction follow each other, whoever brings them.
  double before = device->seconds();
  enqueue(device, Queue::HostToDevice, {}, [&] { device->copy(dram.data, pinned.data, bytes / 2); });
  device->copy(static_cast<std::byte *>(dram.data) + bytes / 2, pinned.data, bytes / 2);
  device->drain();
  EXPECT_GE(device->seconds() - before, 2 * (1e-3 + bytes / 2 / 200e6));
  release(device, Space::HostPinned, pinned, bytes);
  release(device, Space::DeviceDram, dram, bytes);
}

// An entry that would never start is an error of whoever enqueued it.
TEST(SimDeviceTest, FencesOfTheFutureAreRefused) {
  for (const char *spec : {"sim", "sim:adversarial=1", "sim:virtual"}) {
    DeviceRef device = Device::open(spec);
    enqueue(device, Queue::Compute, {}, [] {});
    EXPECT_NE(messageOf(ErrorCode::InvalidArgument, [&] { device->wait(Fence(Queue::Compute, 2)); })
                  .find("the host waits for entry 2 of queue compute, which has had 1"),
              std::string::npos);
    EXPECT_NE(messageOf(ErrorCode::InvalidArgument,
                        [&] { enqueue(device, Queue::HostToDevice, Fence(Queue::DeviceToHost, 1), [] {}); })
                  .find("test waits for entry 1 of queue d2h, which has had 0"),
              std::string::npos);
    EXPECT_FALSE(device->isDone(Fence(Queue::DeviceToHost, 1)));
    EXPECT_EQ(device->position(Queue::HostToDevice), 0u) << "nothing was enqueued";
  }
}

// The last handle may go away in an entry; those behind it still run.
TEST(SimDeviceTest, MayGoAwayOnItsOwnQueue) {
  for (Queue queue : allQueues) {
    std::promise<void> mayGo, gone;
    std::atomic<int> ran{0};
    DeviceRef inner = Device::open("sim:dram=1MiB");
    Device *raw = inner.get();
    DeviceRef device(raw, [&gone, inner = std::move(inner)](Device *) mutable {
      inner.reset();
      gone.set_value();
    });
    Fence all(queue, enqueue(device, queue, {}, [&mayGo, device] { mayGo.get_future().wait(); }));
    for (int i = 0; i < 5; ++i)
      for (Queue other : allQueues)
        all.join(Fence(other, enqueue(device, other, all, [&ran] { ++ran; })));
    device.reset();
    mayGo.set_value();
    gone.get_future().wait();
    EXPECT_EQ(ran, 5 * int(queueCount));
  }
}

TEST(SimDeviceTest, ReservationsThatCannotBeAreRefused) {
  EXPECT_NE(messageOf(ErrorCode::DeviceOom, [] { Device::open("sim:dram=4096TiB"); })
                .find("the system has no 4503599627370496 bytes of addresses for device_dram"),
            std::string::npos);
}

//===----------------------------------------------------------------------===//
// The adversary
//===----------------------------------------------------------------------===//

/// The order in which an adversary runs free queues, with a wait and some
/// questions in between.
static std::string playOrder(uint64_t seed) {
  DeviceRef device = Device::open("sim:dram=1MiB,adversarial=" + std::to_string(seed));
  std::string order;
  for (int i = 0; i < 30; ++i) {
    for (Queue queue : allQueues)
      enqueue(device, queue, {}, [&order, queue] { order += "chdrw"[uint8_t(queue)]; });
    if (i == 10)
      device->wait(Fence(Queue::HostToDevice, 5));
    (void)device->isDone(Fence(Queue::Compute, uint64_t(i)));
  }
  device->drain();
  return order;
}

TEST(SimAdversaryTest, TheSeedGivesTheOrder) {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::string order = playOrder(seed);
    EXPECT_EQ(order, playOrder(seed)) << "seed " << seed;
    EXPECT_EQ(order.size(), 30 * queueCount);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 45u) << "orders differ";
}

// Both extremes are met: a queue that runs ahead at once, and one that is left
// until somebody waits for it.
TEST(SimAdversaryTest, WaitsForNothingAndRunsAhead) {
  int idle = 0, ahead = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    DeviceRef device = Device::open("sim:dram=1MiB,adversarial=" + std::to_string(seed));
    int ran = 0;
    for (int i = 0; i < 10; ++i)
      enqueue(device, Queue::Compute, {}, [&ran] { ++ran; });
    idle += ran == 0;
    ahead += ran == 10;
    device->drain();
    EXPECT_EQ(ran, 10);
  }
  EXPECT_GT(idle, 5);
  EXPECT_GT(ahead, 5);
}

// A missing fence is found: some seed runs the reader first, another does not.
TEST(SimAdversaryTest, FindsAMissingFence) {
  int stale = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    DeviceRef device = Device::open("sim:dram=1MiB,adversarial=" + std::to_string(seed));
    MemoryBlock block = allocate(device, Space::DeviceDram, 4);
    int written = 7, read = 0;
    enqueue(device, Queue::HostToDevice, {}, [&] { device->copy(block.data, &written, 4); });
    enqueue(device, Queue::DeviceToHost, {}, [&] { device->copy(&read, block.data, 4); });
    device->drain();
    stale += read != written;
    release(device, Space::DeviceDram, block, 4);
  }
  EXPECT_GT(stale, 5);
  EXPECT_LT(stale, 45);
}

// Fresh memory is no zero and no old value; freed memory stays as it was until
// the last work on it is done, and not a moment longer.
TEST(SimAdversaryTest, PoisonsFreedAndFreshMemory) {
  DeviceRef device = Device::open("sim:dram=1MiB,pinned=1MiB,adversarial=3");
  for (Space space : {Space::HostPinned, Space::DeviceDram, Space::DeviceL1}) {
    MemoryBlock block = allocate(device, space, 1024);
    auto *values = static_cast<volatile uint32_t *>(block.data);
    EXPECT_EQ(values[0], 0xffa1ffa1u);
    EXPECT_EQ(values[255], 0xffa1ffa1u);
    values[0] = 1;
    bool finished = false;
    uint32_t seen = 0;
    uint64_t use = enqueue(device, Queue::Compute, {}, [&] {
      seen = values[0];
      finished = true;
    });
    release(device, space, block, 1024, Fence(Queue::Compute, use));
    if (!finished) {
      EXPECT_EQ(values[0], 1u) << "still in use";
    }
    device->drain();
    EXPECT_EQ(seen, 1u);
    EXPECT_EQ(values[0], 0x7fa07fa0u);
    EXPECT_EQ(values[255], 0x7fa07fa0u);
  }
}

// Memory is overwritten before anybody may take its fence for done: what another
// thread then writes there stays.
TEST(SimAdversaryTest, OverwritesNothingBehindADoneFence) {
  constexpr uint64_t bytes = 8 << 20; // milliseconds of overwriting
  DeviceRef device = Device::open("sim:dram=8MiB,adversarial=3");
  MemoryBlock old = allocate(device, Space::DeviceDram, bytes), block;
  const Fence use(Queue::Compute, 1);
  std::atomic<bool> runs{false}, mayEnd{false};
  // This thread has the block next and writes as soon as it may, while the other
  // one ends the entry that all wait for.
  std::thread writer([&] {
    runs.wait(false);
    release(device, Space::DeviceDram, old, bytes, use);
    block = allocate(device, Space::DeviceDram, bytes);
    mayEnd = true;
    mayEnd.notify_one();
    while (!device->isDone(block.after))
      std::this_thread::yield();
    static_cast<std::byte *>(block.data)[bytes - 1] = std::byte(5);
  });
  enqueue(device, Queue::Compute, {}, [&] {
    runs = true;
    runs.notify_one();
    mayEnd.wait(false);
  });
  device->wait(use);
  writer.join();
  EXPECT_EQ(block.data, old.data);
  EXPECT_EQ(block.after, use);
  EXPECT_EQ(static_cast<std::byte *>(block.data)[bytes - 1], std::byte(5));
  release(device, Space::DeviceDram, block, bytes);
}

TEST(SimAdversaryTest, FindsWritesAfterFree) {
  DeviceRef device = Device::open("sim:dram=1MiB,adversarial=3");
  MemoryBlock block = allocate(device, Space::DeviceDram, 1024);
  release(device, Space::DeviceDram, block, 1024);
  static_cast<std::byte *>(block.data)[77] = std::byte(1);
  std::string message = messageOf(ErrorCode::UseAfterFree, [&] { allocate(device, Space::DeviceDram, 2048); });
  EXPECT_NE(message.find("adversarial=3\": byte 77 of device_dram was written after its block had been freed"),
            std::string::npos)
      << message;
}

TEST(SimAdversaryTest, FailedCopiesLeaveTheirSourceWhole) {
  DeviceRef device = Device::open("sim:dram=1MiB,adversarial=5,fail-copy=1");
  std::vector<int> values(1000, 3), found(1000);
  MemoryBlock block = allocate(device, Space::DeviceDram, 4000);
  std::string message = messageOf(ErrorCode::TransferFailed, [&] { device->copy(block.data, values.data(), 4000); });
  EXPECT_NE(message.find("the link failed in a copy of 4000 bytes to the device"), std::string::npos) << message;
  EXPECT_EQ(values, std::vector<int>(1000, 3));
  std::vector<std::byte> before(4000), after(4000);
  std::memcpy(before.data(), block.data, 4000);
  message = messageOf(ErrorCode::TransferFailed, [&] { device->copy(found.data(), block.data, 4000); });
  EXPECT_NE(message.find("to the host"), std::string::npos);
  std::memcpy(after.data(), block.data, 4000);
  EXPECT_EQ(before, after);
  // Only the link fails.
  device->copy(found.data(), values.data(), 4000);
  EXPECT_EQ(found, values);
  release(device, Space::DeviceDram, block, 4000);

  int failed = 0;
  DeviceRef half = Device::open("sim:dram=1MiB,adversarial=5,fail-copy=0.5");
  block = allocate(half, Space::DeviceDram, 4);
  for (int i = 0; i < 1000; ++i)
    try {
      half->copy(block.data, values.data(), 4);
    } catch (const Error &) {
      ++failed;
    }
  EXPECT_GT(failed, 400);
  EXPECT_LT(failed, 600);
  release(half, Space::DeviceDram, block, 4);
}

// Copies that are named by their number fail, in one direction, on any device.
TEST(SimFaultsTest, CopiesFailAtAChosenPlace) {
  for (std::string hostile : {"", ",adversarial=5"}) {
    DeviceRef device = Device::open("sim:dram=1MiB,fail-h2d=3x2,fail-d2h=5+" + hostile);
    MemoryBlock block = allocate(device, Space::DeviceDram, 64);
    std::vector<char> values(64, 7), found(64);
    std::string down, up;
    auto tryIt = [&](std::string &log, void *target, const void *source) {
      try {
        device->copy(target, source, 64);
        log += '.';
      } catch (const Error &error) {
        EXPECT_EQ(error.code(), ErrorCode::TransferFailed);
        log += 'x';
      }
    };
    for (int i = 0; i < 8; ++i) {
      tryIt(down, block.data, values.data());
      tryIt(up, found.data(), block.data);
      device->copy(found.data(), values.data(), 64); // not over the link
    }
    EXPECT_EQ(down, "..xx....");
    EXPECT_EQ(up, "....xxxx");
    release(device, Space::DeviceDram, block, 64);
  }
}

// So do tries to take memory of the device, and of no other space.
TEST(SimFaultsTest, AllocationsFailAtAChosenPlace) {
  for (std::string queues : {"", ",adversarial=5", ",virtual"}) {
    DeviceRef device = Device::open("sim:dram=1MiB,fail-dram=3x2" + queues);
    std::string log;
    for (int i = 0; i < 6; ++i)
      for (Space space : {Space::DeviceDram, Space::HostPinned}) {
        MemoryBlock block = device->takeMemory(space, 64, 64, Lifetime::Long);
        log += block.data ? '.' : 'x';
        if (block.data)
          device->giveMemory(space, block.data, 64, 64, {});
      }
    EXPECT_EQ(log, "....x.x.....");
  }
}

// A wait with a limit ends with it, in the time of the device.
TEST(SimDeviceTest, WaitsWithALimitEnd) {
  DeviceRef device = Device::open("sim:dram=1MiB");
  std::promise<void> mayGo;
  Fence stuck(Queue::Compute, enqueue(device, Queue::Compute, {}, [&] { mayGo.get_future().wait(); }));
  EXPECT_FALSE(device->waitFor(stuck, 1e-3));
  EXPECT_FALSE(device->waitFor(stuck, -1));
  mayGo.set_value();
  EXPECT_TRUE(device->waitFor(stuck, std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(device->waitFor(stuck, 0));

  DeviceRef planned = Device::open("sim:virtual,launch=2s");
  Fence end(Queue::Compute, enqueue(planned, Queue::Compute, {}, [] {}));
  EXPECT_FALSE(planned->waitFor(end, 0.5));
  EXPECT_EQ(planned->seconds(), 0.5);
  EXPECT_TRUE(planned->waitFor(end, 1.5));
  EXPECT_TRUE(planned->waitFor(end, 10));
  EXPECT_EQ(planned->seconds(), 2);

  // The adversary decides whether it does, and forgets no entry.
  DeviceRef hostile = Device::open("sim:dram=1MiB,adversarial=4,stall=0.5");
  int ran = 0, late = 0;
  for (int i = 0; i < 200; ++i)
    late += !hostile->waitFor(Fence(Queue::Compute, enqueue(hostile, Queue::Compute, {}, [&] { ++ran; })), 1e-9);
  hostile->drain();
  EXPECT_EQ(ran, 200);
  EXPECT_GT(late, 10);
  EXPECT_LT(late, 150);
}

TEST(SimAdversaryTest, AllocationsFailButNotTheHosts) {
  DeviceRef device = Device::open("sim:dram=1MiB,adversarial=5,fail-alloc=1");
  for (Space space : {Space::HostPinned, Space::DeviceDram, Space::DeviceL1})
    messageOf(ErrorCode::DeviceOom, [&] { allocate(device, space, 64); });
  release(device, Space::Host, allocate(device, Space::Host, 64), 64);
}

TEST(SimAdversaryTest, TheBudgetShrinksAndComesBack) {
  DeviceRef device = Device::open("sim:dram=1MiB,adversarial=5,shrink=0.25");
  std::set<uint64_t> budgets;
  for (int i = 0; i < 200; ++i) {
    enqueue(device, Queue::Compute, {}, [] {});
    budgets.insert(device->memory().budget(Space::DeviceDram));
  }
  EXPECT_EQ(budgets, (std::set<uint64_t>{256 << 10, 1 << 20}));
  // A budget that somebody sets meanwhile is his.
  device->memory().setBudget(Space::DeviceDram, 400 << 10);
  for (int i = 0; i < 200; ++i) {
    enqueue(device, Queue::Compute, {}, [] {});
    EXPECT_LE(device->memory().budget(Space::DeviceDram), uint64_t(400 << 10));
  }
}

TEST(SimAdversaryTest, ASeedIsDrawnAndPrinted) {
  DeviceRef device = Device::open("sim:dram=1MiB,adversarial");
  EXPECT_TRUE(device->name().starts_with("sim:dram=1MiB,adversarial="));
  EXPECT_EQ(Device::open(device->name())->name(), device->name());
}

// An entry waits for what it could not run without; the adversary runs that
// first, and names the knot if there is none.
TEST(SimAdversaryTest, EntriesMayWaitForOtherQueues) {
  DeviceRef device = Device::open("sim:dram=1MiB,adversarial=9");
  std::string order;
  uint64_t copied = enqueue(device, Queue::HostToDevice, {}, [&] { order += "h"; });
  enqueue(device, Queue::Compute, {}, [&] {
    device->wait(Fence(Queue::HostToDevice, copied));
    order += "c";
  });
  device->drain();
  EXPECT_EQ(order, "hc");
  enqueue(device, Queue::Compute, {}, [&] {
    EXPECT_NE(messageOf(ErrorCode::InvalidArgument, [&] { device->wait(Fence(Queue::Compute, 2)); })
                  .find("waits for its own end"),
              std::string::npos);
  });
  device->drain();
}

//===----------------------------------------------------------------------===//
// Virtual time
//===----------------------------------------------------------------------===//

// The example of R5: 64 MiB over 16 GB/s with 10 us of latency.
TEST(SimVirtualTest, CopiesTakeTheTimeOfTheLink) {
  DeviceRef device = Device::open("sim:virtual,link=16GB/s,latency=10us");
  EXPECT_EQ(device->seconds(), 0);
  uint64_t copy = enqueue(device, Queue::HostToDevice, {}, [] { FAIL(); }, {.linkBytes = 64 << 20});
  EXPECT_EQ(device->seconds(), 0) << "the host does not wait";
  EXPECT_FALSE(device->isDone(Fence(Queue::HostToDevice, copy)));
  device->wait(Fence(Queue::HostToDevice, copy));
  EXPECT_NEAR(device->seconds(), 4.204304e-3, 1e-9);
  EXPECT_TRUE(device->isDone(Fence(Queue::HostToDevice, copy)));
}

// 10 blocks of weights, each copied and then used: copies run ahead of kernels,
// so the step takes the longer of the two and the first of the other.
TEST(SimVirtualTest, QueuesOverlapBehindTheirFences) {
  DeviceRef device = Device::open("sim:virtual,link=10GB/s,latency=0s,launch=0s,flops=10TFLOP/s,membw=1000GB/s");
  Fence computed;
  for (int i = 0; i < 10; ++i) {
    Fence copied(Queue::HostToDevice, enqueue(device, Queue::HostToDevice, {}, [] {}, {.linkBytes = 10000000}));
    computed = Fence(Queue::Compute, enqueue(device, Queue::Compute, copied, [] {}, {.flops = 20000000000}));
  }
  device->wait(computed);
  EXPECT_NEAR(device->seconds(), 1e-3 + 10 * 2e-3, 1e-9);
  // Bound by memory: 5 GB at 1000 GB/s are longer than the flops.
  uint64_t entry = enqueue(device, Queue::Compute, {}, [] {}, {.memoryBytes = 5000000000, .flops = 1000});
  device->wait(Fence(Queue::Compute, entry));
  EXPECT_NEAR(device->seconds(), 21e-3 + 5e-3, 1e-9);
  // What was enqueued late starts when the host came to it.
  entry = enqueue(device, Queue::DeviceToHost, {}, [] {}, {.linkBytes = 10000000});
  device->wait(Fence(Queue::DeviceToHost, entry));
  EXPECT_NEAR(device->seconds(), 27e-3, 1e-9);
}

TEST(SimVirtualTest, WaitingForLessLetsTheRestGoOn) {
  DeviceRef device = Device::open("sim:virtual,launch=1ms");
  for (int i = 0; i < 5; ++i)
    enqueue(device, Queue::Compute, {}, [] {});
  device->wait(Fence(Queue::Compute, 2));
  EXPECT_NEAR(device->seconds(), 2e-3, 1e-12);
  EXPECT_FALSE(device->isDone(Fence(Queue::Compute, 3)));
  device->wait(Fence(Queue::Compute, 1));
  EXPECT_NEAR(device->seconds(), 2e-3, 1e-12) << "no way back";
  device->drain();
  EXPECT_NEAR(device->seconds(), 5e-3, 1e-12);
}

// Far more than the machine has, and what the host does itself takes time too.
TEST(SimVirtualTest, NeedsNoMemory) {
  DeviceRef device = Device::open("sim:virtual,dram=80GiB,pinned=512GiB,link=16GB/s,latency=0s");
  EXPECT_FALSE(device->hasBytes());
  MemoryBlock dram = allocate(device, Space::DeviceDram, 80ull << 30);
  MemoryBlock pinned = allocate(device, Space::HostPinned, 300ull << 30), more;
  more = allocate(device, Space::HostPinned, 212ull << 30);
  EXPECT_NE(pinned.data, more.data);
  EXPECT_EQ(device->memory().tryAllocate(Space::DeviceDram, 1, 1).data, nullptr);
  device->copy(dram.data, pinned.data, 16000000000);
  EXPECT_NEAR(device->seconds(), 1.0, 1e-9);
  device->launch(HostKernel(nullptr), {}, 100, 1, 1);
  release(device, Space::DeviceDram, dram, 80ull << 30);
  release(device, Space::HostPinned, pinned, 300ull << 30);
  release(device, Space::HostPinned, more, 212ull << 30);
}

//===----------------------------------------------------------------------===//
// Profiles
//===----------------------------------------------------------------------===//

TEST(SimProfileTest, FilesGiveWhatTheSpecDoesNot) {
  std::string path = testing::TempDir() + "segue-profile-" + std::to_string(getpid()) + ".json";
  auto write = [&](const char *text) { std::ofstream(path) << text; };
  write(
      R"({"dram": "24GiB", "link": "20GB/s", "d2h": "10GB/s", "latency": "0s", "flops": "100TFLOP/s", "threads": 2})");
  DeviceRef device = Device::open("sim:virtual,profile=" + path);
  EXPECT_EQ(device->threads(), 2);
  EXPECT_EQ(device->memory().budget(Space::DeviceDram), 24ull << 30);
  auto seconds = [](const DeviceRef &device, Queue queue) {
    double before = device->seconds();
    device->wait(Fence(queue, enqueue(device, queue, {}, [] {}, {.linkBytes = 20000000})));
    return device->seconds() - before;
  };
  EXPECT_NEAR(seconds(device, Queue::HostToDevice), 1e-3, 1e-9);
  EXPECT_NEAR(seconds(device, Queue::DeviceToHost), 2e-3, 1e-9);
  // A link in the spec is both directions, whatever the file says.
  device = Device::open("sim:virtual,link=5GB/s,dram=1GiB,profile=" + path);
  EXPECT_EQ(device->memory().budget(Space::DeviceDram), 1ull << 30);
  EXPECT_NEAR(seconds(device, Queue::DeviceToHost), 4e-3, 1e-9);

  auto open = [&] { Device::open("sim:virtual,profile=" + path); };
  write(R"({"ram": "24GiB"})");
  EXPECT_NE(messageOf(ErrorCode::InvalidArgument, open).find(path + "\": there is no option \"ram\"; known are d2h"),
            std::string::npos);
  write(R"({"dram": "lots"})");
  EXPECT_NE(messageOf(ErrorCode::InvalidArgument, open).find(path + "\": dram=lots is not a quantity"),
            std::string::npos);
  write(R"({"dram": [1]})");
  EXPECT_NE(messageOf(ErrorCode::InvalidArgument, open).find("\"dram\" is [1]; give a text such as \"16GB/s\""),
            std::string::npos);
  write("[]");
  EXPECT_NE(messageOf(ErrorCode::FileCorrupt, open).find("is not a JSON object of options"), std::string::npos);
  write(R"({"version": 1, "about": "a card", "dram": "1GiB"})");
  EXPECT_EQ(Device::open("sim:virtual,profile=" + path)->memory().budget(Space::DeviceDram), 1ull << 30);
  write(R"({"version": 2, "dram": "1GiB", "tides": "2 a day"})");
  EXPECT_NE(messageOf(ErrorCode::VersionUnsupported, open).find(path + " is of version 2; this library reads up to 1"),
            std::string::npos);
  for (const char *version : {"0", "-1", "1.5", "\"1\"", "null"}) {
    write((std::string(R"({"version": )") + version + "}").c_str());
    EXPECT_NE(messageOf(ErrorCode::InvalidArgument, open).find(std::string("\"version\" is ") + version),
              std::string::npos);
  }
  write(R"({"about": ["a card"]})");
  EXPECT_NE(messageOf(ErrorCode::InvalidArgument, open).find("\"about\" is [\"a card\"]"), std::string::npos);
  write((R"({"about": ")" + std::string(2 << 20, 'x') + "\"}").c_str());
  EXPECT_NE(messageOf(ErrorCode::FileCorrupt, open).find("it is longer than 1 MiB"), std::string::npos);
  std::remove(path.c_str());
  EXPECT_NE(messageOf(ErrorCode::IoFailed, open).find("cannot open the profile " + path), std::string::npos);
  // A pipe, which never ends or begins, is no file.
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(messageOf(ErrorCode::IoFailed, open).find("cannot open the profile " + path), std::string::npos);
  std::remove(path.c_str());
  auto openOther = [](const char *other) {
    return [=] { Device::open(std::string("sim:virtual,profile=") + other); };
  };
  messageOf(ErrorCode::FileCorrupt, openOther("/dev/zero"));
  messageOf(ErrorCode::IoFailed, openOther("/"));
}
