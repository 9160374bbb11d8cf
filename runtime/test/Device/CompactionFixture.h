//===- CompactionFixture.h - storages that may be moved ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_DEVICE_COMPACTIONFIXTURE_H
#define SEGUE_RUNTIME_TEST_DEVICE_COMPACTIONFIXTURE_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Tensor/Storage.h"
#include <gtest/gtest.h>

namespace segue::test {

/// A storage filled by a queued copy, and what it should hold.
struct Held {
  std::shared_ptr<Storage> storage;
  std::vector<std::byte> expected;
};

/// The test's parameter is added to the spec of the device.
class CompactionFixture : public testing::TestWithParam<std::string> {
protected:
  CompactionFixture(const std::string &spec, Space space) : device(Device::open(spec + GetParam())), space(space) {}

  std::shared_ptr<Storage> allocate(uint64_t bytes, uint32_t alignment = 64) {
    return Storage::allocate(device, space, bytes, alignment, device->memory().intern({.value = "held"}));
  }
  Held fill(uint64_t bytes, int seed, uint32_t alignment = 64) {
    Held held{allocate(bytes, alignment), std::vector<std::byte>(bytes)};
    for (uint64_t i = 0; i < bytes; ++i)
      held.expected[i] = std::byte(uint64_t(seed) * 37 + i % 251);
    auto source = std::make_shared<std::vector<std::byte>>(held.expected);
    void *target = held.storage->data();
    Device *raw = device.get();
    uint64_t position = device->enqueue(Queue::HostToDevice, held.storage->uses(),
                                        {[=] { raw->copy(target, source->data(), bytes); }, {}, "fill"});
    held.storage->addWrite(Fence(Queue::HostToDevice, position));
    return held;
  }
  void check(const Held &held) {
    device->wait(held.storage->writes());
    std::vector<std::byte> found(held.expected.size());
    device->copy(found.data(), held.storage->data(), found.size());
    EXPECT_EQ(found, held.expected);
  }

  DeviceRef device;
  Space space;
};

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_DEVICE_COMPACTIONFIXTURE_H
