//===- CudaDiskTest.cpp - a disk below the host's memory of a GPU ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What is a GPU's own of it, on a fake driver: its options, and streams that wait for a thread
// of the host. Tensors that leave are DiskBelowHostTest's, sessions GpuSessionTest's.
//
//===----------------------------------------------------------------------===//

#include "../Device/DeviceKernels.h"
#include "CudaTestParts.h"
#include "ErrorOf.h"
#include "FakeCuda.h"
#include "segue/runtime/Device/Device.h"
#include <cstring>
#include <thread>

using namespace segue;
using namespace segue::test;

namespace {
class CudaDiskTest : public testing::Test {
protected:
  static constexpr uint64_t bytes = 3 << 20; // more than the buffer for pageable memory
  static constexpr const char *options = ",dram=16MiB,host=8MiB,disk=.?capacity=16MiB";

  MemoryBlock take(Space space) { return device->memory().allocate(space, bytes, 4096); }
  void fill(const MemoryBlock &block, int value) { std::memset(block.data, value, bytes); }
  /// The first byte that is not `value`.
  static uint64_t firstOther(const void *data, int value) {
    auto *begin = static_cast<const std::byte *>(data);
    auto differs = [&](std::byte byte) { return byte != std::byte(value); };
    return uint64_t(std::find_if(begin, begin + bytes, differs) - begin);
  }
  /// Copies in a body; returns what the entry ended with.
  std::string copyOn(Queue queue, const MemoryBlock &target, const MemoryBlock &source) {
    std::string message;
    Work work{[&] { device->copy(target.data, source.data, bytes); }};
    work.ended = [&](const Error *error) { message = error ? error->what() : ""; };
    device->wait(Fence(queue, device->enqueue(queue, {}, std::move(work))));
    return message;
  }

  DeviceRef device = Device::open(std::string("cuda:10") + options);
};
} // namespace

TEST_F(CudaDiskTest, ItsSpecOpensItAgainAndItsTwinHasItsTiers) {
  EXPECT_EQ(device->name(), "cuda:10,dram=16777216,host=8388608,disk=.?capacity=16MiB");
  EXPECT_EQ(Device::open(device->name())->name(), device->name());
  ASSERT_TRUE(device->diskLink() && device->twin());
  EXPECT_EQ(device->homeSpace(), Space::Disk);
  DeviceRef twin = Device::open(*device->twin());
  for (Space space : {Space::HostPinned, Space::DeviceDram, Space::Disk})
    EXPECT_EQ(twin->memory().budget(space), device->memory().budget(space)) << name(space);
  EXPECT_EQ(twin->diskLink()->h2dBytesPerSecond, 2e9);
  EXPECT_EQ(Device::open("cuda:10,dram=4MiB,host=1MiB,disk=.?capacity=1MiB&read=3GB/s")->diskLink()->h2dBytesPerSecond,
            3e9);
}

TEST_F(CudaDiskTest, SaysWhatItCannotUse) {
  auto refusal = [](const char *spec) { return errorOf([&] { Device::open(spec); }).second; };
  expectWords(refusal("cuda:10,host=8MiB"), "there is no disk=; leave it out");
  expectWords(refusal("cuda:10,host=8MiB,pinned=8MiB,disk=."), "leave pinned= out");
  expectWords(refusal("cuda:10,host=64KiB,disk=."), "host=65536 is too little memory of the host above a disk");
  expectWords(refusal("cuda:10,host=8MiB,disk=/nowhere"), "/nowhere");
  expectWords(refusal("cuda:10,host=8MiB,disk="), "option \"disk\" needs a value");
}

