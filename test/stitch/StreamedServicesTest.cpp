//===- StreamedServicesTest.cpp - streamed weights among services ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Weight Stagehand with Conductor and Activation Stagehand, and each row of the
// table of docs/guides/faults.md, through a session.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "StreamedModel.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

using namespace segue;
using namespace segue::test;

static constexpr const char *plainSim = "sim:dram=4MiB,pinned=8MiB";

/// Sections beside Weight Stagehand's keys; Conductor's caps are `capMiB`.
static std::string servicesConfig(double highMiB, double capMiB, int64_t window = 2, const std::string &conductor = "",
                                  const std::string &more = "") {
  std::string cap = Json(capMiB).dump(); // to the byte
  return streamingConfig(highMiB, window,
                         R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false, "vram_hard_cap_mb": )" +
                             cap + R"(, "vram_soft_cap_mb": )" + cap + conductor + "}" + more);
}

struct Course {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> parameters;
  bool operator==(const Course &) const = default;
};

static Course courseOf(Session &session, int steps) {
  Course course;
  for (int step = 0; step < steps; ++step)
    course.losses.push_back(session.step(batchOf(session.device(), step), 1e-2).loss);
  for (const ParameterInfo &info : session.parameters())
    course.parameters[info.key] = values(session.parameter(info.key));
  return course;
}

static Course expectedCourse(int steps) {
  Session session = makeSession(Device::open("cpu:threads=2"));
  return courseOf(session, steps);
}

//===----------------------------------------------------------------------===//
// Conductor
//===----------------------------------------------------------------------===//

TEST(StreamedServices, ConductorSeesKnobsTokensAndReservations) {
  DeviceRef device = Device::open(plainSim);
  Session session = makeSession(device, servicesConfig(0.2, 2, 2, R"(, "h2d_slots": 1, "d2h_slots": 1)"));
  EXPECT_EQ(courseOf(session, 4), expectedCourse(4));
  Json record = session.services()->conductorRecord();
  EXPECT_EQ(record["runtime_snapshots"]["stagehand"]["max_inflight"], 1) << "one slot is the cap of two loads";
  EXPECT_EQ(record["runtime_snapshots"]["stagehand"]["prefetch_window"], 1) << "OPTIMIZER suppresses what is ahead";
  EXPECT_EQ(record["h2d_peak"], 1);
  EXPECT_EQ(record["slot_overruns"], 0) << "with one slot, a token that leaks is missed by the next that waits";
  EXPECT_EQ(record["h2d_inflight"], 0);
  EXPECT_LE(record["d2h_inflight"], 1) << "a save-back may outlive STEP_END";
  EXPECT_GT(record["h2d_gbps"].get<double>(), 0);
  EXPECT_EQ(record["vram_reserved_uncommitted_mb"], 0) << "the ring is allocated";
  EXPECT_EQ(record["adapter_errors"], 0);
  EXPECT_GT(session.services()->weightRecord()["loads"], 0);
}

// One block ahead at most while speculation is suppressed, and the bits are those
// of any other run. What is denied is skipped.
TEST(StreamedServices, SuppressionLeavesTheNextBlockAlone) {
  DeviceRef device = Device::open(plainSim);
  Session session = makeSession(device, servicesConfig(0.25, 2, 3, R"(, "backward_pressure_threshold": 0.001)"));
  EXPECT_EQ(courseOf(session, 3), expectedCourse(3));
  Json record = session.services()->weightRecord();
  EXPECT_GT(record["prefetch_hits"].get<int>() + record["prefetch_late"].get<int>(), 0);
  EXPECT_EQ(session.services()->conductorRecord()["slot_overruns"], 0);
}

// The ring is a reservation: what Conductor does not grant is not taken.
TEST(StreamedServices, TheRingKeepsToTheSoftCap) {
  DeviceRef device = Device::open(plainSim);
  Session roomy = makeSession(device, servicesConfig(1, 2));
  roomy.step(batchOf(device, 1), 1e-2);
  EXPECT_EQ(roomy.services()->weights()->slots(), 2 * modelLayers);
  device = Device::open(plainSim);
  std::string config = streamingConfig(1, 2, R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false,
    "vram_hard_cap_mb": 2, "vram_soft_cap_mb": 0.22})");
  Session tight = makeSession(device, config);
  EXPECT_EQ(courseOf(tight, 2), expectedCourse(2));
  EXPECT_LT(tight.services()->weights()->slots(), 2 * modelLayers);
  device = Device::open(plainSim);
  config.replace(config.find("0.22"), 4, "0.03");
  Session none = makeSession(device, config);
  auto [code, what] = errorOf([&] { none.step(batchOf(device, 1), 1e-2); });
  EXPECT_EQ(code, ErrorCode::BudgetInfeasible);
  EXPECT_NE(what.find("Conductor grants 0 below vram_soft_cap_mb"), std::string::npos) << what;
}

