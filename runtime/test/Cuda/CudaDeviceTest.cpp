//===- CudaDeviceTest.cpp - what is particular to cuda:N ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Device/DeviceKernels.h"
#include "CudaTestParts.h"
#include "FakeCuda.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/DramCompactor.h"
#include "segue/runtime/Tensor/Storage.h"
#include <atomic>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>

using namespace segue;
using namespace segue::test;

static std::string messageOf(const std::string &spec, ErrorCode code) {
  try {
    Device::open(spec);
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "it opened";
}

TEST(CudaDevice, BadSpecsAreNamed) {
  auto expect = [](const char *spec, const char *words) {
    expectWords(messageOf(spec, ErrorCode::InvalidArgument), words);
  };
  expect("cuda", "the number of a GPU comes first, as in cuda:0");
  expect("cuda:first", "the number of a GPU comes first");
  expect("cuda:-1", "the number of a GPU comes first");
  expect("cuda:dram=8MiB", "the number of a GPU comes first");
  expect("cuda:0,threads=2",
        "there is no option \"threads\"; known are codes, disk, dram, host, l1, panels, pinned, profile, tf32, workspace");
  expect("cuda:0,dram=0", "dram=0 leaves no memory");
  expect("cuda:0,pinned=0", "pinned=0 leaves no page-locked memory");
  expect("cuda:0,dram=8GiB", "dram=8589934592 is more than Fake GPU has, 268435456 bytes");
  expectWords(messageOf("cuda:24", ErrorCode::Unsupported), "the CUDA driver finds 24 GPUs, the last is cuda:23");
  expectWords(messageOf("cuda:8", ErrorCode::Unsupported), "cannot map memory into ranges of addresses");
}

TEST(CudaDevice, AMachineWithoutOneSaysSo) {
  auto with = [](const char *variable, const char *value, auto then) {
    std::string before = getenv(variable) ? getenv(variable) : "";
    setenv(variable, value, 1);
    then();
    before.empty() ? unsetenv(variable) : setenv(variable, before.c_str(), 1);
  };
  with("SEGUE_CUDA_LIBRARY", "/nowhere/libcuda.so.1", [] {
    expectWords(messageOf("cuda:0", ErrorCode::Unsupported), "there is no CUDA driver: /nowhere/libcuda.so.1");
  });
  with("SEGUE_CUDA_LIBRARY", "libm.so.6", [] {
    expectWords(messageOf("cuda:0", ErrorCode::Unsupported), "has no cuInit; it is too old, CUDA 12 is the least");
  });
  // Another name for the same library, so that it is looked at anew.
  std::string fake = SEGUE_FAKE_CUDA;
  fake.insert(fake.rfind('/'), "/.");
  with("SEGUE_CUDA_LIBRARY", fake.c_str(), [&] {
    with("FAKE_CUDA_VERSION", "11040", [] {
      expectWords(messageOf("cuda:0", ErrorCode::Unsupported), "is of CUDA 11.4; 12.0 is the least");
    });
  });
  with("FAKE_CUDA_CAPABILITY", "75", [] {
    expectWords(messageOf("cuda:0", ErrorCode::Unsupported), "has compute capability 7.5, and kernels need 8.0");
  });
  with("FAKE_CUDA_CAPABILITY", "89", [] { EXPECT_EQ(Device::open("cuda:0,dram=4MiB")->kernelTarget(), "sm_80"); });
  with("FAKE_CUDA_CAPABILITY", "120", [] { EXPECT_EQ(Device::open("cuda:0,dram=4MiB")->kernelTarget(), "sm_100"); });
  with("FAKE_CUDA_DEVICES", "0", [] {
    expectWords(messageOf("cuda:0", ErrorCode::Unsupported), "the CUDA driver finds no GPU");
  });
}

TEST(CudaDevice, TakesWhatIsFreeUnlessTold) {
  DeviceRef device = Device::open("cuda:0,pinned=1MiB");
  for (const SpaceInfo &info : device->spaces())
    if (info.space == dram) {
      EXPECT_EQ(info.capacityBytes, 128 * mib) << "half, where less than 2 GiB are free";
    }
  EXPECT_EQ(device->name(), "cuda:0,dram=134217728,pinned=1048576");
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

namespace {
class CudaMemoryTest : public testing::Test {
protected:
  MemoryBlock take(uint64_t bytes) {
    MemoryBlock block = device->memory().tryAllocate(dram, bytes, 512);
    if (block.data) // writes to all of it, behind its last use
      device->enqueue(Queue::Compute, block.after, {[=, this] { device->engine().fill(block.data, bytes, 1, 1); }});
    return block;
  }
  void give(const MemoryBlock &block, uint64_t bytes, const Fence &lastUse = {}) {
    device->memory().free(dram, block.data, bytes, 512, block.account, lastUse);
  }

  DeviceRef device = Device::open("cuda:9,dram=16MiB,pinned=4MiB");
};
} // namespace

// Chunks are the driver's figure: as many as are needed, never more than the budget.
TEST_F(CudaMemoryTest, ChunksFollowTheBudget) {
  uint64_t before = fakecuda::takenBytes(9);
  EXPECT_EQ(before, 0u) << "nothing is taken before it is needed";
  MemoryBlock a = take(5 * mib);
  EXPECT_EQ(fakecuda::takenBytes(9), 6 * mib);
  MemoryBlock b = take(3 * mib);
  EXPECT_EQ(fakecuda::takenBytes(9), 8 * mib) << "blocks share a chunk";
  device->drain();
  give(b, 3 * mib);
  EXPECT_EQ(fakecuda::takenBytes(9), 8 * mib) << "kept for the next step";
  device->memory().setBudget(dram, 6 * mib);
  EXPECT_EQ(fakecuda::takenBytes(9), 6 * mib);
  EXPECT_EQ(take(2 * mib).data, nullptr);
  MemoryBlock c = take(1 * mib);
  EXPECT_NE(c.data, nullptr);
  EXPECT_EQ(fakecuda::takenBytes(9), 6 * mib);
  device->drain();
  give(a, 5 * mib);
  give(c, 1 * mib);
}

// Free chunks that lie apart serve one block: no fragmentation but of pieces of a chunk.
TEST_F(CudaMemoryTest, FreeChunksThatLieApartServeOneBlock) {
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < 8; ++i)
    blocks.push_back(take(2 * mib));
  device->drain();
  for (int i = 0; i < 8; i += 2)
    give(blocks[size_t(i)], 2 * mib);
  MemoryBlock whole = take(8 * mib);
  ASSERT_NE(whole.data, nullptr);
  device->drain();
  EXPECT_EQ(fakecuda::takenBytes(9), 16 * mib);
  EXPECT_EQ(fakecuda::mappedChunks(9), 8u);
  give(whole, 8 * mib);
  for (int i = 1; i < 8; i += 2)
    give(blocks[size_t(i)], 2 * mib);
}

// The same while queued work still uses what is free: nothing waits, the new block has the
// fence, and the old places are unmapped once it has passed.
TEST_F(CudaMemoryTest, ChunksInUseMoveBehindTheirFence) {
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < 8; ++i)
    blocks.push_back(take(2 * mib));
  device->drain();
  std::atomic<bool> mayEnd{false};
  uint64_t held = device->enqueueCall(Queue::DeviceToHost, {}, [&] {
    while (!mayEnd)
      std::this_thread::yield();
  });
  Fence use(Queue::Compute, device->enqueue(Queue::Compute, Fence(Queue::DeviceToHost, held), {[&] {
              for (int i = 0; i < 8; i += 2)
                device->engine().fill(blocks[size_t(i)].data, 2 * mib, 7, 1);
            }}));
  for (int i = 0; i < 8; i += 2)
    give(blocks[size_t(i)], 2 * mib, use);
  MemoryBlock whole = device->memory().tryAllocate(dram, 8 * mib, 512);
  ASSERT_NE(whole.data, nullptr) << "nobody waits";
  EXPECT_EQ(whole.after, use);
  EXPECT_EQ(fakecuda::mappedChunks(9), 12u) << "four of them twice";
  EXPECT_FALSE(device->isDone(use));
  uint64_t filled =
      device->enqueue(Queue::HostToDevice, whole.after, {[&] { device->engine().fill(whole.data, 8 * mib, 2, 1); }});
  mayEnd = true;
  device->wait(Fence(Queue::HostToDevice, filled));
  std::vector<uint8_t> values(8 * mib);
  device->copy(values.data(), whole.data, values.size());
  EXPECT_EQ(std::ranges::count(values, 2), int64_t(values.size()));
  EXPECT_EQ(device->memory().tryAllocate(dram, 1, 1).data, nullptr) << "all is taken";
  device->enqueue(Queue::Compute, {}, {});
  EXPECT_EQ(fakecuda::mappedChunks(9), 8u) << "the old places have been unmapped";
  EXPECT_EQ(fakecuda::takenBytes(9), 16 * mib);
  give(whole, 8 * mib);
  for (int i = 1; i < 8; i += 2)
    give(blocks[size_t(i)], 2 * mib);
}

