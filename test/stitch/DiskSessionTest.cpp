//===- DiskSessionTest.cpp - training in less memory than it takes --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A budget on `cpu` with a disk below it: weights, gradients, moments and saved tensors
// leave memory and return with the same bits, also where the disk fails, and no run
// begins that the disk has no room for.
//
//===----------------------------------------------------------------------===//

#include "../../runtime/lib/Disk/SpillEngine.h"
#include "../../runtime/lib/Drivers/DiskDevice.h"
#include "DeepModel.h"
#include "RandomTensors.h"
#include "segue/runtime/Disk/SpillFile.h"
#include "segue/runtime/Session/RunBudget.h"
#include "segue/runtime/Session/Session.h"
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <map>
#include <utility>

using namespace segue;
using namespace segue::test;

namespace {
constexpr int steps = 3;

/// Lets operations of the disk fail: `count` of them from number `first` on, with EIO; with
/// another cause, those alone that write.
struct FailingDisk {
  FailingDisk() {
    seam.replaceEngine = [this](std::unique_ptr<SpillEngine> engine, bool) -> std::unique_ptr<SpillEngine> {
      return std::make_unique<Engine>(*this, std::move(engine));
    };
  }
  void fail(int64_t from, int64_t operations, int errorNumber = EIO) {
    cause = errorNumber;
    begun = 0;
    failed = 0;
    first = from;
    count = operations;
  }

  class Engine final : public SpillEngine {
  public:
    Engine(FailingDisk &disk, std::unique_ptr<SpillEngine> engine) : disk_(disk), engine_(std::move(engine)) {}
    std::string_view name() const override { return engine_->name(); }
    uint32_t depth() const override { return engine_->depth(); }
    void begin(const SpillOperation &operation) override {
      int64_t number = disk_.begun++;
      bool isRead = operation.kind == SpillOperation::Kind::Read;
      bool isSpared = isRead && disk_.cause != EIO;
      if (number < disk_.first || number >= disk_.first + disk_.count || isSpared) {
        reads_[operation.tag] = isRead ? static_cast<std::byte *>(operation.memory) : nullptr;
        return engine_->begin(operation);
      }
      ++disk_.failed;
      ends_.push_back({operation.tag, -disk_.cause});
    }
    SpillEnd waitForOne() override {
      if (ends_.empty()) {
        SpillEnd end = engine_->waitForOne();
        if (std::byte *read = std::exchange(reads_[end.tag], nullptr); read && disk_.readsToDamage.fetch_sub(1) > 0)
          read[0] ^= std::byte(1);
        return end;
      }
      SpillEnd end = ends_.back();
      ends_.pop_back();
      return end;
    }

  private:
    FailingDisk &disk_;
    std::unique_ptr<SpillEngine> engine_;
    std::vector<SpillEnd> ends_;
    std::map<uint32_t, std::byte *> reads_;
  };

