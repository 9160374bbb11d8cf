//===- FaultPlacesTest.cpp - every copy of a run fails once ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two steps of two stitched modules, under each way to save memory, and their
// parameters read: every copy over the link in turn fails once, twice, four times
// and for long, and every allocation. The run ends with the losses and parameters of the run without
// faults, to the bit; or it says TRANSFER_FAILED or DEVICE_OOM, with the parameters of
// the last finished step, or STATE_TORN, and then refuses everything until a checkpoint is
// loaded; and goes on to the same end. Queues are an adversary's, whose copies come
// in the same order each time.
//
//===----------------------------------------------------------------------===//

#include "Sample.h"
#include "StreamedModel.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <map>
#include <regex>

using namespace segue;
using namespace segue::test;

namespace {
constexpr int steps = 2;
using Parameters = std::map<std::string, std::vector<float>>;

Parameters parametersOf(Session &session) {
  Parameters parameters;
  for (const ParameterInfo &info : session.parameters())
    parameters[info.key] = values(session.parameter(info.key));
  return parameters;
}

/// The run without faults and services, and a checkpoint of each step.
struct Expected {
  TemporaryFolder folder;
  std::vector<double> losses;
  std::vector<Parameters> parameters;
  std::filesystem::path checkpoint(int64_t step) const { return folder.path / std::to_string(step); }

  Expected() {
    Session session = makeSession(Device::open("cpu:threads=2"));
    for (int step = 0;; ++step) {
      parameters.push_back(parametersOf(session));
      session.save(checkpoint(step));
      if (step == steps)
        return;
      losses.push_back(session.step(batchOf(session.device(), step), 1e-2).loss);
    }
  }
};

const Expected &expected() {
  static const Expected course;
  return course;
}

struct Copies {
  uint64_t toDevice = 0, toHost = 0;
};

Copies copiesOf(const DeviceRef &device) {
  const TransferCounters &counters = device->transfer().counters();
  return {counters.h2dCopies, counters.d2hCopies};
}

/// Counts of what the faults of a run led to.
struct Met {
  int failed = 0, torn = 0;
};

/// Who moves what, and the mode of the simulated device: empty, or one of its options.
using Setup = std::pair<const char *, const char *>;

class FaultPlacesTest : public testing::TestWithParam<Setup> {
protected:
  const std::string mode = GetParam().first;
  const bool isStreamed = mode.starts_with("streamed"), statesLeave = mode.ends_with("States");
  const std::string onStreams = GetParam().second;

  std::string spec(const std::string &faults = "", const std::string &queues = ",adversarial=11") const {
    return "sim:dram=1MiB,pinned=3MiB,threads=1" + onStreams + queues + faults;
  }

