//===- PrecisionFaultsTest.cpp - what goes wrong about forms --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The table "Under faults" of Selective Precision, row by row, through a
// session; the loss that takes units back; logs that play again.
//
//===----------------------------------------------------------------------===//

#include "PrecisionAnswers.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <cstdlib>
#include <limits>

using namespace segue;
using namespace segue::test;

namespace {
class PrecisionFaultsTest : public testing::Test {
protected:
  DeviceRef device = Device::open(simDevice);
  LoraFolder folder;
  std::vector<std::string> warnings;

  Session make(const std::string &precision, const std::string &more = "", EventSink *next = nullptr) {
    SessionOptions options;
    options.warn = [this](const std::string &text) { warnings.push_back(text); };
    options.events = next;
    return loraSession(device, precisionConfig(folder, precision, more), std::move(options));
  }
  std::vector<double> train(Session &session, int64_t from, int64_t to) {
    std::vector<double> losses;
    for (int64_t step = from; step < to; ++step)
      losses.push_back(session.step(loraBatch(device, step), 1e-3).loss);
    return losses;
  }
  /// A batch whose loss is not a number.
  TensorMap badBatch() {
    TensorMap batch = loraBatch(device, 1);
    batch["x"].data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
    return batch;
  }
};
} // namespace

// Row "step aborted": what the step collected and decided is discarded with it,
// and a run that tries again goes on as one that never failed.
TEST_F(PrecisionFaultsTest, AnAbortedStepLeavesNothing) {
  Session whole = make(dynamicPrecision(folder));
  std::vector<double> losses = train(whole, 0, 20);
  std::vector<Json> lines = linesOf(folder.path / "precision.jsonl");
  LoraFolder other;
  SessionOptions options;
  Session broken = loraSession(device, precisionConfig(other, dynamicPrecision(other)), options);
  std::vector<double> tried;
  for (int64_t step = 0; step < 20; ++step) {
    if (step == 3) { // nobody is watched yet
      EXPECT_THROW(broken.step(badBatch(), 1e-3), Error);
    }
    if (step == 5 || step == 6 || step == 10) {
      broken.forwardBackward(loraBatch(device, step + 100)); // collected, never finished
      broken.clearGradients();
    }
    tried.push_back(broken.step(loraBatch(device, step), 1e-3).loss);
  }
  EXPECT_EQ(tried, losses);
  EXPECT_EQ(linesOf(other.path / "precision.jsonl"), lines);
}

// Row "non-finite gradients": the step is aborted, since its gradients would
// reach the optimizer; precisions are what they were, and no unit is lowered.
TEST_F(PrecisionFaultsTest, NonFiniteGradientsLowerNobody) {
  Session session = make(dynamicPrecision(folder));
  train(session, 0, 5);
  EXPECT_THROW(session.step(badBatch(), 1e-3), Error); // step 5 would have decided
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(precisionOf(session, "h." + std::to_string(i)), "bf16");
  EXPECT_TRUE(linesOf(folder.path / "precision.jsonl").empty());
}

/// Passes statistics on as if a gradient had not been finite.
namespace {
class Poison final : public EventSink {
public:
  explicit Poison(DeviceRef device) : device_(std::move(device)) {}
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::Statistics &result) {
    if (!isOn)
      return;
    Tensor bad = Tensor::onHost(device_, {4}, ElementType::f32);
    for (int i = 0; i < 4; ++i)
      bad.data<float>()[i] = std::numeric_limits<float>::infinity();
    copyInto(bad, result.statistics);
    wait(result.statistics);
  }
  bool isOn = false;

private:
  DeviceRef device_;
};
} // namespace

// The same row where the step goes on: the collection is dropped and counted.
TEST_F(PrecisionFaultsTest, ANonFiniteCollectionIsDropped) {
  Poison poison(device);
  Session session = make(dynamicPrecision(folder), "", &poison);
  train(session, 0, 6);
  std::string before = precisionOf(session, "h.2");
  poison.isOn = true;
  train(session, 6, 11);
  Json record = session.services()->precisionRecord();
  EXPECT_EQ(record["step_id"], 11);
  EXPECT_EQ(record["stats_skipped"], 5);
  EXPECT_EQ(record["precision_changes"], 0);
}