TEST_F(CudaMemoryTest, ReservedRangesAreMappedAndKept) {
  std::vector<AddressRange> free = device->freeRanges(dram);
  ASSERT_EQ(free.size(), 1u);
  EXPECT_EQ(free[0], (AddressRange{0, 16 * mib})) << "addresses are not short, memory is";
  AddressRange ranges[] = {{1 * mib, 6 * mib}, {9 * mib, 3 * mib}};
  const std::byte *origin = device->reserveMemory(dram, ranges);
  ASSERT_NE(origin, nullptr);
  EXPECT_EQ(fakecuda::takenBytes(9), 12 * mib);
  MemoryBlock block = device->takeReserved(dram, 2 * mib, 512, 4 * mib);
  EXPECT_EQ(block.data, origin + 4 * mib);
  EXPECT_EQ(device->takeReserved(dram, 2 * mib, 512, 5 * mib).data, nullptr) << "not free";
  device->giveMemory(dram, block.data, 2 * mib, 512, {});
  AddressRange tooMuch[] = {{0, 40 * mib}};
  EXPECT_EQ(device->reserveMemory(dram, tooMuch), nullptr) << "not that much memory";
  EXPECT_EQ(device->takeReserved(dram, 2 * mib, 512, 4 * mib).data, origin + 4 * mib) << "and nothing has changed";
  device->giveMemory(dram, const_cast<std::byte *>(origin) + 4 * mib, 2 * mib, 512, {});
  EXPECT_NE(device->reserveMemory(dram, {}), nullptr);
}

