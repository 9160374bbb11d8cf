//===- RecordedWeightsTest.cpp - decisions that are played again ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a session recorded of Weight Stagehand gives the same decisions in a
// policy that has neither device nor clock, whatever went wrong in the run.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "StreamedModel.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

using namespace segue;
using namespace segue::test;

namespace {
/// A folder for the logs of one session at a time.
class RecordedRun {
public:
  Session make(const DeviceRef &device, const std::string &config) {
    SessionOptions options;
    options.recordEvents = folder_.path;
    options.warn = [](const std::string &) {};
    return makeSession(device, config, std::move(options));
  }
  std::filesystem::path path() const { return folder_.path; }
  std::filesystem::path log() const { return folder_.path / "weight.json"; }

  /// Exit status of `segue-run replay --check`.
  int replay() const {
    int status = std::system(("timeout 60 " SEGUE_RUN " replay --check " + log().string() + " > /dev/null").c_str());
    return WEXITSTATUS(status);
  }
  Json read() const {
    std::ifstream file(log());
    return Json::parse(file);
  }
  /// How often each event occurs.
  std::map<std::string, int> events() const {
    std::map<std::string, int> counts;
    Json json = read();
    for (const Json &event : json["events"])
      ++counts[event["op"].get<std::string>()];
    return counts;
  }

private:
  TemporaryFolder folder_;
};
} // namespace

/// Runs steps until so many have succeeded; what failed is forgotten.
static int stepsWithFailures(Session &session, int steps) {
  int failures = 0;
  for (int tries = 0; session.stepCount() < steps && tries < 200; ++tries)
    try {
      session.step(batchOf(session.device(), int(session.stepCount())), 1e-2);
    } catch (const Error &error) {
      ++failures;
      if (error.code() == ErrorCode::StateTorn)
        break;
    }
  return failures;
}

class RecordedWeightsTest : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(All, RecordedWeightsTest,
                         testing::Values("cpu:threads=2", "sim:dram=4MiB,pinned=8MiB,link=4GB/s",
                                         "sim:dram=4MiB,adversarial=1", "sim:dram=4MiB,pinned=8MiB,adversarial=2",
                                         "sim:streams,dram=4MiB,pinned=8MiB,link=4GB/s",
                                         "sim:streams,dram=4MiB,pinned=8MiB,adversarial=2"));

// Steps, micro-batches, evaluations between steps and in the midst of one, a step
// that is given up, one whose loss is NaN, parameters that are set between. Under
// the low watermark blocks leave, under the high one what changed stays.
TEST_P(RecordedWeightsTest, StepsOfAllKinds) {
  std::map<std::string, int> all;
  for (double highMiB : {0.2, 2.0}) {
    SCOPED_TRACE(highMiB);
    RecordedRun recorded;
    DeviceRef device = Device::open(GetParam());
    {
      Session session = recorded.make(device, streamingConfig(highMiB, 2));
      session.step(batchOf(device, 1), 1e-2);
      session.evaluate(batchOf(device, 50));
      TensorMap batches[] = {batchOf(device, 2), batchOf(device, 3)};
      session.step(batches, 1e-2);
      session.forwardBackward(batchOf(device, 4));
      session.evaluate(batchOf(device, 51));
      session.clearGradients();
      Tensor bad = randomTensor(device, {modelRows, modelWidth}, 1);
      bad.data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_EQ(errorOf([&] { session.step({{"x", bad}}, 1e-2); }).first, ErrorCode::NanLoss);
      EXPECT_GT(session.services()->weightRecord()["nan_count"], 0) << "an aborted step has its counts";
      session.step(batchOf(device, 5), 1e-2);
      session.checkpoint();
      for (const char *key : {"w0", "w1", "w2", "w3"})
        session.setParameter(key, randomTensor(device, {modelWidth, modelWidth}, 3));
      session.step(batchOf(device, 6), 1e-2);
      EXPECT_EQ(recorded.replay(), 0) << "of a session that goes on";
    }
    auto events = recorded.events();
    EXPECT_EQ(events["abort_step"], 2);
    EXPECT_EQ(events["end_step"], 4 + 1) << "four steps, an evaluation; the one within a step is a part of it";
    EXPECT_EQ(recorded.replay(), 0);
    for (const auto &[op, count] : events)
      all[op] += count;
  }
  for (const char *op : {"start", "register", "order", "ring", "before_block", "after_block", "observe", "loaded",
                         "changed", "evicted", "saved_back", "drop"})
    EXPECT_GT(all[op], 0) << op;
}