// Activations find no room beside a ring that holds all: blocks leave by score,
// their slots are given back, and the cap is kept.
TEST(StreamedServices, WeightsMakeRoom) {
  DeviceRef device = Device::open(plainSim);
  uint64_t peak = 0;
  {
    Session free = makeSession(device, servicesConfig(2, 3));
    courseOf(free, 2);
    peak = device->memory().peakBytes(Space::DeviceDram);
    EXPECT_EQ(free.services()->weights()->slots(), 2 * modelLayers);
  }
  device = Device::open(plainSim);
  uint64_t cap = peak - 3 * 20480;
  Session session = makeSession(device, servicesConfig(2, double(cap) / 1048576));
  device->memory().resetPeak();
  EXPECT_EQ(courseOf(session, 4), expectedCourse(4));
  EXPECT_LT(session.services()->weights()->slots(), 2 * modelLayers);
  EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), cap);
}

// Blocks of unequal size under a plan: each takes a slot, whatever its size, and
// what the plan keeps leaves the others the slots that they need.
TEST(StreamedServices, PlannedKeepsToTheSlots) {
  std::vector<SessionModule> modules = compileModel([isFront = true](std::string &text) mutable {
    if (std::exchange(isFront, false)) // h.0 and h.1 are one block
      for (size_t at; (at = text.find("\"h.1\"")) != std::string::npos;)
        text.replace(at, 5, "\"h.0\"");
  });
  auto make = [&](const char *spec, const std::string &config) {
    SessionOptions options;
    if (!config.empty())
      options.config = Config::parse(config, "test");
    options.wires = {{"back", "hidden", "front", "h"}};
    Session session(Device::open(spec), modules, std::move(options));
    uint32_t seed = 1;
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(session.device(), info.desc.shape, seed++));
    return session;
  };
  Session plain = make("cpu:threads=2", "");
  const Course expected = courseOf(plain, 6);
  std::set<int64_t> rings;
  for (double high : {0.2, 0.25, 0.3, 1.0}) {
    SCOPED_TRACE(high);
    Session session = make(plainSim, servicesConfig(high, 2, 2, "", R"(, "policy": "planned")"));
    EXPECT_EQ(courseOf(session, 6), expected);
    const WeightStreamer &streamer = *session.services()->weights();
    ASSERT_TRUE(streamer.policy().plan());
    EXPECT_LT(int64_t(streamer.policy().plan()->resident.size()), std::max<int64_t>(streamer.slots(), 1));
    EXPECT_EQ(streamer.ringBytes() % uint64_t(streamer.slots()), 0u);
    rings.insert(streamer.slots());
  }
  EXPECT_GE(rings.size(), 2u);
}

TEST(StreamedServices, SaysWhereActivationsWouldOutstayWeights) {
  std::vector<std::string> warnings;
  SessionOptions options;
  options.warn = [&](const std::string &text) { warnings.push_back(text); };
  std::string activation = R"(, "activation_stagehand": {"enabled": true, "telemetry_enabled": false,
    "pinned_pool_classes_mb": [1], "slabs_per_class": 1, "vram_high_watermark_mb": 1.5, "vram_low_watermark_mb": 0.25})";
  Session session = makeSession(Device::open(plainSim), streamingConfig(1, 2, activation), options);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "memory.stagehand.activation_stagehand.vram_high_watermark_mb: 1.5 MiB is above Weight "
                         "Stagehand's 1 MiB: weights leave before activations do; lower it");
}

TEST(StreamedServices, SpillsAndStreamsTogether) {
  for (const char *spec : {plainSim, "sim:dram=4MiB,pinned=8MiB,adversarial=3", "sim:streams,dram=4MiB,pinned=8MiB,adversarial=3",
                           "cpu:threads=2"}) {
    SCOPED_TRACE(spec);
    std::string activation = R"(, "activation_stagehand": {"enabled": true, "telemetry_enabled": false,
      "min_spill_bytes": 0, "pinned_pool_classes_mb": [1], "slabs_per_class": 2,
      "vram_high_watermark_mb": 0.1, "vram_low_watermark_mb": 0})";
    Session session = makeSession(Device::open(spec), servicesConfig(0.22, 2, 2, "", activation));
    EXPECT_EQ(courseOf(session, 4), expectedCourse(4));
    EXPECT_GT(session.services()->weightRecord()["loads"], 0);
    if (spec != std::string("cpu:threads=2")) {
      EXPECT_GT(session.services()->activationRecord()["activations_spilled"], 0);
    }
  }
}