  SpillSeam seam;
  /// Bits of so many reads from now on change, and nobody says so.
  std::atomic<int64_t> readsToDamage{0};
  std::atomic<int64_t> begun{0}, failed{0}, first{INT64_MAX}, count{0};
  std::atomic<int> cause{EIO};
};

const Binary &model() {
  static const Binary binary = DeepModel{.layers = 4, .rows = 256, .width = 64}.compiled();
  return binary;
}

DeviceRef deviceOf(uint64_t dramBytes, const std::string &capacity, const SpillSeam *seam = nullptr) {
  return openDiskDevice(DeviceOptions("cpu", "threads=1,dram=" + std::to_string(dramBytes) + ",disk=.?capacity=" +
                                                 capacity + "&read=1GB/s&write=1GB/s"),
                        seam);
}

/// Warnings are added to `warned`, where somebody wants them.
Session makeSession(const DeviceRef &device, std::string *warned = nullptr) {
  SessionOptions options;
  options.config = RunBudget{device->memory().budget(Space::DeviceDram), "."}.config(std::nullopt);
  options.maxGradNorm = 0.01;
  options.warn = [warned](const std::string &text) {
    if (warned)
      *warned += "\n" + text;
  };
  Session session(device, {{"deep", model()}}, std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
  return session;
}

float lossOfStep(Session &session, int step) {
  TensorMap batch;
  batch["x"] = randomTensor(session.device(), {256, 64}, uint32_t(100 * step));
  return float(session.step(std::vector{batch}, 1e-3).loss);
}

std::vector<float> parametersOf(Session &session) {
  std::vector<float> all;
  for (const ParameterInfo &info : session.parameters())
    for (float value : values(session.parameter(info.key)))
      all.push_back(value);
  return all;
}

/// The losses of `steps` steps and the parameters after them.
std::vector<float> train(Session &session) {
  std::vector<float> bits;
  while (session.stepCount() < steps)
    bits.push_back(lossOfStep(session, int(session.stepCount())));
  std::vector<float> parameters = parametersOf(session);
  bits.insert(bits.end(), parameters.begin(), parameters.end());
  return bits;
}

bool sameBits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The smallest budget, as the refusal of a smaller one names it.
uint64_t smallestBudget() {
  try {
    DeviceRef device = deviceOf(100000, "16MiB");
    Session session = makeSession(device);
    lossOfStep(session, 0);
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::BudgetInfeasible) << error.what();
    std::string text = error.what(), before = "the smallest budget is ";
    return std::stoull(text.substr(text.find(before) + before.size()));
  }
  return 0;
}

/// The bits of a run in memory, on a device without a disk.
const std::vector<float> &expected() {
  static const std::vector<float> bits = [] {
    DeviceRef device = Device::open("sim:dram=64MiB,threads=1,latency=0s");
    SessionOptions options;
    options.maxGradNorm = 0.01;
    Session session(device, {{"deep", model()}}, std::move(options));
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
    return train(session);
  }();
  return bits;
}
} // namespace

TEST(DiskSession, EveryBudgetHasTheBitsOfARunInMemory) {
  uint64_t least = smallestBudget();
  ASSERT_GT(least, 0u);
  for (uint64_t budget = least, i = 0; i < 4; budget += least / 3, ++i) {
    DeviceRef device = deviceOf(budget, "16MiB");
    Session session = makeSession(device);
    EXPECT_TRUE(sameBits(train(session), expected())) << "budget " << budget;
    EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), budget);
    EXPECT_GT(device->memory().peakBytes(Space::Disk), 0u);
  }
}

TEST(DiskSession, AnOperationThatFailsLosesNothing) {
  uint64_t budget = smallestBudget() * 5 / 4;
  FailingDisk disk;
  DeviceRef device = deviceOf(budget, "16MiB", &disk.seam);
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
TEST(DiskSession, ADiskThatFillsUpInAStepIsSaidAndTheStepTakenAgain) {
  FailingDisk disk;
  DeviceRef device = deviceOf(smallestBudget() * 5 / 4, "16MiB", &disk.seam);
  int ended = 0;
  for (int64_t first : {3, 20, 45, 80}) {
    SCOPED_TRACE(first);
    std::string warned;
    Session session = makeSession(device, &warned);
    std::vector<float> losses{lossOfStep(session, 0)};
    disk.fail(first, INT64_MAX / 2, ENOSPC);
    try {
      while (session.stepCount() < steps)
        losses.push_back(lossOfStep(session, int(session.stepCount())));
    } catch (const Error &error) {
      ++ended;
      EXPECT_TRUE(error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::DeviceOom) << error.what();
      EXPECT_NE((error.what() + warned).find("No space left on device"), std::string::npos) << error.what() << warned;
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
  EXPECT_GT(ended, 0);
}

TEST(DiskSession, OtherBytesThanThoseThatLeftAreNeverUsed) {
  FailingDisk disk;
  DeviceRef device = deviceOf(smallestBudget() * 5 / 4, "16MiB", &disk.seam);
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

TEST(DiskSession, ALoadKeepsWhatItWritesOverOnTheDisk) {
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

TEST(DiskSession, ADiskThatIsTooSmallIsRefusedBeforeTheFirstStep) {
  DeviceRef device = deviceOf(smallestBudget(), "64KiB");
  try {
    Session session = makeSession(device);
    lossOfStep(session, 0);
    ADD_FAILURE() << "64 KiB hold what leaves";
  } catch (const Error &error) {
    EXPECT_TRUE(error.code() == ErrorCode::DeviceOom || error.code() == ErrorCode::BudgetInfeasible);
    EXPECT_NE(std::string(error.what()).find("disk"), std::string::npos) << error.what();
  }
}