// Row "slab checksum mismatches": the unit goes on from its source in the very
// load that found it, is quarantined, and one warning says so.
TEST_F(PrecisionFaultsTest, ADamagedSlabGoesBackToTheSource) {
  damage(folder.path / "int8.safetensors", "h.1.fc");
  Session session = make(R"({"enabled": true, "mode": "static", "force_int8_blocks": ["h.1", "h.3"]})");
  LoraFolder whole;
  Session expected = loraSession(device, precisionConfig(whole, R"({"enabled": true, "mode": "static",
    "force_int8_blocks": ["h.3"]})"));
  for (int64_t step = 0; step < 5; ++step)
    ASSERT_EQ(session.step(loraBatch(device, step), 1e-3).loss, expected.step(loraBatch(device, step), 1e-3).loss);
  EXPECT_EQ(precisionOf(session, "h.1"), "bf16");
  EXPECT_EQ(precisionOf(session, "h.3"), "int8");
  ASSERT_EQ(warnings.size(), 1u);
  expectPart(warnings[0], "\"h.1\" goes back to bf16");
  EXPECT_EQ(session.services()->weightRecord()["crc_failures"], 0) << "once, steps ago";
}

// The same, met by calibration: the unit is never lowered.
TEST_F(PrecisionFaultsTest, ADamagedSlabIsMetByCalibration) {
  damage(folder.path / "int8.safetensors", "h.0.fc");
  Session session = make(dynamicPrecision(folder));
  train(session, 0, 12);
  EXPECT_EQ(precisionOf(session, "h.0"), "bf16");
  EXPECT_EQ(precisionOf(session, "h.1"), "int8");
  EXPECT_EQ(session.services()->precisionRecord()["block_details"]["h.0"]["reason"], "quarantine");
  ASSERT_EQ(warnings.size(), 1u);
  expectPart(warnings[0], "\"h.0\" goes back to bf16");
  EXPECT_FALSE(std::filesystem::exists(folder.path / "int8.calibration.json")) << "not of all units";
}

/// Leaves so little memory while blocks are loaded for a phase that the stored
/// form of one, which lies beside its slot until it is dequantised, finds no room.
namespace {
class NoRoom final : public EventSink {
public:
  explicit NoRoom(DeviceRef device, Phase phase = Phase::Forward)
      : device_(std::move(device)), phase_(phase), budget_(memory().budget(Space::DeviceDram)) {}
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    isNow_ = begin.phase == phase_;
    memory().setBudget(Space::DeviceDram, budget_);
    if (begin.phase == Phase::Forward) // backward takes its arena first
      squeeze();
  }
  void on(const event::BlockBegin &) { squeeze(); }
  void on(const event::BlockEnd &) { squeeze(); }
  bool isOn = false;

private:
  /// Room for what a block saves, but not for 4352 bytes of a weight.
  static constexpr uint64_t room = 4 << 10;

  DeviceMemory &memory() { return device_->memory(); }
  void squeeze() {
    if (!isOn || !isNow_)
      return;
    // What would be room when it is asked for: copies and arenas that are kept.
    device_->drain();
    EXPECT_THROW(Storage::allocate(device_, Space::DeviceDram, 2 * budget_, 64), OutOfMemory);
    memory().setBudget(Space::DeviceDram, memory().liveBytes(Space::DeviceDram) + room);
  }

  DeviceRef device_;
  Phase phase_;
  uint64_t budget_;
  bool isNow_ = false;
};
} // namespace

