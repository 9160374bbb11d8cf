//===- FakeOrderTest.cpp - waits that a fake GPU misses -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the tests of cuda:N rest on: the fake finds a wait that was left out, in any order
// that it draws, and nothing where there is one.
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/Context.h"
#include "CudaTestParts.h"
#include "FakeCuda.h"
#include "segue/runtime/Device/Device.h"
#include <thread>

using namespace segue;
using namespace segue::test;
using namespace segue::cuda;

namespace {
class FakeOrderTest : public testing::Test {
protected:
  void SetUp() override {
    context.use();
    for (CUstream &stream : streams)
      api.streamCreate(&stream, streamNonBlocking, 0);
    api.eventCreate(&event, eventNoTiming);
    api.hostAlloc(&host, bytes, 0);
    memory = device->memory().allocate(dram, bytes, 512);
    address = reinterpret_cast<CUdeviceptr>(memory.data);
  }
  void TearDown() override {
    for (CUstream stream : streams) {
      api.streamSynchronize(stream);
      api.streamDestroy(stream);
    }
    api.eventDestroy(event);
    api.hostFree(host);
    fakecuda::reset();
  }

  static constexpr uint64_t bytes = 4096;
  DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
  Context context{"cuda:9", Api::open("cuda:9"), 9};
  const Api &api = context.api();
  CUstream streams[2]{};
  CUevent event = nullptr;
  void *host = nullptr;
  MemoryBlock memory;
  CUdeviceptr address = 0;
};
} // namespace

TEST_F(FakeOrderTest, FindsACopyThatDoesNotWait) {
  api.toDevice(address, host, bytes, streams[0]);
  api.fill8(address + 100, 0, 10, streams[1]);
  EXPECT_EQ(fakecuda::misuse(), "cuMemsetD8Async writes what cuMemcpyHtoDAsync of another stream writes, and neither "
                                "waits for the other\n");
}

TEST_F(FakeOrderTest, FindsNothingBehindAnEvent) {
  api.toDevice(address, host, bytes, streams[0]);
  api.eventRecord(event, streams[0]);
  api.streamWaitEvent(streams[1], event, 0);
  api.fill8(address + 100, 0, 10, streams[1]);
  EXPECT_EQ(fakecuda::misuse(), "");
  // The event stands for what came before it alone.
  api.toHost(host, address, bytes, streams[0]);
  api.fill8(address + 100, 0, 10, streams[1]);
  expectWords(fakecuda::misuse(), "cuMemsetD8Async writes what cuMemcpyDtoHAsync of another stream reads");
}

TEST_F(FakeOrderTest, FindsNothingThatTheHostHasWaitedFor) {
  api.toDevice(address, host, bytes, streams[0]);
  api.streamSynchronize(streams[0]);
  api.fill8(address, 0, bytes, streams[1]);
  api.eventRecord(event, streams[1]);
  while (api.eventQuery(event))
    std::this_thread::yield();
  api.toHost(host, address, bytes, streams[0]);
  EXPECT_EQ(fakecuda::misuse(), "");
}

TEST_F(FakeOrderTest, ReadersNeedNotWaitForEachOther) {
  api.toHost(host, address, bytes / 2, streams[0]);
  api.toHost(static_cast<std::byte *>(host) + bytes / 2, address, bytes / 2, streams[1]);
  EXPECT_EQ(fakecuda::misuse(), "");
}

TEST_F(FakeOrderTest, FindsPageableMemoryBehindPendingWork) {
  std::vector<std::byte> pageable(bytes);
  api.toDevice(address, pageable.data(), bytes, streams[0]);
  EXPECT_EQ(fakecuda::misuse(), "");
  api.streamSynchronize(streams[0]);
  *static_cast<volatile uint32_t *>(host) = 0;
  api.streamWaitValue(streams[0], reinterpret_cast<CUdeviceptr>(host), 1, waitValueGreaterEqual);
  api.toDevice(address, pageable.data(), bytes, streams[0]);
  EXPECT_EQ(fakecuda::misuse(), "cuMemcpyHtoDAsync of pageable memory behind work that is pending\n");
  *static_cast<volatile uint32_t *>(host) = 1;
}
