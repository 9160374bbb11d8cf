//===- RankModes.h - a model that ranks train by every service --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A model of blocks, the ways in which two ranks train it, with a budget of their own each,
// and the same of one rank that has the batches of both.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_RANKMODES_H
#define SEGUE_TEST_STITCH_RANKMODES_H

#include "Collectives/OnRanks.h"
#include "CompiledModule.h"
#include "DeepModel.h"
#include "ErrorOf.h"
#include "LeastOfRanks.h"
#include "RandomTensors.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>

namespace segue::test::ranked {

inline constexpr int steps = 20;
/// The strategies in which each rank updates parameters of its own.
inline constexpr Sharding sharded[] = {Sharding::States, Sharding::Gradients};
/// Those in which each rank runs all of the model.
inline constexpr Sharding ofWholeModels[] = {Sharding::None, Sharding::States, Sharding::Gradients, Sharding::Parameters};

/// A Way has services, or none, on a device.
struct Way {
  /// The name, and the device but for its memory, which is the least that trains; FOLDER stands for one of the test.
  const char *name, *device;
  /// The section memory.stagehand; empty: no services, and memory for everything.
  const char *services = "";
};

/// Notes how many messages have been given to the network when each backward ends.
struct Messages final : ForwardEvents {
  DeviceRef device;
  uint64_t before = 0;
  std::vector<uint64_t> inBackward;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    if (begin.phase == Phase::Backward)
      before = device->position(Queue::Network);
    else if (begin.phase == Phase::Optimizer)
      inBackward.push_back(device->position(Queue::Network) - before);
  }
  void on(const auto &) {}
};

inline constexpr const char *marks =
    R"({"activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 0,
  "pinned_pool_classes_mb": [1], "slabs_per_class": 6, "vram_high_watermark_mb": 0.001, "vram_low_watermark_mb": 0},
  "state_stagehand": {"mode": "on", "telemetry_enabled": false}})";
inline constexpr const char *plan =
    R"({"activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}})";
inline constexpr const char *ring =
    R"({"telemetry_enabled": false, "prefetch_window_blocks": 1, "vram_high_watermark_mb": 0.5})";
inline constexpr const char *planAndRing = R"({"telemetry_enabled": false, "prefetch_window_blocks": 1,
  "vram_high_watermark_mb": 0.5,
  "activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}})";

inline const DeepModel model{.layers = 6, .rows = 256, .width = 64, .isRandom = true};

inline const Binary &binary() {
  static const Binary file = model.compiled();
  return file;
}

inline void setValues(Session &session) {
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, uint32_t(info.key.back())));
}

/// Returns true if two tensors have the same bytes.
inline bool haveEqualValues(const Tensor &a, const Tensor &b) {
  Tensor left = toHost(a), right = toHost(b);
  uint64_t bytes = left.desc().spanBytes();
  return left.desc() == right.desc() && std::memcmp(left.bytes(), right.bytes(), bytes) == 0;
}

/// How the batches of a step are given: at once, so that the last one is known, or one by one.
enum class Given { AtOnce, OneByOne };

/// Returns losses and norms of so many steps.
inline std::vector<float> trainNorms(Session &session, int count, int first, int batches, Given given = Given::AtOnce) {
  std::vector<float> bits;
  for (int i = 0; i < count; ++i) {
    std::vector<TensorMap> step;
    for (int batch = first; batch < first + batches; ++batch) {
      auto seed = uint32_t(100 + 4 * session.stepCount() + batch);
      step.push_back({{"x", randomTensor(session.device(), {model.rows, model.width}, seed)}});
    }
    if (given == Given::OneByOne)
      for (const TensorMap &batch : step)
        session.forwardBackward(batch);
    StepResult result = given == Given::OneByOne ? session.optimize(1e-2) : session.step(step, 1e-2);
    bits.push_back(float(result.loss));
    bits.push_back(float(result.gradNorm));
  }
  return bits;
}

/// Returns these, and the parameters after the last.
inline std::vector<float> trainParameters(Session &session, int count, int first, int batches,
                                          Given given = Given::AtOnce) {
  std::vector<float> bits = trainNorms(session, count, first, batches, given);
  for (const ParameterInfo &info : session.parameters())
    std::ranges::copy(values(session.parameter(info.key)), std::back_inserter(bits));
  return bits;
}