// Without a plan of residency Conductor still knows the step: peaks by block, what
// the ring brings for each, and what blocks take.
TEST(StreamedServices, ConductorExpectsTheBlocksOfAStepByWatermarks) {
  TemporaryFolder folder;
  SessionOptions options;
  options.recordEvents = folder.path;
  std::string activation = R"(, "activation_stagehand": {"enabled": true, "telemetry_enabled": false,
    "min_spill_bytes": 0, "pinned_pool_classes_mb": [1], "slabs_per_class": 2,
    "vram_high_watermark_mb": 0.1, "vram_low_watermark_mb": 0})";
  {
    Session session = makeSession(Device::open("sim:dram=4MiB,pinned=8MiB,link=8GB/s"),
                                  servicesConfig(0.22, 2, 2, R"(, "slots": "auto")", activation), options);
    EXPECT_EQ(courseOf(session, 3), expectedCourse(3));
  }
  std::ifstream file(folder.path / "conductor.json");
  Json log = Json::parse(file), plan;
  for (const Json &event : log["events"])
    if (event["op"] == "plan") {
      EXPECT_TRUE(plan.is_null()) << "made once";
      plan = event["blocks"];
    }
  ASSERT_FALSE(plan.is_null());
  std::set<std::string> phases;
  double loads = 0, spills = 0;
  for (const Json &block : plan) {
    phases.insert(block["phase"]);
    EXPECT_GT(block["peak_mb"], 0);
    EXPECT_LE(block["peak_mb"], 2);
    loads += block["h2d_mb"].get<double>();
    spills += block["d2h_mb"].get<double>();
  }
  EXPECT_TRUE(phases.contains("FORWARD") && phases.contains("BACKWARD"));
  // Every streamed weight comes twice.
  EXPECT_GE(loads, 2 * 2 * modelLayers * modelWidth * modelWidth * 4 / 1048576.);
  EXPECT_GT(spills, 0);
}

//===----------------------------------------------------------------------===//
// A plan beside a ring
//===----------------------------------------------------------------------===//

static std::string plannedConfig(uint64_t capBytes, double highMiB = 0.2, const std::string &more = "") {
  return servicesConfig(highMiB, double(capBytes) / 1048576, 2, "",
                        R"(, "activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false)" +
                            more + "}");
}

// Parameters come through the ring, saved tensors, gradients and states by the
// plan: the cap is kept to the byte, and where none can be kept, that is said
// before the first step with the one that can.
TEST(StreamedServices, PlansBesideARing) {
  for (const char *spec : {"sim:dram=4MiB,pinned=8MiB,link=8GB/s,latency=1us",
                           "sim:dram=4MiB,pinned=8MiB,link=8GB/s,latency=1us,adversarial=7",
                           "sim:streams,dram=4MiB,pinned=8MiB,link=8GB/s,latency=1us,adversarial=7"}) {
    SCOPED_TRACE(spec);
    DeviceRef device = Device::open(spec);
    Session refused = makeSession(device, plannedConfig(80000, 1));
    auto [code, what] = errorOf([&] { refused.step(batchOf(device, 0), 1e-2); });
    ASSERT_EQ(code, ErrorCode::BudgetInfeasible) << what;
    EXPECT_EQ(what.find("BUDGET_INFEASIBLE: no plan keeps to 80000 bytes of device_dram"), 0u) << what;
    EXPECT_NE(what.find("most of that is"), std::string::npos) << what;
    EXPECT_EQ(refused.stepCount(), 0);
    uint64_t least = smallestNamed(what);
    ASSERT_GT(least, 80000u) << what;
    const Course expected = expectedCourse(5);
    for (uint64_t cap : {least, least + 10000, least * 3 / 2, 2 * least}) {
      SCOPED_TRACE("cap " + std::to_string(cap));
      device = Device::open(spec);
      Session session = makeSession(device, plannedConfig(cap, 1));
      device->memory().resetPeak();
      EXPECT_EQ(courseOf(session, 5), expected);
      EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), cap);
      Json record = session.services()->activationRecord();
      EXPECT_GT(record["activations_saved"], 0);
      EXPECT_EQ(record["kept_reasons"].value("not_as_planned", 0), 0) << "the step left its plan";
      if (cap == least) { // the ring has given slots back, and blocks come again
        EXPECT_GT(session.services()->weightRecord()["loads"], 0);
        EXPECT_LT(session.services()->weights()->slots(), 2 * modelLayers);
      }
    }
    device = Device::open(spec);
    Session below = makeSession(device, plannedConfig(least - 128, 1)); // what is named may be that much more
    auto [again, text] = errorOf([&] { below.step(batchOf(device, 0), 1e-2); });
    EXPECT_EQ(again, ErrorCode::BudgetInfeasible);
    EXPECT_EQ(smallestNamed(text), least) << text;
  }
}