// Row "no memory for the other form": the switch waits for the next decision.
TEST_F(PrecisionFaultsTest, WithoutMemoryTheSwitchIsPostponed) {
  NoRoom noRoom(device);
  Session session = make(dynamicPrecision(folder), "", &noRoom);
  train(session, 0, 5);
  noRoom.isOn = true;   // the ring gives back all slots but one: no room can be made later
  train(session, 5, 6); // has decided
  std::vector<double> losses = train(session, 6, 10);
  noRoom.isOn = false;
  for (const char *unit : {"h.0", "h.1", "h.3", "h.5"})
    EXPECT_EQ(precisionOf(session, unit), "bf16") << unit;
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  // All bf16 meanwhile, to the bit.
  LoraFolder other;
  Session bf16 = loraSession(device, precisionConfig(other, R"({"enabled": true, "mode": "static"})"));
  train(bf16, 0, 6);
  EXPECT_EQ(train(bf16, 6, 10), losses);
  train(session, 10, 12);
  EXPECT_EQ(session.services()->precisionRecord()["block_details"]["h.0"]["reason"], "first") << "tried again";
  EXPECT_EQ(precisionOf(session, "h.0"), "int8");
}

// What forward has read as the slab has it, backward reads so too: where the
// device has no room for what is stored beside its slot, the host dequantises.
TEST_F(PrecisionFaultsTest, WithoutMemoryInBackwardTheFormStays) {
  NoRoom noRoom(device, Phase::Backward);
  std::string all =
      R"({"enabled": true, "mode": "static", "force_int8_blocks": ["h.0", "h.1", "h.2", "h.3", "h.4", "h.5"]})";
  Session session = make(all, "", &noRoom);
  LoraFolder other;
  Session expected = loraSession(Device::open(simDevice), precisionConfig(other, all));
  std::vector<double> losses = train(expected, 0, 6);
  EXPECT_EQ(train(session, 0, 2), std::vector(losses.begin(), losses.begin() + 2));
  noRoom.isOn = true;
  EXPECT_EQ(train(session, 2, 6), std::vector(losses.begin() + 2, losses.end()));
  EXPECT_EQ(session.services()->weights()->slots(), 1) << "blocks leave between forward and backward";
  for (const ParameterInfo &info : session.parameters())
    EXPECT_EQ(values(session.parameter(info.key)), values(expected.parameter(info.key))) << info.key;
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(precisionOf(session, "h." + std::to_string(i)), "int8");
  EXPECT_TRUE(warnings.empty()) << warnings.front();
}

/// Touches a slab when backward begins.
namespace {
class ChangesTheSlab final : public EventSink {
public:
  explicit ChangesTheSlab(std::filesystem::path slab) : slab_(std::move(slab)) {}
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    if (isOn && begin.phase == Phase::Backward)
      std::filesystem::last_write_time(slab_, std::filesystem::last_write_time(slab_) + std::chrono::seconds(1));
  }
  bool isOn = false;

private:
  std::filesystem::path slab_;
};
} // namespace

// A slab that is lost between forward and backward: gradients of other weights
// than those that gave the loss are none. The step is aborted, and the session
// goes on from the source.
TEST_F(PrecisionFaultsTest, ASlabThatIsLostInBackwardAbortsTheStep) {
  ChangesTheSlab change(folder.path / "int8.safetensors");
  SessionOptions options;
  options.warn = [this](const std::string &text) { warnings.push_back(text); };
  options.events = &change;
  auto config = [](const LoraFolder &folder, const char *units) {
    return precisionConfig(folder,
                           R"({"enabled": true, "mode": "static", "force_int8_blocks": [)" + std::string(units) + "]}",
                           "", 0.06, /*window=*/0);
  };
  Session session = loraSession(device, config(folder, R"("h.0", "h.1", "h.2")"), options);
  train(session, 0, 2);
  ASSERT_LT(session.services()->weights()->slots(), 4) << "no form outlives a step on the device";
  std::map<std::string, std::vector<float>> before;
  for (const ParameterInfo &info : session.parameters())
    before[info.key] = values(session.parameter(info.key));
  change.isOn = true;
  try {
    train(session, 2, 3);
    FAIL() << "the step was finished";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::SourceChanged);
    expectPart(error.what(), "block \"lora/h.");
    expectPart(error.what(), "\" was used in this step as its slab has it, and cannot be read from there again; the "
                             "next step has it from its source");
  }
  change.isOn = false;
  EXPECT_EQ(session.stepCount(), 2);
  for (const auto &[key, value] : before)
    EXPECT_EQ(values(session.parameter(key)), value) << key;
  LoraFolder other;
  Session bf16 = loraSession(Device::open(simDevice), config(other, ""));
  Checkpoint finished = session.checkpoint();
  finished.precision.clear(); // two units have not met the lost slab yet
  bf16.restore(finished);
  std::vector<double> losses = train(session, 2, 6);
  for (const char *unit : {"h.0", "h.1", "h.2"})
    EXPECT_EQ(precisionOf(session, unit), "bf16");
  EXPECT_EQ(warnings.size(), 3u);
  // As from its source in the first place.
  EXPECT_EQ(train(bf16, 2, 6), losses);
}

