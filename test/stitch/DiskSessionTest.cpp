//===- DiskSessionTest.cpp - training in less memory than it takes --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A budget on `cpu` with a disk below it, and on a device with a link whose host has some
// memory and the disk below that: weights, gradients, moments and saved tensors
// leave memory and return with the same bits, also where the disk fails, and no run
// begins that the disk has no room for.
//
//===----------------------------------------------------------------------===//

#include "DiskRig.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <sys/mman.h>

using namespace segue;
using namespace segue::test;

namespace {
/// Less than what leaves, of which half a megabyte is away at once.
constexpr const char *simWithHost = "host=256KiB,latency=0s";

/// The parameter: options of a `sim`, or empty for a cpu.
class DiskSession : public testing::TestWithParam<std::string> {
protected:
  DeviceRef open(uint64_t dramBytes, const std::string &capacity = "16MiB", const SpillSeam *seam = nullptr) {
    return deviceOf(dramBytes, capacity, seam, GetParam());
  }
  uint64_t leastBudget() { return smallestBudget(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, DiskSession, testing::Values("", simWithHost),
                         [](const auto &info) { return info.param.empty() ? "cpu" : "sim"; });
} // namespace

TEST_P(DiskSession, EveryBudgetHasTheBitsOfARunInMemory) {
  uint64_t least = leastBudget();
  ASSERT_GT(least, 0u);
  for (uint64_t budget = least, i = 0; i < 4; budget += least / 3, ++i) {
    DeviceRef device = open(budget);
    Session session = makeSession(device);
    EXPECT_TRUE(sameBits(train(session), expected())) << "budget " << budget;
    EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), budget);
    bool isHostEnough = !GetParam().empty() && i > 0;
    EXPECT_TRUE(isHostEnough || device->memory().peakBytes(Space::Disk) > 0);
    if (!GetParam().empty()) { // what can be is in the host's memory
      EXPECT_LE(device->memory().peakBytes(Space::HostPinned), 256u << 10);
      EXPECT_GT(device->memory().peakBytes(Space::HostPinned), 192u << 10);
    }
  }
}

// A parameter of PyTorch's lives on the disk and keeps the device. What the session had above that goes with it.
TEST_P(DiskSession, AnEndGivesTheMemoryBack) {
  uint64_t budget = leastBudget() * 2;
  DeviceRef device = open(budget);
  std::optional<Session> session(makeSession(device));
  lossOfStep(*session, 0);
  Tensor parameter = session->parameter(session->parameters().front().key);
  auto residentPages = [&] {
    MemoryBlock block = device->memory().allocate(Space::DeviceDram, budget / 4, 4096);
    std::vector<unsigned char> isThere(budget / 4 / 4096);
    EXPECT_EQ(::mincore(block.data, isThere.size() * 4096, isThere.data()), 0);
    device->memory().free(Space::DeviceDram, block.data, budget / 4, 4096, block.account, {});
    return std::ranges::count_if(isThere, [](unsigned char page) { return page & 1; });
  };
  std::vector<float> before = values(parameter);
  session.reset();
  EXPECT_EQ(residentPages(), 0);
  EXPECT_TRUE(sameBits(values(parameter), before));
}

TEST(DiskBelowHostSession, HasTheBitsOfARunInMemoryInAnyOrder) {
  uint64_t budget = smallestBudget(simWithHost) * 5 / 4;
  for (std::string way : {"streams", "adversarial=3", "streams,adversarial=8", "adversarial=5,fail-copy=0.002"}) {
    SCOPED_TRACE(way);
    DeviceRef device = deviceOf(budget, "16MiB", nullptr, std::string(simWithHost) + "," + way);
    Session session = makeSession(device);
    EXPECT_TRUE(sameBits(train(session), expected()));
    EXPECT_GT(device->transfer().counters().diskReadBytes, 0u);
  }
}

TEST_P(DiskSession, AnOperationThatFailsLosesNothing) {
  uint64_t budget = leastBudget() * 5 / 4;
  FailingDisk disk;
  DeviceRef device = open(budget, "16MiB", &disk.seam);
  int64_t operations = 0;
  {
    Session session = makeSession(device);
    disk.fail(INT64_MAX, 0);
    EXPECT_TRUE(sameBits(train(session), expected()));
    operations = disk.begun;
  }
  ASSERT_GT(operations, 40);
  int64_t failures = 0;
  for (int64_t width : {1, 2, 6})
    for (int64_t first = width; first < operations; first += operations / 7 + 1) {
      SCOPED_TRACE(std::to_string(width) + " operations from " + std::to_string(first) + " of " +
                   std::to_string(operations));
      Session session = makeSession(device);
      disk.fail(first, width);
      std::vector<float> losses;
      for (int tries = 0; session.stepCount() < steps && tries < 50; ++tries)
        try {
          losses.push_back(lossOfStep(session, int(session.stepCount())));
        } catch (const Error &error) {
          EXPECT_TRUE(error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::DeviceOom ||
                      error.code() == ErrorCode::StateTorn)
              << error.what();
          EXPECT_NE(error.code(), ErrorCode::StateTorn) << error.what();
        }
      ASSERT_EQ(session.stepCount(), steps);
      disk.fail(INT64_MAX, 0);
      std::vector<float> parameters = parametersOf(session);
      losses.insert(losses.end(), parameters.begin(), parameters.end());
      EXPECT_TRUE(sameBits(losses, expected()));
      failures += 1;
    }
  EXPECT_GT(failures, 15);
}

