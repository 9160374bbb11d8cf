//===- GpuDiskSessionTest.cpp - a disk below a fake GPU that fails --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What DiskSessionTest.cpp shows of other devices: an operation of the disk that fails is
// tried again, or ends the step, which can be taken once more with the same bits.
//
//===----------------------------------------------------------------------===//

#include "../../runtime/lib/Cuda/CudaDevice.h"
#include "DiskRig.h"
#include "segue/runtime/Transfer/TransferEngine.h"

using namespace segue;
using namespace segue::test;

TEST(GpuDiskSession, AnOperationThatFailsLosesNothing) {
  Binary binary = DeepModel{.layers = usualLayers, .rows = 256, .width = 64, .forGpus = true}.compiled();
  std::vector<float> wanted;
  uint64_t peak = 0;
  {
    DeviceRef device = Device::open("cuda:14,dram=64MiB,pinned=64MiB");
    Session session = makeSession(device, binary);
    wanted = train(session);
    peak = device->memory().peakBytes(Space::DeviceDram);
  }
  FailingDisk disk;
  std::string memory = "3,dram=" + std::to_string(peak * 6 / 10) + ",host=256KiB,disk=.?capacity=16MiB";
  DeviceRef device = cuda::openCudaDevice(DeviceOptions("cuda", memory), &disk.seam);
  int64_t operations = 0;
  {
    Session session = makeSession(device, binary);
    disk.fail(INT64_MAX, 0);
    EXPECT_TRUE(sameBits(train(session), wanted));
    operations = disk.begun;
  }
  ASSERT_GT(operations, 20);
  uint64_t triedAgain = device->transfer().counters().retries;
  for (int64_t width : {1, 2, 6})
    for (int64_t first = width; first < operations; first += operations / 5 + 1) {
      SCOPED_TRACE(std::to_string(width) + " operations from " + std::to_string(first) + " of " +
                   std::to_string(operations));
      Session session = makeSession(device, binary);
      disk.fail(first, width);
      std::vector<float> bits;
      for (int tries = 0; session.stepCount() < steps && tries < 20; ++tries)
        try {
          bits.push_back(lossOfStep(session, int(session.stepCount())));
        } catch (const Error &error) {
          EXPECT_TRUE(error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::DeviceOom) << error.what();
        }
      ASSERT_EQ(session.stepCount(), steps);
      EXPECT_GT(disk.failed, 0);
      disk.fail(INT64_MAX, 0);
      std::vector<float> parameters = parametersOf(session);
      bits.insert(bits.end(), parameters.begin(), parameters.end());
      EXPECT_TRUE(sameBits(bits, wanted));
    }
  EXPECT_GT(device->transfer().counters().retries, triedAgain);
}
