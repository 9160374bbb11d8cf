//===- DiskRig.h - sessions on devices with a disk --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A small model, a disk that fails when it is told to, and sessions whose budget is less
// than the model takes.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_DISKRIG_H
#define SEGUE_TEST_STITCH_DISKRIG_H

#include "../../runtime/lib/Disk/SpillEngine.h"
#include "../../runtime/lib/Drivers/DiskDevice.h"
#include "../../runtime/lib/Drivers/SimDevice.h"
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

namespace segue::test {

inline constexpr int steps = 3;

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

inline constexpr int64_t usualLayers = 4;
inline Binary newModel(int64_t layers = usualLayers) {
  return DeepModel{.layers = layers, .rows = 256, .width = 64}.compiled();
}
/// Keeps the devices that it has run on open.
inline const Binary &model() {
  static const Binary binary = newModel();
  return binary;
}

/// A cpu with a disk; with `sim`, options of that device, one that has memory of the host between its own and the disk.
inline DeviceRef deviceOf(uint64_t dramBytes, const std::string &capacity, const SpillSeam *seam = nullptr,
                          const std::string &sim = "", const std::filesystem::path &folder = ".") {
  std::string options = "threads=1,dram=" + std::to_string(dramBytes) + ",disk=" + folder.string() +
                        "?capacity=" + capacity + "&read=1GB/s&write=1GB/s";
  if (sim.empty())
    return openDiskDevice(DeviceOptions("cpu", options), seam);
  return openSimDevice(DeviceOptions("sim", sim + "," + options), seam);
}

/// A session writes its log to `log`, where somebody wants it.
inline Session makeSession(const DeviceRef &device, const Binary &binary = model(),
                           std::function<void(const std::string &)> log = {}) {
  SessionOptions options;
  options.config = RunBudget{device->memory().budget(Space::DeviceDram), "."}.config(std::nullopt);
  options.maxGradNorm = 0.01;
  options.warn = [](const std::string &) {};
  options.log = std::move(log);
  Session session(device, {{"deep", binary}}, std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
  return session;
}

inline float lossOfStep(Session &session, int step) {
  TensorMap batch;
  batch["x"] = randomTensor(session.device(), {256, 64}, uint32_t(100 * step));
  return float(session.step(std::vector{batch}, 1e-3).loss);
}

inline std::vector<float> parametersOf(Session &session) {
  std::vector<float> all;
  for (const ParameterInfo &info : session.parameters())
    for (float value : values(session.parameter(info.key)))
      all.push_back(value);
  return all;
}

/// The losses of `steps` steps and the parameters after them.
inline std::vector<float> train(Session &session) {
  std::vector<float> bits;
  while (session.stepCount() < steps)
    bits.push_back(lossOfStep(session, int(session.stepCount())));
  std::vector<float> parameters = parametersOf(session);
  bits.insert(bits.end(), parameters.begin(), parameters.end());
  return bits;
}

inline bool sameBits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The smallest budget, as the refusal of a smaller one names it.
inline uint64_t smallestBudget(const std::string &sim = "", int64_t layers = usualLayers) {
  static std::map<std::pair<std::string, int64_t>, uint64_t> known;
  uint64_t &bytes = known[{sim, layers}];
  if (bytes)
    return bytes;
  try {
    DeviceRef device = deviceOf(100000, "16MiB", nullptr, sim);
    Session session = makeSession(device, newModel(layers));
    lossOfStep(session, 0);
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::BudgetInfeasible) << error.what();
    std::string text = error.what(), before = "the smallest budget is ";
    bytes = std::stoull(text.substr(text.find(before) + before.size()));
  }
  return bytes;
}

/// The bits of a run in memory, on a device without a disk.
inline const std::vector<float> &expected(int64_t layers = usualLayers) {
  static std::map<int64_t, std::vector<float>> known;
  std::vector<float> &bits = known[layers];
  if (!bits.empty())
    return bits;
  DeviceRef device = Device::open("sim:dram=64MiB,threads=1,latency=0s");
  SessionOptions options;
  options.maxGradNorm = 0.01;
  Session session(device, {{"deep", newModel(layers)}}, std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
  return bits = train(session);
}

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_DISKRIG_H