// A step takes more than the watermark of weights, and how much it holds when a block ends depends on when copies do: so
// slots that a watermark took would be others than those of the plan, and blocks would lie where none has them.
TEST(StreamedServices, NoWatermarkTakesSlotsOfAPlan) {
  const Course expected = expectedCourse(5);
  for (const char *manner : {"", ",adversarial=7", ",streams"})
    for (uint64_t cap : {260000, 280000}) {
      SCOPED_TRACE("cap " + std::to_string(cap) + manner);
      DeviceRef device = Device::open("sim:pinned=8MiB,link=1GB/s,dram=" + std::to_string(cap) + manner);
      SessionOptions options;
      options.warn = [](const std::string &text) { ADD_FAILURE() << text; };
      Session session = makeSession(device, plannedConfig(cap, 0.15), options);
      EXPECT_EQ(courseOf(session, 5), expected);
      EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), cap);
      AddressFigures figures = device->memory().addressFigures();
      EXPECT_GT(figures.placed, 0u);
      EXPECT_EQ(figures.displaced, 0u) << figures.lastDisplaced;
    }
}

// A slot of the ring spares loads and costs what must leave for it. Where little
// goes out per second, slots are given back; where more goes out than comes in,
// all that fit stay; and the bits are the same.
TEST(StreamedServices, APlanWeighsTheRing) {
  constexpr uint64_t cap = 300000;
  const Course expected = expectedCourse(3); // before the times of real steps count
  std::vector<std::string> said;
  auto slotsWith = [&](const std::string &link) {
    DeviceRef device = Device::open("sim:dram=4MiB,pinned=8MiB,latency=0.1us," + link);
    SessionOptions options;
    options.log = [&](const std::string &line) { said.push_back(line); };
    Session session = makeSession(device, plannedConfig(cap, 1), options);
    device->memory().resetPeak();
    EXPECT_EQ(courseOf(session, 3), expected);
    EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), cap);
    return session.services()->weights()->slots();
  };
  EXPECT_EQ(slotsWith("h2d=0.1GB/s,d2h=32GB/s"), 2 * modelLayers);
  EXPECT_TRUE(said.empty()) << said[0];
  int64_t lowered = slotsWith("h2d=8GB/s,d2h=0.2GB/s");
  EXPECT_LT(lowered, 2 * modelLayers);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0], "the plan keeps " + std::to_string(lowered) +
                         " of the 8 slots of weights that fit: so less leaves, and a step is faster");
}

// Micro-batches, evaluations, checkpoints and new values between steps.
TEST(StreamedServices, APlanBesideARingGoesOnAfterOtherThings) {
  auto play = [](const std::string &config) {
    DeviceRef device = Device::open(plainSim);
    Session session = makeSession(device, config);
    std::vector<float> bits;
    auto micro = [&](int step) {
      std::vector<TensorMap> batches{batchOf(device, step), batchOf(device, step + 50)};
      bits.push_back(float(session.step(batches, 1e-2).loss));
    };
    micro(0);
    bits.push_back(session.evaluate(batchOf(device, 9)).begin()->second.item());
    Checkpoint saved = session.checkpoint();
    TemporaryFolder folder;
    session.save(folder.path / "checkpoint");
    micro(1);
    session.load(folder.path / "checkpoint");
    micro(2);
    session.setParameter("w1", randomTensor(device, {modelWidth, modelWidth}, 77));
    micro(3);
    for (int step = 4; step < 8; ++step)
      bits.push_back(float(session.step(batchOf(device, step), 1e-2).loss));
    for (const ParameterInfo &info : session.parameters())
      for (float value : values(session.parameter(info.key)))
        bits.push_back(value);
    return bits;
  };
  EXPECT_EQ(play(plannedConfig(220000, 0.1)), play(""));
  EXPECT_EQ(play(plannedConfig(1 << 20, 1)), play(""));
}

//===----------------------------------------------------------------------===//
// Under faults
//===----------------------------------------------------------------------===//

// "load fails", "save-back fails": retried, then TRANSFER_FAILED naming block and
// source, and nothing of the step is left; a torn optimizer is said to be one. A
// copy fails when the link does twice, a load when its copies do twice: with one
// chance in three for the link a few loads in each course fail for good.
TEST(StreamedFaults, LoadsAndSaveBacksThatFail) {
  const Course expected = expectedCourse(6);
  int failures = 0, named = 0, kept = 0;
  for (int seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    DeviceRef device = Device::open("sim:dram=4MiB,pinned=8MiB,fail-copy=" + std::string(seed % 2 ? "0.12" : "0.33") +
                                    ",adversarial=" + std::to_string(seed));
    std::optional<Session> session;
    SessionOptions options;
    options.warn = [&](const std::string &text) {
      kept += text.find("could not be copied to the host and stays on the device") != std::string::npos;
    };
    auto attempt = [&](auto &&call) {
      for (int tries = 0; tries < 400; ++tries)
        try {
          call();
          return true;
        } catch (const Error &error) {
          ++failures;
          std::string what = error.what();
          named +=
              what.find("block \"") != std::string::npos && what.find("from the host's memory") != std::string::npos;
          EXPECT_TRUE(error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::StateTorn) << what;
          if (error.code() == ErrorCode::StateTorn)
            return false;
        }
      ADD_FAILURE() << "never done";
      return false;
    };
    ASSERT_TRUE(attempt([&] { session.emplace(makeSession(device, streamingConfig(0.2, 2), options)); }));
    std::vector<double> losses;
    bool isWhole = true;
    while (isWhole && losses.size() < expected.losses.size()) {
      StepResult result;
      int64_t before = session->stepCount();
      isWhole = attempt([&] {
        if (session->stepCount() == before)
          result = session->step(batchOf(device, int(before)), 1e-2);
      });
      if (isWhole)
        losses.push_back(result.loss);
      for (const auto &id : session->services()->weights()->policy().resident())
        EXPECT_EQ(session->services()->weights()->policy().useCount(id), 0);
    }
    EXPECT_TRUE(std::equal(losses.begin(), losses.end(), expected.losses.begin()));
    if (!isWhole)
      continue;
    std::map<std::string, std::vector<float>> parameters;
    bool areRead = attempt([&] {
      for (const ParameterInfo &info : session->parameters())
        parameters[info.key] = values(session->parameter(info.key));
    });
    if (areRead) {
      EXPECT_EQ(parameters, expected.parameters);
    }
  }
  EXPECT_GT(failures, 0);
  EXPECT_GT(named, 0);
  EXPECT_GT(kept, 0) << "a block that cannot be saved back does not leave";
}