  std::string config() const {
    if (mode == "stitched")
      return "";
    std::string activation = R"(, "activation_stagehand": {"enabled": true, "telemetry_enabled": false,)";
    if (mode == "planned") {
      static const uint64_t cap = [&] { // no cap depends on streams
        StepTwin twin(virtualTwin(*Device::open(spec())), modelModules(),
                      {.wires = {{"back", "hidden", "front", "h"}}});
        ResidencyPlanner plans(twin.record());
        return (3 * plans.smallestBudget() + plans.unconstrained().peakBytes) / 4;
      }();
      return R"({"memory": {"stagehand": {)" + activation.substr(2) + R"("mode": "planned"}, )" +
             conductor(double(cap) / 1048576) + "}}}";
    }
    if (statesLeave)
      activation = R"(, "state_stagehand": {"mode": "on", "telemetry_enabled": false})" + activation;
    activation += R"("min_spill_bytes": 0, "pinned_pool_classes_mb": [1], "slabs_per_class": 2,
      "vram_high_watermark_mb": 0.1, "vram_low_watermark_mb": 0})";
    if (!isStreamed)
      return R"({"memory": {"stagehand": {)" + activation.substr(2) + ", " + conductor(0.9) + "}}}";
    return streamingConfig(0.2, 2, activation + ", " + conductor(0.9));
  }
  static std::string conductor(double capMiB) {
    std::string cap = std::to_string(capMiB);
    return R"("conductor_config": {"enabled": true, "telemetry_enabled": false, "vram_hard_cap_mb": )" + cap +
           R"(, "vram_soft_cap_mb": )" + cap + "}";
  }

  Session make(const DeviceRef &device) {
    SessionOptions options;
    options.warn = [](const std::string &) {};
    // A binary holds what it prepared for a device, and so the device with its memory: binaries that were loaded once
    // would keep the devices of all runs.
    return makeSession(device, config(), std::move(options), loadFiles(modelFiles()));
  }

  /// Trains and reads, whatever fails. `mayTear`: an outage that outlasts every
  /// second try may leave an optimizer halfway.
  Met play(Session &session, bool mayTear, bool lacksMemory = false) {
    Met met;
    auto isNamed = [&](const Error &error) {
      return FaultPlacesTest::isNamed(error) || (lacksMemory && error.code() == ErrorCode::DeviceOom);
    };
    Parameters parameters;
    auto reload = [&] {
      ++met.torn;
      expectRefusal([&] { session.step(batchOf(session.device(), 0), 1e-2); });
      expectRefusal([&] { session.parameter("w1"); });
      expectRefusal([&] { session.checkpoint(); });
      expectRefusal([&] { session.evaluate(batchOf(session.device(), 0)); });
      untilItSucceeds([&] { session.load(expected().checkpoint(std::min<int64_t>(session.stepCount(), steps - 1))); },
                      [&](const Error &error) { EXPECT_TRUE(isNamed(error)) << error.what(); });
    };
    auto look = [&](const Error &error) {
      std::string what = error.what();
      if (error.code() == ErrorCode::StateTorn) {
        EXPECT_TRUE(mayTear) << what;
        EXPECT_TRUE(std::regex_search(what, std::regex("step [12] was torn"))) << what;
        EXPECT_NE(what.find("load the last checkpoint"), std::string::npos) << what;
        return reload();
      }
      ++met.failed;
      EXPECT_TRUE(isNamed(error)) << what;
    };
    auto read = [&] {
      parameters = parametersOf(session);
      EXPECT_EQ(parameters, expected().parameters[size_t(session.stepCount())]) << "after step " << session.stepCount();
    };
    auto train = [&] {
      while (session.stepCount() < steps) {
        size_t step = size_t(session.stepCount());
        EXPECT_EQ(session.step(batchOf(session.device(), int(step)), 1e-2).loss, expected().losses[step])
            << "step " << step + 1;
      }
      read();
    };
    untilItSucceeds(train, [&](const Error &error) {
      look(error);
      untilItSucceeds(read, look); // the last finished step, and nothing of the one that failed
    });
    return met;
  }

  template <typename Call, typename Look> static void untilItSucceeds(Call call, Look look) {
    for (int tries = 0; tries < 200; ++tries)
      try {
        return call();
      } catch (const Error &error) {
        look(error);
      }
    ADD_FAILURE() << "the link is back, and it is never done";
  }

  /// DEVICE_OOM: what stayed on the device since it could not leave takes the room
  /// of what is to come.
  bool isNamed(const Error &error) {
    bool mayStay = mode == "planned" || isStreamed || statesLeave;
    return error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::StateTorn ||
           (mayStay && error.code() == ErrorCode::DeviceOom);
  }

  template <typename Call> static void expectRefusal(Call call) {
    try {
      call();
      ADD_FAILURE() << "a torn session went on";
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::StateTorn) << error.what();
    }
  }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(All, FaultPlacesTest, testing::Values(Setup("stitched", ""), Setup("watermarks", ""), Setup("planned", ""),
                                         Setup("streamed", ""), Setup("watermarksStates", ""),
                                         Setup("streamedStates", ",streams"),
                                         Setup("planned", ",streams"), Setup("streamed", ",streams")),
                         [](const auto &info) {
                           return info.param.first + std::string(*info.param.second ? "OnStreams" : "");
                         });

TEST_P(FaultPlacesTest, EveryCopyFails) {
  DeviceRef device = Device::open(spec());
  Session calm = make(device);
  Copies before = copiesOf(device);
  Met none = play(calm, /*mayTear=*/false);
  ASSERT_EQ(none.failed + none.torn, 0);
  Copies after = copiesOf(device);
  ASSERT_GT(after.toDevice, before.toDevice + 2);
  ASSERT_GT(after.toHost, before.toHost + 4);
  // A load is tried once more and then given up, also halfway through an optimizer.
  bool mayTearSoon = isStreamed;
  int runs = 0;
  uint64_t places = 0;
  std::map<std::string, Met> met;
  for (bool toDevice : {true, false})
    for (uint64_t n = toDevice ? before.toDevice : before.toHost; n < (toDevice ? after.toDevice : after.toHost); ++n)
      for (std::string times : {"x1", "x2", "x4", "x64"}) {
        if ((times == "x64" && n % (statesLeave ? 12 : 4)) || (times == "x4" && statesLeave && n % 2))
          continue; // each is many attempts
        if (!isDrawn(places++, 3))
          continue;
        std::string fault = (toDevice ? ",fail-h2d=" : ",fail-d2h=") + std::to_string(n + 1) + times;
        SCOPED_TRACE(mode + onStreams + fault);
        DeviceRef faulty = Device::open(spec(fault));
        Session session = make(faulty);
        Met each = play(session, /*mayTear=*/times == "x64" || (times == "x4" && toDevice && mayTearSoon));
        if (times == "x1") {
          EXPECT_EQ(each.failed + each.torn, 0) << "the engine tries twice";
        }
        met[times].failed += each.failed;
        met[times].torn += each.torn;
        ++runs;
        if (HasFailure())
          return; // one place says enough
      }
  std::string text;
  for (const auto &[times, each] : met)
    text += " " + times + ": " + std::to_string(each.failed) + " failed, " + std::to_string(each.torn) + " torn;";
  std::printf("%s: %d runs, %llu copies to the device, %llu to the host;%s\n", (mode + onStreams).c_str(), runs,
              (unsigned long long)(after.toDevice - before.toDevice),
              (unsigned long long)(after.toHost - before.toHost), text.c_str());
}