// A block that is given back makes a chunk free if nothing else lies there, and is known to before.
TEST_F(CudaMemoryTest, FreeRangesAreKnownBeforeBlocksAreGivenBack) {
  device->memory().setBudget(dram, 8 * mib);
  std::vector<MemoryBlock> blocks;
  for (uint64_t bytes : {3 * mib, 1 * mib, 2 * mib, mib / 2})
    blocks.push_back(take(bytes));
  HeldBlock back[] = {{blocks[1].data, 1 * mib}, {blocks[2].data, 2 * mib}, {blocks[1].data, 0}};
  std::vector<AddressRange> before = device->freeRanges(dram), known = device->freeRanges(dram, back);
  EXPECT_EQ(device->freeRanges(dram), before);
  EXPECT_NE(known, before);
  device->drain();
  give(blocks[2], 2 * mib);
  give(blocks[1], 1 * mib);
  EXPECT_EQ(device->freeRanges(dram), known);
  give(blocks[0], 3 * mib);
  give(blocks[3], mib / 2);
}

// A driver that has no more is no error while free chunks serve, and DeviceOom else.
TEST_F(CudaMemoryTest, OthersMayHaveTheMemory) {
  constexpr int outOfMemory = 2;
  MemoryBlock a = take(4 * mib);
  device->drain();
  give(a, 4 * mib);
  fakecuda::failCalls("cuMemCreate", outOfMemory, 0, 1000);
  MemoryBlock b = take(4 * mib);
  EXPECT_NE(b.data, nullptr);
  EXPECT_THROW(device->memory().allocate(dram, 4 * mib, 512), OutOfMemory);
  fakecuda::reset();
  MemoryBlock c = take(4 * mib);
  EXPECT_NE(c.data, nullptr);
  device->drain();
  give(b, 4 * mib);
  give(c, 4 * mib);
}