// The file that was loaded is the one that is streamed: whoever changes it before
// the first step, or puts another in its place, is told, and no value of another
// file is trained with.
TEST(StreamedFaults, FilesThatChangeBeforeTheFirstStep) {
  for (std::string way : {"written to", "cut", "gone", "replaced"}) {
    SCOPED_TRACE(way);
    TemporaryFolder folder;
    std::filesystem::path path = folder.path / "weights.safetensors";
    DeviceRef device = Device::open(plainSim);
    TensorMap weights = makeSession(Device::open("cpu")).checkpoint().parameters;
    saveSafetensors(path, weights);
    Session session = makeSession(device, streamingConfig(0.2, 2));
    session.loadWeights(path);
    uint64_t size = std::filesystem::file_size(path);
    if (way == "written to") {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(std::streamoff(size - 64));
      file << "written by somebody else";
    } else if (way == "cut") {
      std::filesystem::resize_file(path, size - 100);
    } else if (way == "gone") {
      std::filesystem::remove(path);
    } else {
      weights["f0.weight"] = randomTensor(Device::open("cpu"), {modelWidth, modelWidth}, 77);
      saveSafetensors(path, weights);
      EXPECT_EQ(std::filesystem::file_size(path), size);
    }
    if (way == "written to" || way == "cut") {
      EXPECT_EQ(errorOf([&] { session.parameter("f0.weight"); }).first, ErrorCode::SourceChanged);
      EXPECT_EQ(errorOf([&] { session.checkpoint(); }).first, ErrorCode::SourceChanged);
    } else { // the file that was loaded is there for who has it open
      EXPECT_EQ(values(session.parameter("f0.weight")),
                values(makeSession(Device::open("cpu")).parameter("f0.weight")));
    }
    auto [code, what] = errorOf([&] { session.step(batchOf(device, 0), 1e-2); });
    EXPECT_EQ(code, ErrorCode::SourceChanged) << what;
    EXPECT_NE(what.find("weights.safetensors"), std::string::npos) << what;
    EXPECT_EQ(session.stepCount(), 0);
    saveSafetensors(folder.path / "again.safetensors", makeSession(Device::open("cpu")).checkpoint().parameters);
    session.loadWeights(folder.path / "again.safetensors");
    EXPECT_EQ(session.step(batchOf(device, 0), 1e-2).loss, expectedCourse(1).losses[0]);
  }
}

// "file changed, truncated or unreadable mid-run": SOURCE_CHANGED, no partial block
// is used, trained parameters are those of the last finished step.
TEST(StreamedFaults, FilesThatChange) {
  const char *const ways[] = {"grown", "cut", "gone", "replaced"};
  for (std::string way : ways) {
    SCOPED_TRACE(way);
    TemporaryFolder folder;
    std::filesystem::path path = folder.path / "weights.safetensors";
    DeviceRef device = Device::open(plainSim);
    saveSafetensors(path, makeSession(Device::open("cpu")).checkpoint().parameters);
    Session session = makeSession(device, streamingConfig(0.2, 2));
    session.loadWeights(path);
    session.step(batchOf(device, 0), 1e-2);
    std::vector<float> before = values(session.parameter("w1"));
    if (way == "grown")
      std::ofstream(path, std::ios::app) << "x";
    else if (way == "cut")
      std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
    else if (way == "gone")
      std::filesystem::remove(path);
    else
      saveSafetensors(path, makeSession(Device::open("cpu")).checkpoint().parameters);
    auto [code, what] = errorOf([&] { session.step(batchOf(device, 1), 1e-2); });
    EXPECT_EQ(code, ErrorCode::SourceChanged) << what;
    EXPECT_NE(what.find("block \"front/h."), std::string::npos) << what;
    EXPECT_NE(what.find("weights.safetensors"), std::string::npos) << what;
    EXPECT_EQ(session.stepCount(), 1);
    EXPECT_EQ(values(session.parameter("w1")), before);
    for (const char *frozen : {"f0.weight", "f3.weight"})
      EXPECT_EQ(errorOf([&] { session.parameter(frozen); }).first, ErrorCode::SourceChanged);
    EXPECT_EQ(errorOf([&] { session.checkpoint(); }).first, ErrorCode::SourceChanged);
    // Another file is another source.
    saveSafetensors(folder.path / "again.safetensors", makeSession(Device::open("cpu")).checkpoint().parameters);
    session.setParameter("f0.weight", randomTensor(device, {modelWidth, modelWidth}, 3));
    session.loadWeights(folder.path / "again.safetensors");
    session.step(batchOf(device, 1), 1e-2);
  }
}