// An answer that is another than the log's is noticed.
TEST(RecordedWeights, ReplayComparesAnswers) {
  RecordedRun recorded;
  {
    Session session = recorded.make(Device::open("sim:dram=4MiB"), streamingConfig(0.2, 2));
    session.step(batchOf(session.device(), 1), 1e-2);
  }
  Json json = recorded.read();
  EXPECT_EQ(json["service"], "weight");
  for (Json &event : json["events"])
    if (event["op"] == "end_step")
      event["expect"]["loads"] = event["expect"]["loads"].get<int>() + 1;
  std::ofstream(recorded.log()) << json.dump();
  EXPECT_EQ(recorded.replay(), 1);
}

// Loads and save-backs that fail, are tried again, fail for good.
TEST(RecordedWeights, CopiesThatFail) {
  std::map<std::string, int> events;
  int failures = 0;
  for (int seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RecordedRun recorded;
    DeviceRef device = Device::open("sim:dram=4MiB,pinned=8MiB,fail-copy=" + std::string(seed % 2 ? "0.12" : "0.33") +
                                    ",adversarial=" + std::to_string(seed));
    for (int tries = 0; tries < 100; ++tries)
      try {
        Session session = recorded.make(device, streamingConfig(0.2, 2));
        failures += stepsWithFailures(session, 5);
        break;
      } catch (const Error &) { // its parameters could not be set
      }
    EXPECT_EQ(recorded.replay(), 0);
    for (const auto &[op, count] : recorded.events())
      events[op] += count;
  }
  EXPECT_GT(failures, 0);
  for (const char *op : {"load_failed", "save_back_failed", "abort_step"})
    EXPECT_GT(events[op], 0) << op;
}

// Conductor's hints and denials, and a ring that gives slots back to activations.
TEST(RecordedWeights, HintsDenialsAndRoom) {
  auto config = [](double capMiB, const std::string &more) {
    std::string cap = std::to_string(capMiB);
    return streamingConfig(2, 3,
                           R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false, "h2d_slots": 1,
                             "vram_hard_cap_mb": )" +
                               cap + R"(, "vram_soft_cap_mb": )" + cap + more + "}");
  };
  uint64_t peak = 0;
  {
    DeviceRef device = Device::open("sim:dram=4MiB,pinned=8MiB");
    Session free = makeSession(device, config(3, ""));
    for (int step = 0; step < 2; ++step)
      free.step(batchOf(device, step), 1e-2);
    peak = device->memory().peakBytes(Space::DeviceDram);
  }
  for (const char *device : {"sim:dram=4MiB,pinned=8MiB", "sim:dram=4MiB,pinned=8MiB,adversarial=5"}) {
    RecordedRun recorded;
    {
      Session session = recorded.make(Device::open(device), config(double(peak - 3 * 20480) / 1048576,
                                                                   R"(, "backward_pressure_threshold": 0.001)"));
      for (int step = 0; step < 4; ++step)
        session.step(batchOf(session.device(), step), 1e-2);
      EXPECT_LT(session.services()->weights()->slots(), 2 * modelLayers);
    }
    auto events = recorded.events();
    EXPECT_GT(events["hints"], 0);
    EXPECT_GT(events["make_room"], 0);
    EXPECT_GT(events["ring"], 0);
    EXPECT_EQ(recorded.replay(), 0);
  }
}