// Row "calibration interrupted": nothing is kept; the next start begins it anew.
TEST_F(PrecisionFaultsTest, InterruptedCalibrationIsNotKept) {
  Session session = make(dynamicPrecision(folder, R"(, "calibration_samples": 3)"));
  TensorMap batches[] = {loraBatch(device, 1), {{"x", loraBatch(device, 2)["x"]}}};
  EXPECT_THROW(session.calibrate(batches), Error); // the second lacks a tensor
  EXPECT_FALSE(std::filesystem::exists(folder.path / "int8.calibration.json"));
  EXPECT_EQ(session.calibrationSamples(), 3);
  Session next = make(dynamicPrecision(folder, R"(, "calibration_samples": 3)"));
  EXPECT_EQ(next.calibrationSamples(), 3);
  train(next, 0, 1);
  EXPECT_EQ(next.calibrationSamples(), 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path / "int8.calibration.json"));
}

// Row "telemetry or cache not writable": one warning each, and the decisions of
// a run that can write.
TEST_F(PrecisionFaultsTest, WhatCannotBeWrittenDecidesNothing) {
  Session good = make(dynamicPrecision(folder));
  std::vector<double> losses = train(good, 0, 20);
  Json record = good.services()->precisionRecord();
  ASSERT_TRUE(warnings.empty());
  std::string nowhere = (folder.path / "no" / "such" / "folder").string();
  std::string precision = dynamicPrecision(folder, R"(, "calibration_cache": ")" + nowhere + "/cache.json\"");
  size_t at = precision.find((folder.path / "precision.jsonl").string());
  std::filesystem::create_directory(folder.path / "a.jsonl"); // a folder is no file
  precision.replace(at, (folder.path / "precision.jsonl").string().size(), (folder.path / "a.jsonl").string());
  Session bad = make(precision);
  EXPECT_EQ(train(bad, 0, 20), losses);
  Json other = bad.services()->precisionRecord();
  record.erase("timestamp");
  other.erase("timestamp");
  EXPECT_EQ(other, record);
  ASSERT_EQ(warnings.size(), 2u);
  expectPart(warnings[0] + warnings[1], "calibration is not kept");
  expectPart(warnings[0] + warnings[1], "a.jsonl");
}