// "step aborted": use counts are 0, parameters those of the last finished step.
TEST(StreamedFaults, AbortedSteps) {
  DeviceRef device = Device::open(plainSim);
  Session session = makeSession(device, servicesConfig(0.2, 2));
  session.step(batchOf(device, 0), 1e-2);
  Tensor bad = randomTensor(device, {modelRows, modelWidth}, 1);
  bad.data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(errorOf([&] { session.step({{"x", bad}}, 1e-2); }).first, ErrorCode::NanLoss);
  EXPECT_TRUE(session.services()->weightRecord()["aborted"]);
  EXPECT_TRUE(session.services()->conductorRecord()["aborted"]);
  const WeightStreamer &streamer = *session.services()->weights();
  for (const std::string &id : streamer.policy().resident())
    EXPECT_EQ(streamer.policy().useCount(id), 0) << id;
  session.forwardBackward(batchOf(device, 5));
  session.clearGradients(); // given up between its phases
  for (int step = 1; step < 4; ++step)
    session.step(batchOf(device, step), 1e-2);
  EXPECT_FALSE(session.services()->weightRecord()["aborted"]);
  Course expected = expectedCourse(4);
  for (const ParameterInfo &info : session.parameters())
    EXPECT_EQ(values(session.parameter(info.key)), expected.parameters.at(info.key)) << info.key;
}

// "device OOM on load": refused before the first step, with who holds the memory
// and the smallest budget that would do.
TEST(StreamedFaults, NoRoomForTheRing) {
  DeviceRef device = Device::open(plainSim);
  Session session = makeSession(device, streamingConfig(3, 2));
  device->memory().setBudget(Space::DeviceDram, 30000); // also when states leave
  auto [code, what] = errorOf([&] { session.step(batchOf(device, 0), 1e-2); });
  EXPECT_EQ(code, ErrorCode::BudgetInfeasible) << what;
  EXPECT_NE(what.find("no gradient or optimizer state is left that could leave"), std::string::npos) << what;
  EXPECT_NE(what.find("(weights) (parameter)"), std::string::npos) << what;
  ASSERT_GT(smallestNamed(what), 0u) << what;
  device->memory().setBudget(Space::DeviceDram, smallestNamed(what));
  EXPECT_EQ(session.step(batchOf(device, 0), 1e-2).loss, expectedCourse(1).losses[0]);
}

// A cap that is too small for the ring is refused with the smallest that trains,
// where watermarks follow the cap, where they are given, and beside a plan; also
// where the device is full before the ring is asked for.
TEST(StreamedFaults, EveryCapThatIsTooSmallForTheRingIsRefusedWithTheSmallest) {
  constexpr uint64_t tooSmall = 30000, starved = 80000;
  const double expected = expectedCourse(1).losses[0];
  struct Case {
    const char *name, *keys;
  } cases[] = {{"automatic watermarks", R"("stagehand_enabled": true, "telemetry_enabled": false)"},
               {"given watermarks", R"("telemetry_enabled": false, "vram_high_watermark_mb": 0.2)"},
               {"beside a plan", R"("stagehand_enabled": true, "telemetry_enabled": false, "activation_stagehand":
                   {"enabled": true, "mode": "planned", "telemetry_enabled": false})"}};
  for (const auto &[name, keys] : cases) {
    auto lossUnder = [&keys = keys](uint64_t capBytes) {
      std::string cap = Json(double(capBytes) / 1048576).dump();
      Session session = makeSession(Device::open("sim:pinned=8MiB,dram=" + std::to_string(capBytes)),
                                    R"({"memory": {"stagehand": {)" + std::string(keys) +
                                        R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false,
                                        "vram_hard_cap_mb": )" +
                                        cap + R"(, "vram_soft_cap_mb": )" + cap + "}}}}");
      return session.step(batchOf(session.device(), 0), 1e-2).loss;
    };
    for (uint64_t cap : {tooSmall, starved}) {
      SCOPED_TRACE(std::string(name) + ", cap " + std::to_string(cap));
      auto [code, what] = errorOf([&] { lossUnder(cap); });
      EXPECT_EQ(code, ErrorCode::BudgetInfeasible) << what;
      uint64_t least = smallestNamed(what);
      ASSERT_GT(least, cap) << what;
      EXPECT_LT(least, 1u << 20) << what;
      EXPECT_EQ(lossUnder(least), expected) << what;
    }
  }
}