namespace {
/// Blocks of device_dram that were taken.
struct Taken final : MemoryWatcher {
  void onTaken(const void *, uint64_t, uint32_t, OwnerId) override { ++count; }
  void onGiven(const void *) override {}
  uint64_t count = 0;
};
} // namespace

// One that fails once is tried again when room was made; one that fails on is said,
// and the session goes on from the step before.
TEST_P(FaultPlacesTest, EveryAllocationFails) {
  for (uint64_t isHostile : {0, 1}) {
    std::string queues = isHostile ? ",adversarial=11" : "";
    Taken taken;
    DeviceRef device = Device::open(spec("", queues));
    device->memory().watch(&taken);
    uint64_t first = 0;
    {
      Session calm = make(device);
      first = taken.count;
      Met none = play(calm, /*mayTear=*/false);
      ASSERT_EQ(none.failed + none.torn, 0);
    }
    device->memory().watch(nullptr);
    ASSERT_GT(taken.count, first + 20);
    int runs = 0;
    std::map<std::string, Met> met;
    for (uint64_t n = first + 1; n <= taken.count; ++n)
      for (std::string times : {"x1", "x9"}) {
        if (times == "x1" ? n % 4 != 2 * isHostile : n % 2 != isHostile)
          continue; // each is a run; the other device has the others
        if (!isDrawn(n / (times == "x1" ? 4 : 2), 3))
          continue;
        std::string fault = ",fail-dram=" + std::to_string(n) + times;
        SCOPED_TRACE(mode + onStreams + fault + queues);
        DeviceRef faulty = Device::open(spec(fault, queues));
        Session session = make(faulty);
        Met each = play(session, /*mayTear=*/true, /*lacksMemory=*/true);
        met[times].failed += each.failed;
        met[times].torn += each.torn;
        ++runs;
        if (HasFailure())
          return; // one place says enough
      }
    if (!sampleSeed()) { // a plan copes with most places: a sample may hold no other
      EXPECT_GT(met["x9"].failed, 0);
    }
    std::printf("%s%s: %d runs; x1: %d failed, %d torn; x9: %d failed, %d torn\n", (mode + onStreams).c_str(), queues.c_str(), runs,
                met["x1"].failed, met["x1"].torn, met["x9"].failed, met["x9"].torn);
  }
}

// A link that is dead from some copy on: whoever trains is told, again and again,
// nothing hangs, and no step counts that was not finished.
TEST_P(FaultPlacesTest, ADeadLinkIsSaid) {
  DeviceRef device = Device::open(spec());
  Session calm = make(device);
  Copies before = copiesOf(device);
  calm.step(batchOf(device, 0), 1e-2);
  calm.step(batchOf(device, 1), 1e-2);
  Copies after = copiesOf(device);
  for (bool toDevice : {true, false}) {
    uint64_t first = toDevice ? before.toDevice : before.toHost, last = toDevice ? after.toDevice : after.toHost;
    for (uint64_t n = first; n < last; n += 5) {
      std::string fault = (toDevice ? ",fail-h2d=" : ",fail-d2h=") + std::to_string(n + 1) + "+";
      SCOPED_TRACE(mode + onStreams + fault);
      DeviceRef faulty = Device::open(spec(fault));
      Session session = make(faulty);
      int told = 0;
      for (int tries = 0; tries < 4; ++tries)
        try {
          int64_t step = session.stepCount();
          EXPECT_EQ(session.step(batchOf(faulty, int(step)), 1e-2).loss, expected().losses[size_t(step)]);
          if (session.stepCount() == steps)
            break; // what fails comes later
        } catch (const Error &error) {
          ++told;
          EXPECT_TRUE(isNamed(error)) << error.what();
        }
      EXPECT_TRUE(told || session.stepCount() == steps);
      try {
        Parameters parameters = parametersOf(session);
        EXPECT_EQ(parameters, expected().parameters[size_t(session.stepCount())]);
      } catch (const Error &error) {
        EXPECT_TRUE(isNamed(error)) << error.what();
      }
    }
  }
}
