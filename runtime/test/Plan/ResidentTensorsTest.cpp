//===- ResidentTensorsTest.cpp - tensors that live on the host ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/ResidentTensors.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Program.h"
#include <gtest/gtest.h>

using namespace segue;

// What comes back, changes and leaves again while its last value is on its way home
// has the last change there in the end, in whatever order the queues run.
TEST(ResidentTensors, ChangesWhileTheLastValueGoesHomeAreKept) {
  constexpr int64_t count = 64;
  constexpr int rounds = 4;
  for (int seed = 0; seed < 40; ++seed) {
    DeviceRef device =
        Device::open("sim:dram=1MiB,pinned=1MiB,threads=1,adversarial=" + std::to_string(seed));
    ResidentTensors residents(device);
    residents.setPlaced(true);
    TensorDesc onHost({count}, ElementType::f32, Layout{.space = Space::HostPinned});
    Tensor home = Tensor::zeros(device, onHost);
    Value value;
    value.name = "w";
    value.sharedDesc = std::make_shared<const TensorDesc>(TensorDesc({count}, ElementType::f32));
    for (int round = 0; round < rounds; ++round) {
      Tensor there = residents.bring(home, value, /*isWritten=*/true);
      Storage &storage = *there.storage();
      auto add = [data = reinterpret_cast<float *>(there.bytes())] {
        for (int64_t i = 0; i < count; ++i)
          data[i] += 1;
      };
      storage.addWrite(
          Fence(Queue::Compute, device->enqueue(Queue::Compute, storage.uses(), Work{add, {}, "add"})));
      residents.leave(ResidentTensors::idOf(home));
    }
    residents.flush();
    EXPECT_EQ(home.data<float>()[count - 1], rounds) << "seed " << seed;
  }
}