// No cap is large enough for a ring that is to end below what is on the device
// anyway: the key that is in the way is named, with what would do.
TEST(StreamedFaults, AWatermarkThatIsTooLowForAnyCapIsNamed) {
  auto config = [](double highMiB) {
    return R"({"memory": {"stagehand": {"telemetry_enabled": false, "vram_high_watermark_mb": )" + Json(highMiB).dump() +
           "}}}";
  };
  for (const char *spec : {"sim:dram=4MiB,pinned=8MiB", "sim:dram=30000,pinned=8MiB"}) {
    SCOPED_TRACE(spec);
    auto [code, what] = errorOf([&] {
      Session session = makeSession(Device::open(spec), config(0.01));
      session.step(batchOf(session.device(), 0), 1e-2);
    });
    EXPECT_EQ(code, ErrorCode::BudgetInfeasible) << what;
    EXPECT_NE(what.find("no larger cap helps"), std::string::npos) << what;
    std::smatch key;
    ASSERT_TRUE(std::regex_search(
        what, key, std::regex("set memory.stagehand.vram_high_watermark_mb to ([0-9.]+) or more")))
        << what;
    Session session = makeSession(Device::open("sim:dram=4MiB,pinned=8MiB"), config(std::stod(key[1])));
    EXPECT_EQ(session.step(batchOf(session.device(), 0), 1e-2).loss, expectedCourse(1).losses[0]) << what;
  }
}

// "nonsense config": refused before anything is allocated.
TEST(StreamedFaults, NonsenseConfigs) {
  DeviceRef device = Device::open(plainSim);
  for (const char *keys :
       {R"("vram_high_watermark_mb": 1, "vram_low_watermark_mb": 2)", R"("pinned_pool_mb": 3, "pinned_slab_mb": 2)",
        R"("pinned_slab_alignment": 100)", R"("max_inflight_transfers": 0)", R"("prefetch_window_block": 3)"}) {
    auto [code, what] =
        errorOf([&] { makeSession(device, R"({"memory": {"stagehand": {)" + std::string(keys) + "}}}"); });
    EXPECT_EQ(code, ErrorCode::ConfigInvalid) << what;
    EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), 0u);
    EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), 0u);
  }
}

//===----------------------------------------------------------------------===//
// From a slab
//===----------------------------------------------------------------------===//

namespace {
/// The frozen weights of "front" in INT8 beside the file that they were made of.
struct SlabFiles {
  SlabFiles() {
    Session session = makeSession(Device::open("cpu"));
    saveSafetensors(source, session.checkpoint().parameters);
    BuildOptions options;
    options.source = source;
    options.slab = slab;
    SlabBuilder(std::move(options)).finish();
  }
  /// Trains on what the slab holds, dequantised once, without services.
  Course expected(int steps) const {
    DeviceRef device = Device::open("cpu:threads=2");
    Session session = makeSession(device);
    Slab opened(slab);
    opened.open();
    for (int64_t i = 0; i < modelLayers; ++i) {
      std::string name = "f" + std::to_string(i) + ".weight";
      Tensor host = Tensor::onHost(device, {modelWidth, modelWidth}, ElementType::f32);
      opened.copyDequantized(name, ElementType::f32, {host.bytes(), size_t(host.desc().spanBytes())});
      session.setParameter(name, host);
    }
    return courseOf(session, steps);
  }
  std::string keys() const {
    return R"(, "squareq_slab_path": ")" + slab.string() + R"(", "squareq_manifest_path": ")" +
           manifestPathOf(slab).string() + "\"";
  }
  TemporaryFolder folder;
  std::filesystem::path source = folder.path / "model.safetensors", slab = folder.path / "slab.safetensors";
};

/// Adapters of their own are trained; frozen weights are the slab's.
Session makeSlabSession(const DeviceRef &device, const std::string &config) {
  SessionOptions options;
  options.config = Config::parse(config, "test");
  options.openSlab = openSlab;
  options.wires = {{"back", "hidden", "front", "h"}};
  Session session(device, modelModules(), std::move(options)), values = makeSession(Device::open("cpu"));
  for (const ParameterInfo &info : session.parameters())
    if (info.trained)
      session.setParameter(info.key, values.parameter(info.key));
  return session;
}
} // namespace