// A file that changes in the midst of a run, and another after it: the policy
// begins anew in the same log.
TEST(RecordedWeights, FilesAndStartsAnew) {
  RecordedRun recorded;
  DeviceRef device = Device::open("sim:dram=4MiB,pinned=8MiB");
  std::filesystem::path path = recorded.path() / "weights.safetensors";
  saveSafetensors(path, makeSession(Device::open("cpu")).checkpoint().parameters);
  {
    Session session = recorded.make(device, streamingConfig(0.2, 2, R"(, "max_inflight_transfers": 4)"));
    session.loadWeights(path);
    session.step(batchOf(device, 0), 1e-2);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
    EXPECT_EQ(errorOf([&] { session.step(batchOf(device, 1), 1e-2); }).first, ErrorCode::SourceChanged);
    std::filesystem::path again = recorded.path() / "again.safetensors";
    saveSafetensors(again, makeSession(Device::open("cpu")).checkpoint().parameters);
    session.setParameter("f0.weight", randomTensor(device, {modelWidth, modelWidth}, 3));
    session.loadWeights(again);
    session.step(batchOf(device, 1), 1e-2);
  }
  auto events = recorded.events();
  EXPECT_GE(events["start"], 2);
  EXPECT_GT(events["load_failed"], 0);
  EXPECT_EQ(recorded.replay(), 0);
}

// A plan is made of measured times, which the log has.
TEST_P(RecordedWeightsTest, Plans) {
  RecordedRun recorded;
  {
    Session session = recorded.make(Device::open(GetParam()), streamingConfig(0.25, 2, R"(, "policy": "planned")"));
    for (int step = 0; step < 6; ++step)
      session.step(batchOf(session.device(), step), 1e-2);
    EXPECT_TRUE(session.services()->weights()->policy().plan());
    EXPECT_GT(session.services()->weightRecord()["compute_time_ms"].get<double>(), 0);
  }
  EXPECT_EQ(recorded.replay(), 0);
}

// What a session claims is an event, too.
TEST_P(RecordedWeightsTest, Claims) {
  RecordedRun recorded;
  {
    Session session = recorded.make(Device::open(GetParam()), streamingConfig(0.25, 2));
    session.step(batchOf(session.device(), 0), 1e-2);
    WeightStreamer &weights = *session.services()->weights();
    auto kept = weights.keepResident({"front/h.1"});
    auto reserved = weights.reserve("back", ResidencyRank::Primary, 4096);
    session.step(batchOf(session.device(), 1), 1e-2);
    {
      auto guest = weights.asGuest("front");
      session.evaluate(batchOf(session.device(), 2));
    }
    session.step(batchOf(session.device(), 3), 1e-2);
    auto there = weights.policy().resident();
    EXPECT_NE(std::ranges::find(there, "front/h.1"), there.end());
  }
  auto events = recorded.events();
  EXPECT_EQ(events["keep"] + events["reserve"] + events["guest"], 3);
  EXPECT_EQ(events["release"], 3);
  EXPECT_EQ(recorded.replay(), 0);
}

// `debug_trace` writes the log beside the telemetry.
TEST(RecordedWeights, DebugTrace) {
  TemporaryFolder folder;
  {
    Session session =
        makeSession(Device::open("sim:dram=4MiB"),
                    R"({"memory": {"stagehand": {"vram_high_watermark_mb": 0.2, "vram_low_watermark_mb": 0.1,
                                    "debug_trace": true, "telemetry_file": ")" +
                        (folder.path / "t.jsonl").string() + "\"}}}");
    session.step(batchOf(session.device(), 0), 1e-2);
  }
  EXPECT_EQ(std::system(("timeout 60 " SEGUE_RUN " replay --check " + (folder.path / "weight_events.json").string() +
                         " > /dev/null")
                            .c_str()),
            0);
}