// Free memory within chunks that are in use is made one range by copies.
TEST_F(CudaMemoryTest, StoragesMoveTogetherWithinChunks) {
  DeviceRef gpu = Device::open("cuda:10,dram=4MiB,pinned=4MiB");
  constexpr uint64_t part = 512 << 10;
  std::vector<std::shared_ptr<Storage>> storages;
  for (uint8_t i = 0; i < 8; ++i) {
    storages.push_back(Storage::allocate(gpu, dram, part, 512, 0));
    gpu->engine().fill(storages.back()->data(), part, i, 1);
  }
  for (size_t i : {0, 2, 5, 7})
    storages[i].reset();
  EXPECT_EQ(gpu->freeMemory(dram).ranges, 4u);
  std::shared_ptr<Storage> large = Storage::allocate(gpu, dram, 3 * part, 512, 0);
  EXPECT_GT(gpu->dramCompactor()->movedBytes(), 0u);
  gpu->wait(large->uses());
  gpu->engine().fill(large->data(), 3 * part, 9, 1);
  std::vector<uint8_t> found(part);
  for (uint8_t i : {1, 3, 4, 6}) {
    gpu->wait(storages[i]->uses());
    gpu->copy(found.data(), storages[i]->data(), part);
    EXPECT_EQ(found, std::vector<uint8_t>(part, i)) << int(i);
  }
  EXPECT_LE(fakecuda::takenBytes(10), 4 * mib);
}

// The memory of kernels' stacks is in the books before the first launch, and parts nobody's.
TEST_F(CudaMemoryTest, StacksAreCounted) {
  KernelSource source{"stacks.segue", "deep", {}};
  source.variants.push_back(
      {KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), "stack4096"});
  uint64_t stacks = (4096 - 1024) * 4 * 2048; // threads of the fake
  DeviceRef small = Device::open("cuda:10,dram=16MiB,pinned=4MiB");
  try {
    small->makeKernel(source);
    FAIL() << stacks << " bytes do not fit";
  } catch (const OutOfMemory &error) {
    expectWords(error.what(), "stacks.segue: (stacks of deep)");
  }
  DeviceRef large = Device::open("cuda:10,dram=64MiB,pinned=4MiB");
  uint64_t empty = fakecuda::takenBytes(10);
  MemoryBlock first = large->memory().allocate(dram, mib, 512);
  uint64_t before = fakecuda::takenBytes(10);
  KernelRef kernel = large->makeKernel(source);
  EXPECT_EQ(fakecuda::takenBytes(10) - before, stacks);
  EXPECT_EQ(large->memory().liveBytes(dram), mib + stacks);
  large->makeKernel(source);
  EXPECT_EQ(large->memory().liveBytes(dram), mib + stacks) << "once for all";
  uint64_t rest = 63 * mib - stacks;
  MemoryBlock out = large->memory().allocate(dram, rest, 512);
  EXPECT_EQ(fakecuda::takenBytes(10), 64 * mib) << "and the rest is there, to the byte and in one piece";
  void *args[] = {out.data};
  large->launch(*kernel, args, 1, 1, 1);
  large->memory().free(dram, out.data, rest, 512, out.account, {});
  large->memory().free(dram, first.data, mib, 512, first.account, {});
  large.reset();
  EXPECT_EQ(fakecuda::takenBytes(10), empty);
}

