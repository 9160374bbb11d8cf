//===- ConformanceTest.h - what every device must do ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One suite for all devices (ConformanceTest.cpp), instantiated per driver. A device
// without bytes (`sim:virtual`) is held to sizes, positions and times alone. Nothing
// depends on how fast anything runs; random tests print their seed.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_DEVICE_CONFORMANCETEST_H
#define SEGUE_TEST_DEVICE_CONFORMANCETEST_H

#include "DeviceKernels.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <cstring>
#include <gtest/gtest.h>
#include <ostream>

namespace segue::test {

struct ConformanceSpec {
  std::string spec;
  /// False for a device that adds up in another order.
  bool hasTheBitsOfTheCpu = true;
};

inline void PrintTo(const ConformanceSpec &spec, std::ostream *out) { *out << spec.spec; }

/// `cuda:0,dram=16MiB` as a part of a test's name.
inline std::string nameOf(const testing::TestParamInfo<ConformanceSpec> &info) {
  std::string name = info.param.spec;
  for (char &c : name)
    c = std::isalnum(uint8_t(c)) ? c : '_';
  return name;
}

class ConformanceTest : public testing::TestWithParam<ConformanceSpec> {
protected:
  uint64_t enqueue(Queue queue, const Fence &after, std::function<void()> run, WorkCost cost = {}) {
    return device->enqueue(queue, after, {std::move(run), cost, "test"});
  }
  uint64_t enqueueCall(Queue queue, const Fence &after, std::function<void()> call) {
    return device->enqueueCall(queue, after, std::move(call), "test");
  }
  /// Runs `body` on a queue, to its end. Returns what it failed with; empty if nothing.
  std::string messageOf(Queue queue, std::function<void()> body, ErrorCode code) {
    std::string message;
    Work work{std::move(body), {}, "test"};
    work.ended = [&](const Error *error) {
      if (!error)
        return;
      EXPECT_EQ(error->code(), code) << error->what();
      message = error->what();
    };
    device->wait(Fence(queue, device->enqueue(queue, {}, std::move(work))));
    return message;
  }

  /// A kernel of DeviceKernels.h: the PTX where the device makes a handle of that, else
  /// code of this process.
  KernelRef kernel(const std::string &name, KernelFunction function) {
    KernelSource source{"test", name, {}};
    source.variants.push_back({KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), name});
    try {
      return device->makeKernel(source);
    } catch (const Error &error) {
      if (error.code() != ErrorCode::Unsupported)
        throw;
    }
    return std::make_shared<const HostKernel>(function);
  }
  /// `bytes` times `value` in any space.
  void write(void *target, int value, uint64_t bytes) {
    std::vector<std::byte> values(bytes, std::byte(value));
    device->copy(target, values.data(), bytes);
  }

  /// Spaces that a test may fill to the brim.
  std::vector<SpaceInfo> smallSpaces() const {
    std::vector<SpaceInfo> small;
    for (const SpaceInfo &space : device->spaces())
      if (!device->hasBytes() || space.capacityBytes <= 64 << 20)
        small.push_back(space);
    return small;
  }

  /// A block of a space that goes back at the end of the test.
  struct Held {
    DeviceRef device;
    Space space;
    MemoryBlock block;
    uint64_t bytes;
    Held(DeviceRef device, Space space, uint64_t bytes)
        : device(std::move(device)), space(space), block(this->device->memory().allocate(space, bytes, 64)),
          bytes(bytes) {}
    Held(const Held &) = delete;
    ~Held() {
      device->drain();
      device->memory().free(space, block.data, bytes, 64, block.account, {});
    }
    std::byte *data() const { return static_cast<std::byte *>(block.data); }
  };

  DeviceRef device = Device::open(GetParam().spec);
};

} // namespace segue::test

#endif // SEGUE_TEST_DEVICE_CONFORMANCETEST_H