// A file system that packs what is written can still fill up: all writes fail from then on, until somebody makes room.
TEST_P(DiskSession, ADiskThatFillsUpInAStepIsSaidAndTheStepTakenAgain) {
  FailingDisk disk;
  DeviceRef device = open(leastBudget() * 5 / 4, "16MiB", &disk.seam);
  int ended = 0;
  for (int64_t first : {3, 20, 45, 80}) {
    SCOPED_TRACE(first);
    Session session = makeSession(device);
    std::vector<float> losses{lossOfStep(session, 0)};
    disk.fail(first, INT64_MAX / 2, ENOSPC);
    try {
      while (session.stepCount() < steps)
        losses.push_back(lossOfStep(session, int(session.stepCount())));
    } catch (const Error &error) {
      ++ended;
      EXPECT_TRUE(error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::DeviceOom) << error.what();
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
    }
    disk.fail(INT64_MAX, 0); // somebody has made room
    // A tensor that could not leave lies where the next try wants room, and goes with it.
    for (int tries = 0; session.stepCount() < steps && tries < 4; ++tries)
      try {
        while (session.stepCount() < steps)
          losses.push_back(lossOfStep(session, int(session.stepCount())));
      } catch (const Error &error) {
        EXPECT_EQ(error.code(), ErrorCode::DeviceOom) << error.what();
      }
    ASSERT_EQ(session.stepCount(), steps);
    std::vector<float> parameters = parametersOf(session);
    losses.insert(losses.end(), parameters.begin(), parameters.end());
    EXPECT_TRUE(sameBits(losses, expected()));
  }
  // Above a host, what cannot leave finds room on the device.
  EXPECT_TRUE(ended > 0 || !GetParam().empty());
}

TEST_P(DiskSession, OtherBytesThanThoseThatLeftAreNeverUsed) {
  FailingDisk disk;
  DeviceRef device = open(leastBudget() * 5 / 4, "16MiB", &disk.seam);
  for (int64_t damaged : {1, 1000000}) {
    SCOPED_TRACE(damaged);
    Session session = makeSession(device);
    std::vector<float> losses{lossOfStep(session, 0)};
    disk.readsToDamage = damaged;
    try {
      while (session.stepCount() < steps)
        losses.push_back(lossOfStep(session, int(session.stepCount())));
      EXPECT_EQ(damaged, 1) << "every read was damaged, and nobody saw it";
    } catch (const Error &error) {
      EXPECT_NE(std::string(error.what()).find("are not those that left"), std::string::npos) << error.what();
    }
    EXPECT_LT(disk.readsToDamage, damaged) << "nothing was read";
    disk.readsToDamage = 0;
    EXPECT_TRUE(std::equal(losses.begin(), losses.end(), expected().begin()));
  }
}

TEST(DiskLoad, ALoadKeepsWhatItWritesOverOnTheDisk) {
  std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "segue-disk-session.safetensors";
  DeviceRef device = deviceOf(smallestBudget() * 5 / 4, "16MiB");
  Session session = makeSession(device);
  std::vector<float> first{lossOfStep(session, 0)};
  session.save(file);
  std::vector<float> rest = train(session);
  device->memory().resetPeak();
  uint64_t onDisk = device->memory().liveBytes(Space::Disk), onHost = device->memory().liveBytes(Space::Host);
  session.load(file);
  EXPECT_GT(device->memory().peakBytes(Space::Disk), onDisk);
  // Parameters and moments are 1.5 MiB.
  EXPECT_LT(device->memory().peakBytes(Space::Host), onHost + (64 << 10));
  EXPECT_EQ(device->memory().liveBytes(Space::Disk), onDisk);
  EXPECT_TRUE(sameBits(train(session), rest));
  std::filesystem::remove(file);
}

TEST_P(DiskSession, ADiskThatIsTooSmallIsRefusedBeforeTheFirstStep) {
  DeviceRef device = open(leastBudget(), "64KiB");
  try {
    Session session = makeSession(device);
    lossOfStep(session, 0);
    ADD_FAILURE() << "64 KiB hold what leaves";
  } catch (const Error &error) {
    EXPECT_TRUE(error.code() == ErrorCode::DeviceOom || error.code() == ErrorCode::BudgetInfeasible);
    EXPECT_NE(std::string(error.what()).find("disk"), std::string::npos) << error.what();
  }
}