// What lies in device_l1 is kept by the cache of the streams that compute, and goes with the device.
TEST_F(CudaMemoryTest, TheCacheKeepsDeviceL1) {
  uint64_t before = fakecuda::takenBytes(18);
  {
    DeviceRef gpu = Device::open("cuda:18,dram=8MiB,pinned=4MiB,l1=3MiB");
    EXPECT_EQ(fakecuda::keptBytes(18), 2 * 3 * mib) << "of commands that are given, and of those that are recorded";
    EXPECT_EQ(fakecuda::takenBytes(18) - before, 4 * mib) << "whole chunks, beside device_dram";
    EXPECT_EQ(gpu->freeMemory(Space::DeviceL1).bytes, 3 * mib);
    EXPECT_NE(gpu->twin()->find(",l1=3145728,"), std::string::npos) << *gpu->twin();
    EXPECT_EQ(Device::open(*gpu->twin())->freeMemory(Space::DeviceL1).bytes, 3 * mib);
    expectWords(gpu->name(), "l1=3145728");
    MemoryBlock block = gpu->memory().allocate(Space::DeviceL1, 3 * mib, 64);
    EXPECT_TRUE(gpu->computesOn(block.data));
    gpu->engine().fill(block.data, 3 * mib, 7, 1);
    std::vector<uint8_t> found(3 * mib);
    gpu->copy(found.data(), block.data, found.size());
    EXPECT_EQ(found, std::vector<uint8_t>(3 * mib, 7));
    EXPECT_THROW(gpu->memory().allocate(Space::DeviceL1, 64, 64), OutOfMemory);
    gpu->memory().free(Space::DeviceL1, block.data, 3 * mib, 64, block.account, {});
  }
  EXPECT_EQ(fakecuda::takenBytes(18), before);
  expectWords(messageOf("cuda:18,dram=8MiB,pinned=4MiB,l1=9MiB", ErrorCode::InvalidArgument),
              "l1=9437184 is more than the L2 cache of Fake GPU keeps, 8388608 bytes");
  EXPECT_EQ(fakecuda::takenBytes(18), before);
  fakecuda::failCalls("cuStreamSetAttribute", 3, 1, 1);
  expectWords(messageOf("cuda:18,dram=8MiB,pinned=4MiB,l1=3MiB", ErrorCode::Unsupported), "cuStreamSetAttribute gives");
  EXPECT_EQ(fakecuda::takenBytes(18), before);
}

// A kernel that knows its grid is launched with that, whatever the range.
TEST_F(CudaMemoryTest, AKernelMaySayItsGrid) {
  DeviceRef gpu = Device::open("cuda:10,dram=16MiB,pinned=4MiB");
  KernelSource source{"test", "failBehind", {}};
  source.variants.push_back(
      {KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), "failBehind"});
  MemoryBlock limit = gpu->memory().allocate(dram, 512, 512);
  int64_t units = 4;
  gpu->copy(limit.data, &units, sizeof(units));
  void *args[] = {limit.data};
  EXPECT_THROW(gpu->launch(*gpu->makeKernel(source), args, 2 * units, units, 1), KernelFault);
  source.variants[0].blocks = 1;
  EXPECT_NO_THROW(gpu->launch(*gpu->makeKernel(source), args, 2 * units, units, 1)) << "one block, not two";
  gpu->memory().free(dram, limit.data, 512, 512, limit.account, {});
}