// Row "config nonsense": the key, the value and what is allowed; nothing is
// constructed, and the device is as before.
TEST_F(PrecisionFaultsTest, NonsenseIsRefusedBeforeAnythingIsMade) {
  uint64_t budget = device->memory().budget(Space::DeviceDram), live = device->memory().liveBytes(Space::DeviceDram);
  auto message = [&](const std::string &precision, const std::string &more = "") {
    return messageOf([&] { make(precision, more); });
  };
  expectPart(message(R"({"enabled": true, "int8_threshold": 0.7})"), "int8_threshold must be below bf16_threshold");
  expectPart(message(R"({"enabled": true, "modus": "static"})"), "mode");
  expectPart(message(R"({"enabled": true, "force_int8_blocks": ["h.9"]})"), "there is no unit \"h.9\"");
  expectPart(message(R"({"enabled": true, "fp8_slab_path": "no/such/slab.safetensors"})"), "no/such/slab");
  SessionOptions options;
  options.config = Config::parse(R"({"memory": {"stagehand": {"telemetry_enabled": false, "selective_precision": {"enabled": true}}}})", "test");
  expectPart(messageOf([&] { loraSession(device, "", options); }), "squareq_slab_path");
  options.config = Config::parse(precisionConfig(folder, R"({"enabled": true})"), "test");
  expectPart(messageOf([&] { Session(device, {{"lora", loraBinary()}}, options); }), "SegueRuntime::SeguePrecision");
  EXPECT_EQ(device->memory().budget(Space::DeviceDram), budget);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), live);
  // Off wins over the lists, with one warning.
  warnings.clear();
  Session off = make(R"({"enabled": true, "mode": "off", "force_int8_blocks": ["h.1"]})");
  train(off, 0, 1);
  EXPECT_TRUE(off.services()->precisionReport().is_null());
  ASSERT_EQ(warnings.size(), 1u);
  expectPart(warnings[0], "force_");
}

//===----------------------------------------------------------------------===//
// Loss feedback
//===----------------------------------------------------------------------===//

// Losses far above what was usual after units were lowered take them back at
// the next step, and keep them there.
TEST_F(PrecisionFaultsTest, LossesThatSufferTakeUnitsBack) {
  Session session = make(dynamicPrecision(folder, R"(, "loss_window": 5, "loss_patience": 2, "warmup_steps": 10)"));
  train(session, 0, 11); // decides at 10
  ASSERT_EQ(session.services()->precisionRecord()["step_id"], 11);
  std::vector<std::string> lowered;
  train(session, 11, 12);
  for (size_t i = 0; i < 6; ++i)
    if (precisionOf(session, "h." + std::to_string(i)) == "int8")
      lowered.push_back("h." + std::to_string(i));
  ASSERT_FALSE(lowered.empty());
  TensorMap hard = loraBatch(device, 12);
  for (uint64_t i = 0; i < hard["t"].elementCount(); ++i)
    hard["t"].data<float>()[i] *= 30;
  session.step(hard, 0);
  session.step(hard, 0);
  train(session, 14, 16);
  for (const std::string &unit : lowered)
    EXPECT_EQ(precisionOf(session, unit), "bf16");
  Json record = session.services()->precisionRecord();
  EXPECT_EQ(record["step_id"], 16);
  EXPECT_EQ(record["rollbacks"], 1);
  EXPECT_EQ(record["quarantined"], int64_t(lowered.size()));
  EXPECT_EQ(record["block_details"][lowered.front()]["reason"], "quarantine");
}

// A loss that is no number ends the step, and takes the units back at once:
// the step is tried again without them.
TEST_F(PrecisionFaultsTest, ALossThatIsNoNumberTakesUnitsBackAtOnce) {
  Session session = make(dynamicPrecision(folder));
  train(session, 0, 7);
  ASSERT_EQ(precisionOf(session, "h.0"), "int8");
  EXPECT_THROW(session.step(badBatch(), 1e-3), Error);
  train(session, 7, 11);
  EXPECT_EQ(precisionOf(session, "h.0"), "bf16");
  EXPECT_EQ(session.services()->precisionRecord()["rollbacks"], 1);
}

//===----------------------------------------------------------------------===//
// Logs
//===----------------------------------------------------------------------===//