/// Returns these, and the states after the last.
inline std::vector<float> train(Session &session, int count, int first, int batches, Given given = Given::AtOnce) {
  std::vector<float> bits = trainParameters(session, count, first, batches, given);
  for (const auto &[key, state] : session.state())
    std::ranges::copy(values(state), std::back_inserter(bits));
  return bits;
}

inline SessionOptions optionsOf(const Way &way) {
  SessionOptions options;
  options.maxGradNorm = 1e-3;
  options.seed = 11;
  options.warn = [](const std::string &text) {
    if (text.find(" NaN and ") == text.npos) // of a batch that has them
      ADD_FAILURE() << text;
  };
  std::string services = way.services;
  if (!services.empty())
    options.config = Config::parse(R"({"memory": {"stagehand": )" + services + "}}", "test");
  return options;
}

/// Returns a session of one rank with everything in memory.
inline Session makeAlone() {
  Session session(Device::open("cpu:threads=1"), {{"deep", binary()}}, optionsOf({"", ""}));
  setValues(session);
  return session;
}

inline const Way rankWays[] = {
    Way{"Cpu", "cpu:threads=1"}, Way{"Sim", "sim:pinned=16MiB,threads=1,link=8GB/s"},
    Way{"Streams", "sim:streams,pinned=16MiB,threads=1,adversarial=5"},
    Way{"Marks", "sim:pinned=16MiB,threads=1,link=8GB/s", marks},
    Way{"MarksInAnyOrder", "sim:pinned=16MiB,threads=1,adversarial=6", marks},
    Way{"Plan", "sim:pinned=16MiB,threads=1,link=8GB/s", plan},
    Way{"PlanInAnyOrder", "sim:streams,pinned=16MiB,threads=1,adversarial=7", plan},
    Way{"Ring", "sim:pinned=16MiB,threads=1,link=8GB/s", ring},
    Way{"PlanAndRing", "sim:pinned=16MiB,threads=1,link=8GB/s", planAndRing},
    Way{"PlanAboveADisk", "cpu:threads=1,disk=FOLDER?capacity=64MiB", plan},
    Way{"MarksAboveADisk", "cpu:threads=1,disk=FOLDER?capacity=64MiB", marks},
    Way{"PlanWithADiskBelowTheHost", "sim:host=512KiB,threads=1,disk=FOLDER?capacity=64MiB", plan}};

/// Returns the bytes of a file.
inline std::string bytesOf(const std::filesystem::path &path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// A run of two ranks in one of the ways, with the least memory in which none is refused.
struct RankModesRun {
  /// `spare`: more memory than that, as a part of it.
  explicit RankModesRun(const Way &way, size_t batches = 1, double spare = 0, Sharding sharding = Sharding::None,
                        const Binary &file = binary())
      : way(way), sharding(sharding), file(file) {
    std::string name = way.device;
    if (size_t at = name.find("FOLDER"); at != name.npos)
      name.replace(at, 6, folder.path.string());
    std::string services = way.services;
    uint64_t least = services.empty() ? 16 << 20 : smallest(name, batches);
    device = name + ",dram=" + std::to_string(uint64_t(double(least) * (1 + spare)));
  }
  std::vector<std::string> onRanks(const std::function<void(Rank &)> &body) const {
    return segue::test::onRanks(2, device, body, {.seed = 9}, {.bucketBytes = 20000});
  }
  Session make(Rank &rank, EventSink *events = nullptr,
               const std::function<void(const std::string &)> &warn = nullptr) const {
    SessionOptions options = optionsOf(way);
    if (warn)
      options.warn = warn;
    options.seed += rank.number(); // that of rank 0 is taken
    options.collectives = rank.together;
    options.sharding = sharding;
    options.events = events;
    Session session(rank.device, {{"deep", file}}, std::move(options));
    setValues(session);
    return session;
  }

  const Way way;
  const Sharding sharding;
  const Binary file;
  TemporaryFolder folder;
  std::string device;

private:
  /// The smallest memory in which no rank is refused for steps of so many batches.
  uint64_t smallest(const std::string &name, size_t batches) const {
    return leastOfRanks(2, name, [&](Rank &rank) { make(rank).certify(batches); });
  }
};

} // namespace segue::test::ranked

#endif // SEGUE_TEST_STITCH_RANKMODES_H