// Compiled kernels rely on where their arguments begin.
TEST(CudaDevice, AnArgumentLessAlignedThanItsKernelTakesItForIsFound) {
  DeviceRef gpu = Device::open("cuda:5,dram=8MiB,pinned=4MiB");
  std::string text = deviceKernelsPtx, plain = "failBehind(.param .u64 limit";
  text.replace(text.find(plain), plain.size(), "failBehind(.param .u64 .ptr .align 16 limit");
  KernelSource source{"test", "failBehind", {{KernelIsa::Ptx, 0, std::as_bytes(std::span(text)), "failBehind"}}};
  KernelRef kernel = gpu->makeKernel(source);
  MemoryBlock limit = gpu->memory().allocate(dram, 512, 512);
  int64_t units[] = {0, 4, 4};
  gpu->copy(limit.data, units, sizeof(units));
  auto launch = [&](size_t at) {
    void *args[] = {static_cast<std::byte *>(limit.data) + at * sizeof(int64_t)};
    gpu->launch(*kernel, args, 4, 4, 1);
  };
  EXPECT_NO_THROW(launch(2));
  try {
    launch(1);
    FAIL() << "8 bytes behind a multiple of 16";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::DeviceLost);
  }
}

//===----------------------------------------------------------------------===//
// What goes wrong
//===----------------------------------------------------------------------===//

namespace {
struct CountedTries final : CopyTries {
  int tried = 0, failed = 0, most;
  explicit CountedTries(int most) : most(most) {}
  void trying() noexcept override { ++tried; }
  bool triesAgain(const Error &error, uint32_t) noexcept override {
    EXPECT_EQ(error.code(), ErrorCode::TransferFailed);
    return ++failed < most;
  }
};
} // namespace

TEST_F(CudaMemoryTest, CopiesAreTriedAgain) {
  MemoryBlock there = take(4096), here = device->memory().allocate(Space::HostPinned, 4096, 64);
  auto copy = [&](CountedTries &tries) {
    std::string message;
    Work work{[&] { device->copy(there.data, here.data, 4096, &tries); }};
    work.ended = [&](const Error *error) { message = error ? error->what() : ""; };
    device->wait(Fence(Queue::HostToDevice, device->enqueue(Queue::HostToDevice, {}, std::move(work))));
    return message;
  };
  constexpr int somethingElse = 3;
  CountedTries three(3);
  fakecuda::failCalls("cuMemcpyHtoDAsync_v2", somethingElse, 0, 2);
  EXPECT_EQ(copy(three), "");
  EXPECT_EQ(three.tried, 3);
  CountedTries two(2);
  fakecuda::failCalls("cuMemcpyHtoDAsync_v2", somethingElse, 0, 2);
  expectWords(copy(two), "TRANSFER_FAILED: device \"cuda:9\": cuMemcpyHtoDAsync gives");
  EXPECT_EQ(two.tried, 2);
  fakecuda::reset();
  EXPECT_EQ(copy(two), "") << "the device goes on";
  device->drain();
  give(there, 4096);
  device->memory().free(Space::HostPinned, here.data, 4096, 64, here.account, {});
}

// An entry whose wait or event cannot be given is an error, and what comes after it keeps
// its order all the same.
TEST_F(CudaMemoryTest, CallsThatFailKeepTheOrder) {
  for (const char *call : {"cuStreamWaitEvent", "cuEventRecord"})
    for (int i = 0; i < 30; ++i) {
      std::string order;
      uint64_t first = device->enqueueCall(Queue::Compute, {}, [&] { order += "a"; });
      fakecuda::failCalls(call, 3, 0, 1);
      std::string message;
      Work work;
      work.run = [&] { device->call([&] { order += "b"; }); };
      work.ended = [&](const Error *error) { message = error ? error->what() : ""; };
      uint64_t second = device->enqueue(Queue::HostToDevice, Fence(Queue::Compute, first), std::move(work));
      uint64_t third =
          device->enqueueCall(Queue::DeviceToHost, Fence(Queue::HostToDevice, second), [&] { order += "c"; });
      device->wait(Fence(Queue::DeviceToHost, third));
      fakecuda::reset();
      // Where the first has passed there is no wait to fail, and that of the third does.
      EXPECT_TRUE(order == "abc" || order == "ac" || order == "ab") << call << ": " << order;
      if (order == "ac") {
        expectWords(message, call);
      }
    }
}