// What a run decided plays again: calibration, aborted steps, losses that take
// units back, errors that were measured online, a state that was restored.
TEST_F(PrecisionFaultsTest, RecordedRunsReplay) {
  std::filesystem::path logs = folder.path / "logs";
  std::filesystem::create_directory(logs);
  SessionOptions options;
  options.recordEvents = logs;
  options.warn = [](const std::string &) {};
  std::string config = precisionConfig(folder, dynamicPrecision(folder, R"(, "quarantine_steps": 3)"));
  auto replay = [&] {
    int status = 0;
    for (const char *log : {"selective_precision.json", "weight.json"}) { // blocks change their form
      std::string command = std::string("timeout 60 " SEGUE_RUN " replay --check ") + (logs / log).string() + " > " +
                            (folder.path / "answers").string();
      status |= std::system(command.c_str());
    }
    return status;
  };
  {
    Session session = loraSession(device, config, options);
    train(session, 0, 7);
    EXPECT_THROW(session.step(badBatch(), 1e-3), Error);
    train(session, 7, 23);
    session.save(folder.path / "checkpoint.safetensors");
  }
  EXPECT_EQ(replay(), 0);
  {
    Session session = loraSession(device, config, options);
    session.load(folder.path / "checkpoint.safetensors");
    train(session, 23, 31);
  }
  EXPECT_EQ(replay(), 0);
  std::ifstream log(logs / "selective_precision.json");
  std::string text(std::istreambuf_iterator<char>(log), {});
  for (const char *op : {"\"restore\"", "\"observe\"", "\"decide\"", "\"stats\"", "\"loss\""})
    expectPart(text, op);
  std::ifstream weights(logs / "weight.json");
  expectPart(std::string(std::istreambuf_iterator<char>(weights), {}), "\"restate\"");
}

// A checkpoint of a run without Selective Precision: it begins anew, and says so.
TEST_F(PrecisionFaultsTest, CheckpointsWithoutStateBeginAnew) {
  Session plain = loraSession(device);
  train(plain, 0, 8);
  plain.save(folder.path / "plain.safetensors");
  Session session = make(dynamicPrecision(folder));
  train(session, 0, 7);
  session.load(folder.path / "plain.safetensors");
  ASSERT_EQ(warnings.size(), 1u);
  expectPart(warnings[0], "no state of Selective Precision");
  train(session, 8, 9);
  EXPECT_EQ(precisionOf(session, "h.0"), "bf16") << "nothing was decided in this run";
  Checkpoint bad = session.checkpoint();
  bad.precision = "{";
  expectPart(messageOf([&] { session.restore(bad); }), "not JSON");
}

// A checkpoint of which one tensor never arrives: decisions, steps and losses go
// on as in a session that never tried.
TEST_F(PrecisionFaultsTest, ARestoreThatFailsMidwayChangesNothing) {
  LoraFolder other;
  SessionOptions options;
  options.warn = [](const std::string &) {};
  Session session = make(dynamicPrecision(folder)),
          plain = loraSession(device, precisionConfig(other, dynamicPrecision(other)), options);
  train(session, 0, 3);
  session.save(folder.path / "early.safetensors");
  train(session, 3, 12);
  train(plain, 0, 12);
  ASSERT_EQ(precisionOf(session, "h.0"), "int8") << "decided since";
  Checkpoint early = loadCheckpoint(device, folder.path / "early.safetensors");
  ASSERT_FALSE(early.state.empty());
  for (TensorMap *tensors : {&early.parameters, &early.state}) {
    Checkpoint bad = early;
    Tensor &last = (tensors == &early.state ? bad.state : bad.parameters).rbegin()->second;
    last = Tensor::zeros(device, last.desc());
    wait(last);
    last.storage()->outcome()->fail(Error(ErrorCode::TransferFailed, "it never came"));
    expectPart(messageOf([&] { session.restore(bad); }), "it never came");
    EXPECT_EQ(session.checkpoint().precision, plain.checkpoint().precision);
    EXPECT_EQ(session.stepCount(), 12);
  }
  EXPECT_EQ(train(session, 12, 17), train(plain, 12, 17));
  EXPECT_EQ(linesOf(folder.path / "precision.jsonl"), linesOf(other.path / "precision.jsonl"));
}