// Nothing of the base is in the host's memory or set by anybody; the link carries
// INT8; activations are spilled; Conductor arbitrates; the bits are those of a
// run that dequantised everything at the start.
TEST(StreamedSlab, TrainsUnderACapToTheSameBits) {
  SlabFiles files;
  const Course expected = files.expected(5);
  std::string activation = R"(, "activation_stagehand": {"enabled": true, "telemetry_enabled": false,
    "min_spill_bytes": 0, "pinned_pool_classes_mb": [1], "slabs_per_class": 2,
    "vram_high_watermark_mb": 0.1, "vram_low_watermark_mb": 0})";
  for (const char *spec : {plainSim, "cpu:threads=2", "sim:dram=4MiB,pinned=8MiB,adversarial=1",
                           "sim:streams,dram=4MiB,pinned=8MiB,adversarial=1"}) {
    SCOPED_TRACE(spec);
    Session session = makeSlabSession(Device::open(spec), servicesConfig(0.22, 2, 2, "", activation + files.keys()));
    EXPECT_EQ(courseOf(session, 5), expected);
    Json record = session.services()->weightRecord();
    EXPECT_GT(record["loads"], 0);
    EXPECT_GE(record["squareq_blocks_served"], modelLayers);
    bool isDiscrete = !session.device()->hasUnifiedMemory(); // else nothing crosses a link
    EXPECT_EQ(record["squareq_bytes_h2d"].get<int64_t>() > 0, isDiscrete);
    EXPECT_LT(record["squareq_bytes_h2d"].get<int64_t>(), record["loads"].get<int64_t>() * modelWidth * modelWidth * 2);
    EXPECT_EQ(record["crc_failures"], 0);
    // A checkpoint has the base, and taking it back leaves it in the slab.
    Checkpoint checkpoint = session.checkpoint();
    EXPECT_EQ(values(checkpoint.deferred.at("f1.weight").read()), expected.parameters.at("f1.weight"));
    session.save(files.folder.path / "checkpoint.safetensors");
    session.load(files.folder.path / "checkpoint.safetensors");
    session.step(batchOf(session.device(), 9), 1e-2);
    EXPECT_GE(session.services()->weightRecord()["squareq_blocks_served"], modelLayers);
  }
}

TEST(StreamedSlab, NeedsTheMeansToOpenIt) {
  SlabFiles files;
  DeviceRef device = Device::open(plainSim);
  auto [code, what] = errorOf([&] { makeSession(device, streamingConfig(0.22, 2, files.keys())); });
  EXPECT_EQ(code, ErrorCode::ConfigInvalid);
  EXPECT_NE(what.find("memory.stagehand.squareq_slab_path: this program reads no slabs; link SegueSquareQ and set "
                      "SessionOptions::openSlab to segue::openSlab"),
            std::string::npos)
      << what;
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), 0u);
}

TEST(StreamedSlab, FaultsOfTheFile) {
  auto damage = [](const std::filesystem::path &path, int64_t fromEnd) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-fromEnd, std::ios::end);
    char byte = char(file.get());
    file.seekp(-fromEnd, std::ios::end);
    file.put(char(byte ^ 1));
  };
  DeviceRef device = Device::open(plainSim);
  { // truncated: refused where it is opened, nothing is allocated
    SlabFiles files;
    std::filesystem::resize_file(files.slab, std::filesystem::file_size(files.slab) - 10);
    EXPECT_EQ(errorOf([&] { makeSlabSession(device, streamingConfig(0.22, 2, files.keys())); }).first,
              ErrorCode::SlabInvalid);
    EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), 0u);
  }
  for (bool hasSource : {false, true}) { // a bit flips in the codes of some layer
    SCOPED_TRACE(hasSource);
    SlabFiles files;
    for (int64_t at = 1; at < 64; at += 9)
      damage(files.slab, 4096 + 700 * at % 4096 + 200);
    Session session = makeSlabSession(device, streamingConfig(0.22, 2, files.keys()));
    if (hasSource) {
      session.loadWeights(files.source);
      session.step(batchOf(device, 0), 1e-2);
      EXPECT_GT(session.services()->weightRecord()["crc_failures"], 0);
      continue;
    }
    auto [code, what] = errorOf([&] { session.step(batchOf(device, 0), 1e-2); });
    EXPECT_EQ(code, ErrorCode::ChecksumMismatch) << what;
    EXPECT_NE(what.find("block \"front/h."), std::string::npos) << what;
    EXPECT_EQ(session.stepCount(), 0);
  }
  { // replaced in mid-run
    SlabFiles files;
    Session session = makeSlabSession(device, streamingConfig(0.22, 2, files.keys()));
    session.step(batchOf(device, 0), 1e-2);
    std::filesystem::copy_file(files.slab, files.folder.path / "copy");
    std::filesystem::rename(files.folder.path / "copy", files.slab);
    std::string what;
    ErrorCode code = ErrorCode::Unsupported;
    for (int step = 1; step < 3 && code == ErrorCode::Unsupported; ++step)
      std::tie(code, what) = errorOf([&] { session.step(batchOf(device, step), 1e-2); });
    EXPECT_EQ(code, ErrorCode::SourceChanged) << what;
  }
}