TEST(CudaDevice, AHostFunctionThatThrowsFailsItsEntry) {
  DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
  std::string message;
  Work work;
  work.run = [&] {
    device->call([] { throw Error(ErrorCode::IoFailed, "the first"); });
    device->call([] { throw Error(ErrorCode::IoFailed, "the second"); });
    throw Error(ErrorCode::IoFailed, "the body");
  };
  work.ended = [&](const Error *error) { message = error ? error->what() : ""; };
  device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(work))));
  EXPECT_EQ(message, "IO_FAILED: the first");
}

// In a host function memory is freed and fences are asked for; the driver is not called.
TEST(CudaDevice, HostFunctionsFreeAndAsk) {
  DeviceRef device = Device::open("cuda:11,dram=8MiB,pinned=4MiB");
  std::vector<std::pair<Space, MemoryBlock>> blocks;
  for (Space space : {Space::Host, Space::HostPinned, dram})
    blocks.push_back({space, device->memory().allocate(space, 4096, 64)});
  uint64_t before = device->enqueueCall(Queue::Compute, {}, [] {});
  Fence all(Queue::Compute, before);
  uint64_t last = device->enqueueCall(Queue::DeviceToHost, all, [&] {
    (void)device->isDone(all);
    EXPECT_FALSE(device->isDone(Fence(Queue::DeviceToHost, 1)));
    for (auto &[space, block] : blocks)
      device->memory().free(space, block.data, 4096, 64, block.account, Fence(Queue::DeviceToHost, 1));
  });
  device->wait(Fence(Queue::DeviceToHost, last));
  for (Space space : {Space::Host, Space::HostPinned, dram})
    EXPECT_EQ(device->memory().liveBytes(space), 0u);
}

TEST(CudaDevice, KernelsWithoutPtxAreRefusedInWords) {
  DeviceRef device = Device::open("cuda:11,dram=8MiB,pinned=4MiB");
  auto message = [&](const KernelSource &source, ErrorCode code) -> std::string {
    try {
      device->makeKernel(source);
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return "";
  };
  std::string_view text = "no PTX at all";
  KernelSource source{"model.segue", "k0", {{KernelIsa::X86_64_V3, 3, {}, "k0"}}};
  expectWords(message(source, ErrorCode::Unsupported), "model.segue: kernel \"k0\" has no PTX");
  source.variants = {{KernelIsa::Ptx, 4, std::as_bytes(std::span(text)), "k0"}};
  expectWords(message(source, ErrorCode::FileCorrupt), "model.segue: segment 4: cuModuleLoadData gives "
                                                       "CUDA_ERROR_INVALID_IMAGE (200)");
  source.variants = {{KernelIsa::Ptx, 4, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), "k0"}};
  expectWords(message(source, ErrorCode::FileCorrupt), "its segment has no entry \"k0\"");
}