TEST_F(CudaDiskTest, BytesComeFromAndToEveryMemory) {
  MemoryBlock disk = take(Space::Disk), other = take(Space::Disk);
  for (Space space : {Space::Host, Space::HostPinned}) {
    MemoryBlock from = take(space), there = take(dram), back = take(space);
    fill(from, 7 + int(space));
    EXPECT_EQ(copyOn(Queue::DiskWrite, disk, from), "");
    EXPECT_EQ(copyOn(Queue::DiskWrite, other, disk), "");
    EXPECT_EQ(copyOn(Queue::HostToDevice, there, other), "");
    EXPECT_EQ(copyOn(Queue::DeviceToHost, disk, there), "");
    EXPECT_EQ(copyOn(Queue::DiskRead, back, disk), "");
    EXPECT_EQ(firstOther(back.data, 7 + int(space)), bytes) << name(space);
    // Outside of a body.
    fill(from, 70 + int(space));
    for (auto [target, source] : {std::pair(&disk, &from), {&there, &disk}, {&other, &there}, {&back, &other}})
      device->copy(target->data, source->data, bytes);
    EXPECT_EQ(firstOther(back.data, 70 + int(space)), bytes) << name(space);
  }
}

// The driver has one thread for the host functions of all streams.
TEST_F(CudaDiskTest, NoHostFunctionHoldsTheDisk) {
  MemoryBlock disk = take(Space::Disk), from = take(Space::HostPinned);
  fill(from, 9);
  auto *first = static_cast<volatile char *>(disk.data);
  *first = 0;
  bool hasCome = false;
  Fence call(Queue::DeviceToHost, device->enqueueCall(Queue::DeviceToHost, {}, [&] {
    for (int tries = 0; tries < 20000 && !(hasCome = *first == 9); ++tries)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }));
  Work work{[&] { device->copy(disk.data, from.data, bytes); }};
  device->wait(Fence(Queue::DiskWrite, device->enqueue(Queue::DiskWrite, {}, std::move(work))));
  device->wait(call);
  EXPECT_TRUE(hasCome);
}

// A call that the driver refuses is an error of its entry, and what waits for the entry waits for the disk.
TEST_F(CudaDiskTest, FailedCallsAreErrorsOfTheirEntry) {
  MemoryBlock disk = take(Space::Disk), from = take(Space::HostPinned), back = take(Space::HostPinned);
  fill(from, 3);
  fakecuda::failCalls("cuStreamWaitValue32_v2", 1, 0, 1);
  expectWords(copyOn(Queue::DiskWrite, disk, from), "cuStreamWaitValue32 gives");
  fakecuda::failCalls("cuEventRecord", 1, 0, 1);
  expectWords(copyOn(Queue::DiskWrite, disk, from), "cuEventRecord gives");
  fakecuda::failCalls("cuEventSynchronize", 1, 0, 3);
  EXPECT_EQ(copyOn(Queue::DiskWrite, disk, from), "") << "the queue goes on";
  EXPECT_EQ(copyOn(Queue::DiskRead, back, disk), "");
  EXPECT_EQ(firstOther(back.data, 3), bytes);
}

// What the disk has begun ends, and what it has not is dropped.
TEST(CudaDisk, ALostDeviceEndsWhatTheDiskWasGiven) {
  DeviceRef device = Device::open("cuda:11,dram=8MiB,host=4MiB,disk=.?capacity=4MiB");
  constexpr uint64_t bytes = 1 << 20;
  MemoryBlock disk = device->memory().allocate(Space::Disk, bytes, 4096);
  MemoryBlock here = device->memory().allocate(Space::HostPinned, bytes, 4096);
  KernelSource source{"wild.segue", "wild", {}};
  source.variants.push_back(
      {KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), "storeAtNull"});
  KernelRef wild = device->makeKernel(source);
  int ended = 0, lost = 0;
  auto enqueue = [&](Queue queue, const Fence &after, std::function<void()> body) {
    Work work{std::move(body)};
    work.ended = [&](const Error *error) {
      ++ended;
      lost += error && error->code() == ErrorCode::DeviceLost;
    };
    return Fence(queue, device->enqueue(queue, after, std::move(work)));
  };
  Fence all;
  for (int i = 0; i < 20; ++i)
    all.join(enqueue(Queue::DiskWrite, {}, [&] { device->copy(disk.data, here.data, bytes); }));
  all.join(enqueue(Queue::Compute, {}, [&] { device->launch(*wild, {}, 1, 1, 1); }));
  for (int i = 0; i < 20; ++i)
    all.join(enqueue(Queue::DiskRead, all, [&] { device->copy(here.data, disk.data, bytes); }));
  device->wait(all);
  EXPECT_EQ(ended, 41);
  EXPECT_GE(lost, 21) << "the kernel, and all behind it";
}