// After a wild address nothing runs any more. Every entry ends and is told why; what is
// in the host's memory is whole; the device goes away.
TEST(CudaDevice, ALostDeviceEndsEverythingCleanly) {
  for (int round = 0; round < 8; ++round) {
    int gpu = round < 4 ? 12 + round : 12; // the last rounds begin on a GPU that is lost
    std::string spec = "cuda:" + std::to_string(gpu) + ",dram=8MiB,pinned=4MiB";
    if (round >= 4) {
      expectWords(messageOf(spec, ErrorCode::DeviceLost), "only a new process can use it");
      continue;
    }
    DeviceRef device = Device::open(spec);
    MemoryBlock there = device->memory().allocate(dram, 4096, 64),
                here = device->memory().allocate(Space::HostPinned, 4096, 64);
    std::memset(here.data, 5, 4096);
    KernelSource source{"wild.segue", "wild", {}};
    source.variants.push_back(
        {KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), "storeAtNull"});
    KernelRef wild = device->makeKernel(source);
    auto token = std::make_shared<int>(0);
    int ended = 0, failed = 0;
    auto enqueue = [&](Queue queue, const Fence &after, std::function<void()> body) {
      Work work;
      work.run = [body, token] { body(); };
      work.ended = [&](const Error *error) {
        ++ended;
        if (error) {
          ++failed;
          EXPECT_EQ(error->code(), ErrorCode::DeviceLost);
          expectWords(error->what(), "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered");
        }
      };
      return Fence(queue, device->enqueue(queue, after, std::move(work)));
    };
    Fence all = enqueue(Queue::Compute, {}, [&] { device->launch(*wild, {}, 1, 1, 1); });
    for (int i = 0; i < 20; ++i)
      for (Queue queue : allQueues)
        all.join(enqueue(queue, all, [=, d = device.get()] {
          d->call([token] { ++*token; });
          d->copy(there.data, here.data, 4096);
        }));
    device->wait(all);
    EXPECT_TRUE(device->isDone(all));
    constexpr int enqueued = 1 + 20 * int(queueCount);
    EXPECT_EQ(ended, enqueued);
    EXPECT_EQ(failed, enqueued);
    EXPECT_EQ(*token, 0) << "what waits for the kernel is not run";
    all = enqueue(Queue::HostToDevice, {}, [] {});
    device->wait(all);
    EXPECT_EQ(failed, enqueued + 1) << "what is enqueued later, too";
    EXPECT_THROW(device->copy(there.data, here.data, 4096), Error);
    EXPECT_THROW(device->memory().allocate(dram, 4096, 64), Error);
    EXPECT_EQ(static_cast<uint8_t *>(here.data)[4095], 5);
    device->memory().free(dram, there.data, 4096, 64, there.account, {});
    device->memory().free(Space::HostPinned, here.data, 4096, 64, here.account, {});
    device.reset();
  }
}

// Times are of the device, on the host's clock.
// Stamps count from a base that is made anew each second: none may lie before one ahead of it on its queue.
TEST(CudaDevice, StampsOfAQueueNeverGoBack) {
  DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
  double began = device->seconds(), last = 0;
  for (bool isFirst = true; device->seconds() - began < 1.1; isFirst = false) { // another base is made in between
    // The host sees the first base 0.8 ms late, and another one 2 ms.
    fakecuda::waitLonger(isFirst ? 1600 : device->seconds() - began > 0.9 ? 4000 : 0);
    auto first = std::make_shared<Timestamp>(), second = std::make_shared<Timestamp>();
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, {[&] {
                                                         device->stamp(first);
                                                         device->stamp(second);
                                                       }})));
    ASSERT_GE(first->seconds(), last);
    ASSERT_GE(second->seconds(), first->seconds());
    last = second->seconds();
  }
}

TEST(CudaDevice, StampsLieOnTheHostsClock) {
  DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
  double before = device->seconds();
  std::vector<TimestampRef> stamps;
  Fence all;
  for (int i = 0; i < 30; ++i) {
    stamps.push_back(std::make_shared<Timestamp>());
    all = Fence(allQueues[i % 3], device->enqueueStamp(allQueues[i % 3], all, stamps.back()));
  }
  device->wait(all);
  double after = device->seconds();
  for (size_t i = 0; i < stamps.size(); ++i) {
    EXPECT_GE(stamps[i]->seconds(), i ? stamps[i - 1]->seconds() - 1e-6 : before - 0.01);
    EXPECT_LE(stamps[i]->seconds(), after + 0.01);
  }
}
