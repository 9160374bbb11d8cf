//===- WeightRingTest.cpp - slots that weights stream through -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a ring of slots does at work: plans for it, memory that it gives back
// under pressure and takes again, and the times that are measured of it.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "StreamedChains.h"
#include "Transfer/ScriptedDevice.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Files/Safetensors.h"
#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <thread>
#include <unistd.h>

using namespace segue;
using namespace segue::test;

/// h.0 of four layers, then seven of one each.
static constexpr ChainSize uneven{.layers = 11, .isTrained = false, .firstLayers = 4};

class WeightRingTest : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(All, WeightRingTest, OnDevices::all());

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

// A large block and small ones: each takes a slot, and a plan leaves slots for
// what runs.
TEST_P(WeightRingTest, PlannedTrainsBlocksOfUnequalSize) {
  constexpr int steps = 6;
  auto expected = courseWithout(GetParam(), uneven, trained, steps);
  for (int64_t slots : {1, 2, 3, 5}) {
    SCOPED_TRACE(std::to_string(slots) + " slots");
    DeviceRef device = Device::open(GetParam());
    Model model(device, uneven, trained);
    WeightStreamer streamer(device, quiet(R"(, "policy": "planned", "prefetch_window_blocks": 2)"), {.slots = slots});
    model.stream(streamer);
    for (int i = 0; i < steps; ++i)
      ASSERT_EQ(model.step(&streamer), expected.steps[size_t(i)]) << "step " << i;
    ASSERT_TRUE(streamer.policy().plan());
    EXPECT_LE(int64_t(streamer.policy().plan()->resident.size()), std::max<int64_t>(slots - 1, 0));
  }
}

// The record of the last of some steps. `seenOutside`: somebody else has handles of
// the weights, so that each is read anew in every step.
static Json settled(const std::string &policy, ChainSize first, int64_t slots, bool seenOutside, int64_t window = 2) {
  // 3.3 ms for 16 KiB, microseconds for what computes: no load of the machine is in it.
  auto device = std::make_shared<ScriptedDevice>("sim:dram=4MiB");
  device->timeCopiesAs(5e6);
  Model model(device, first, {.layers = 1, .isTrained = true});
  std::vector<Tensor> handles;
  for (size_t i = 0; seenOutside && i < model.layers(0); ++i)
    handles.push_back(model.weightTensor(0, i));
  WeightStreamer streamer(
      device, quiet(", \"prefetch_window_blocks\": " + std::to_string(window) + ", \"policy\": \"" + policy + "\""),
      {.slots = slots});
  model.stream(streamer);
  for (int i = 0; i < 5; ++i)
    model.step(&streamer);
  return streamer.record();
}

// All fit, and are read anew: one miss, at the beginning, as by the window of the
// file.
TEST(WeightRingPlans, PlannedLoadsAheadAsStaticDoes) {
  ChainSize equal{.layers = 7, .isTrained = false};
  Json fixed = settled("static", equal, 8, true), planned = settled("planned", equal, 8, true);
  EXPECT_GE(fixed["loads"], 7) << fixed;
  EXPECT_LE(planned["prefetch_misses"], fixed["prefetch_misses"]) << planned;
  EXPECT_LE(planned["loads"], fixed["loads"]) << planned;
  fixed = settled("static", equal, 8, false), planned = settled("planned", equal, 8, false);
  EXPECT_EQ(fixed["loads"], 0);
  EXPECT_EQ(planned["loads"], 0) << "all are there";
}

// The scores of the static policy drive out the large block, whose bytes are most;
// a plan keeps it, and less crosses the link: the others, as compute is short beside
// their loads, 12 or 13 times, with and without a window.
TEST(WeightRingPlans, PlannedKeepsWhatTakesLongest) {
  static constexpr ChainSize large{.layers = 15, .isTrained = false, .firstLayers = 8};
  Json fixed = settled("static", large, 4, false), planned = settled("planned", large, 4, false);
  EXPECT_LT(planned["h2d_bytes"], fixed["h2d_bytes"]) << planned << fixed;
  EXPECT_LT(planned["copy_time_ms"], fixed["copy_time_ms"]) << planned << fixed;
}

//===----------------------------------------------------------------------===//
// Pressure
//===----------------------------------------------------------------------===//

namespace {
/// Notes what is allocated when the step ends.
struct AtTheEnd : ForwardEvents {
  DeviceRef device;
  uint64_t liveBytes = 0;
  void receive(const Event &event) override {
    deliver(*this, event);
    forward(event);
  }
  void on(const event::PhaseBegin &begin) {
    if (begin.phase == Phase::StepEnd)
      liveBytes = device->memory().liveBytes(Space::DeviceDram);
  }
};

/// Takes memory when backward begins, as gradients and activations do, and gives it
/// back before the next step.
struct Pressure : ForwardEvents {
  DeviceRef device;
  int64_t floats = 0;
  Tensor taken;
  int64_t slotsInForward = 0, slotsInBackward = 0;
  uint64_t bytesInBackward = 0;
  const WeightStreamer *streamer = nullptr;

  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    if (begin.phase == Phase::StepEnd)
      taken = {};
    if (begin.phase == Phase::Backward) {
      slotsInForward = streamer->slots();
      taken = Tensor::empty(device, TensorDesc({floats}, ElementType::f32));
    }
    forward(begin);
  }
  void on(const event::BlockEnd &end) {
    forward(end);
    if (taken) {
      slotsInBackward = streamer->slots();
      bytesInBackward = device->memory().liveBytes(Space::DeviceDram);
    }
  }
  void on(const auto &other) { forward(other); }
};
} // namespace

// Above the high watermark slots are given back with what is evicted, and
// Conductor's reservations with them; below the low one they are taken again.
TEST_P(WeightRingTest, SlotsComeAndGoWithThePressure) {
  constexpr int steps = 4;
  auto expected = courseWithout(GetParam(), frozen, trained, steps);
  DeviceRef device = Device::open(GetParam());
  Model model(device, frozen, trained);
  uint64_t reserved = 0;
  WeightStreamerOptions options;
  options.slots = 8;
  options.reserve = [&](Space space, uint64_t bytes) {
    reserved += space == Space::DeviceDram ? bytes : 0;
    return true;
  };
  options.release = [&](Space space, uint64_t bytes) { reserved -= space == Space::DeviceDram ? bytes : 0; };
  // 8 slots of 16 KiB and what the model has: 0.15 MiB. Gradients take 0.25 more.
  WeightStreamer streamer(
      device, quiet(R"(, "prefetch_window_blocks": 2, "vram_high_watermark_mb": 0.35, "vram_low_watermark_mb": 0.3)"),
      std::move(options));
  model.stream(streamer);
  Pressure pressure;
  pressure.target = &streamer;
  pressure.streamer = &streamer;
  pressure.device = device;
  pressure.floats = 65536;
  for (int i = 0; i < steps; ++i) {
    ASSERT_EQ(model.step(&pressure), expected.steps[size_t(i)]) << "step " << i;
    EXPECT_EQ(pressure.slotsInForward, 8) << "step " << i;
    EXPECT_LT(pressure.slotsInBackward, 8);
    EXPECT_EQ(reserved, streamer.ringBytes());
    Json record = streamer.record();
    EXPECT_GT(record["evictions"], 0);
    EXPECT_GT(record["prefetch_hits"].get<int>() + record["prefetch_late"].get<int>(), 0);
  }
}

namespace {
/// Promises a weight of the first chain to a program beside the step while forward runs.
/// In backward it takes all the memory that the ring gives up, and only then asks for the
/// weight, beside the block that is open.
struct LendsUnderPressure : ForwardEvents {
  WeightStreamer *streamer = nullptr;
  const Tensor *home = nullptr;
  Phase phase = Phase::StepBegin;
  bool isPromised = false;
  int64_t slotsLeft = 0;
  std::vector<float> lent;

  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    phase = begin.phase;
    forward(begin);
  }
  void on(const event::BlockBegin &begin) {
    forward(begin);
    std::span<const Tensor> homes(home, 1);
    if (phase == Phase::Forward && !std::exchange(isPromised, true)) {
      EXPECT_TRUE(streamer->canLend(homes));
      streamer->keepRoom(homes);
    }
    if (phase != Phase::Backward || !lent.empty())
      return;
    streamer->makeRoom(UINT64_MAX);
    slotsLeft = streamer->slots();
    lent = valuesOf(streamer->lend(homes).front());
    streamer->giveBack();
  }
  void on(const auto &other) { forward(other); }
};
} // namespace

// A value that was dropped is computed again from a weight of another block than the one
// that is open. The ring may have given slots back since, but not the slot for that.
TEST_P(WeightRingTest, WhatWasPromisedIsLentWhateverTheRingGaveUp) {
  auto expected = courseWithout(GetParam(), frozen, trained, 1);
  DeviceRef device = Device::open(GetParam());
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 1)"), {.slots = 4});
  model.stream(streamer);
  ASSERT_EQ(streamer.slots(), 4);
  ASSERT_EQ(streamer.leastSlots(), 1);
  LendsUnderPressure events;
  events.target = &streamer;
  events.streamer = &streamer;
  events.home = &model.weightTensor(0, 0);
  EXPECT_EQ(model.step(&events), expected.steps[0]);
  EXPECT_EQ(events.slotsLeft, 2) << "the open block, and what was promised beside it";
  EXPECT_EQ(events.lent, model.weight(0, 0));
}

namespace {
/// Takes memory when a step ends, until the ring has given slots back.
struct PressureAtTheEnd : ForwardEvents {
  DeviceRef device;
  bool isArmed = true;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) {
    Tensor taken;
    if (begin.phase == Phase::StepEnd && isArmed)
      taken = Tensor::empty(device, TensorDesc({1 << 18}, ElementType::f32));
    forward(begin);
  }
  void on(const auto &other) { forward(other); }
};
} // namespace

// A trained block leaves between steps, 80 ms before its values are home, and is used
// meanwhile: it is still in its slot, and is neither waited for nor loaded again.
TEST(WeightRingPressure, WhatIsNeededWhileItIsSavedBackStays) {
  constexpr ChainSize one{.layers = 1, .isTrained = false};
  auto expected = courseWithout("sim:dram=4MiB", one, trained, 3);
  DeviceRef device = Device::open("sim:dram=4MiB,link=200KB/s");
  Model model(device, one, trained);
  WeightStreamer streamer(device,
                          quiet(R"(, "prefetch_window_blocks": 1, "eviction_cooldown_steps": 0,
                                   "vram_high_watermark_mb": 0.5, "vram_low_watermark_mb": 0.45)"),
                          {.slots = 3});
  model.stream(streamer);
  PressureAtTheEnd pressure;
  pressure.target = &streamer;
  pressure.device = device;
  EXPECT_EQ(model.step(&pressure), expected.steps[0]);
  ASSERT_EQ(streamer.policy().state("b/h.1"), BlockState::Evicting);
  EXPECT_EQ(streamer.policy().ring().slots, 2);
  pressure.isArmed = false;
  uint64_t copies = device->transfer().counters().h2dCopies;
  EXPECT_EQ(model.step(&pressure), expected.steps[1]);
  EXPECT_EQ(device->transfer().counters().h2dCopies, copies + 2) << "x, in forward and backward, and no weight";
  EXPECT_EQ(streamer.policy().state("b/h.1"), BlockState::GpuReady);
  Json record = streamer.record();
  EXPECT_EQ(record["loads"], 0) << record;
  EXPECT_EQ(record["prefetch_misses"], 0) << record;
  EXPECT_EQ(record["stall_count"], 0) << record;
  EXPECT_EQ(record["evictions"], 0) << record;
  EXPECT_EQ(model.step(&pressure), expected.steps[2]);
  streamer.flush();
  for (size_t layer = 0; layer < model.layers(1); ++layer)
    EXPECT_EQ(model.weight(1, layer), expected.weights[layer]) << "layer " << layer;
}

// Others hold more than all of the ring could make up for: it shrinks once to what
// runs and what comes next, and goes on loading ahead.
TEST(WeightRingPressure, NothingLeavesThatFreesNothing) {
  DeviceRef device = Device::open("sim:dram=8MiB");
  Model model(device, frozen, trained);
  std::string keys = R"(, "prefetch_window_blocks": 2, "vram_high_watermark_mb": 0.4, "vram_low_watermark_mb": 0.3)";
  WeightStreamer streamer(device, quiet(keys), {.slots = 8});
  model.stream(streamer);
  EXPECT_EQ(streamer.slots(), 8);
  uint64_t before = device->memory().liveBytes(Space::DeviceDram);
  Tensor others = Tensor::empty(device, TensorDesc({1 << 18}, ElementType::f32));
  AtTheEnd end;
  end.target = &streamer;
  end.device = device;
  for (int i = 0; i < 3; ++i)
    model.step(&end);
  EXPECT_EQ(streamer.slots(), 2);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), before - 6 * weightBytes + (1 << 20));
  Json record = streamer.record();
  // 18 uses of 8 blocks in two slots. Two are there at each turn, of which a busy
  // machine, whose copies come late, may lose one; whatever follows was asked for
  // while the block before ran.
  EXPECT_LT(record["loads"], 18) << record;
  EXPECT_LE(record["prefetch_misses"], 2) << record;
  EXPECT_EQ(record["vram_used_mb"], double(end.liveBytes) / 1048576);
}

//===----------------------------------------------------------------------===//
// Times
//===----------------------------------------------------------------------===//

namespace {
class WeightTimesTest : public testing::Test {
protected:
  void SetUp() override {
    folder = std::filesystem::temp_directory_path() / ("segue-ring-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    path = folder / "weights.safetensors";
    DeviceRef host = Device::open("cpu");
    TensorMap tensors;
    for (uint64_t i = 0; i < 6; ++i)
      tensors["w" + std::to_string(i)] = random(host, {64, 64}, 100 + i, 0.2f);
    saveSafetensors(path, tensors);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  void stream(Model &model, WeightStreamer &streamer) {
    model.stream(streamer, [&, file = openedFile(path)](size_t chain, size_t layer) {
      WeightSource source;
      if (chain == 1) {
        source.host = model.weightTensor(1, layer);
      } else {
        source.file = file;
        source.name = "w" + std::to_string(layer);
      }
      return source;
    });
  }

  std::filesystem::path folder, path;
};
} // namespace

// The link takes 1.6 ms for a block at least; files are read, blocks compute.
TEST_F(WeightTimesTest, EachIsCountedForItself) {
  DeviceRef device = Device::open("sim:dram=4MiB,link=10MB/s");
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(), {.slots = 2});
  stream(model, streamer);
  AtTheEnd end;
  end.target = &streamer;
  end.device = device;
  for (int i = 0; i < 2; ++i)
    model.step(&end);
  Json record = streamer.record();
  double least = record["h2d_bytes"].get<double>() / 10e6 * 1000;
  EXPECT_GE(record["copy_time_ms"].get<double>(), least) << record;
  EXPECT_GT(record["file_read_ms"].get<double>(), 0) << record;
  EXPECT_GT(record["compute_time_ms"].get<double>(), 0) << record;
  EXPECT_GE(record["vram_reserved_mb"], record["vram_used_mb"]) << record;
  EXPECT_EQ(record["vram_used_mb"], double(end.liveBytes) / 1048576) << record;
}

// What was left of the link's time for a copy that waits for its slot is not the
// copy's: with one slot each load waits for the block before. A busy machine may
// add to one step's copies, but not to those of each.
TEST_F(WeightTimesTest, WaitingForASlotIsNoCopying) {
  DeviceRef device = Device::open("sim:dram=4MiB");
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 0)"), {.slots = 1});
  stream(model, streamer);
  model.step(&streamer);
  double least = HUGE_VAL;
  for (int tries = 0; tries < 5 && least >= 400; ++tries) {
    // The slot is in use until this ends, half a second from now.
    std::atomic<bool> goOn{false};
    double begin = device->seconds();
    device->enqueue(Queue::Compute, {},
                    Work{[&] {
                           while (device->seconds() < begin + 0.5)
                             std::this_thread::yield();
                           goOn = true;
                         },
                         {},
                         {}});
    model.step(&streamer);
    EXPECT_TRUE(goOn);
    least = std::min(least, streamer.record()["copy_time_ms"].get<double>());
  }
  EXPECT_LT(least, 400) << streamer.record();
}

// One slab, and a copy that is under way holds it: who needs another block waits
// for the slab, is counted and, from a tenth of a second on, told of.
TEST_F(WeightTimesTest, WaitsForSlabsAreCounted) {
  auto scripted = std::make_shared<ScriptedDevice>("sim:dram=4MiB");
  DeviceRef device = scripted;
  Binary binary = ChainWriter(frozen).binary();
  std::vector<std::string> warnings;
  WeightStreamerOptions options;
  options.slots = 4;
  options.warn = [&](const std::string &text) { warnings.push_back(text); };
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 1, "pinned_pool_mb": 1, "pinned_slab_mb": 1)"),
                          std::move(options));
  auto source = [&, file = openedFile(path)](const Value &value) {
    WeightSource found;
    found.file = file;
    found.name = value.name;
    return std::optional(found);
  };
  streamer.add(StepPhase::Forward, "a", binary.program("forward"), source);
  streamer.add(StepPhase::Backward, "a", binary.program("backward"), source);
  streamer.start();
  struct StopAfterTwo : ForwardEvents {
    ScriptedDevice *device = nullptr;
    int blocks = 0;
    void receive(const Event &event) override {
      deliver(*this, event);
      forward(event);
      if (blocks == 2)
        throw Error(ErrorCode::StepAborted, "enough");
    }
    void on(const event::BlockBegin &) {
      if (blocks == 1) { // the copy of this block stays under way
        device->drain();
        device->pause();
      }
    }
    void on(const event::BlockEnd &) { ++blocks; }
  } stop;
  stop.target = &streamer;
  stop.device = scripted.get();
  std::vector<Tensor> rows, weights;
  for (uint64_t i = 0; i < 7; ++i)
    rows.push_back(random(device, {2, 64}, i, 1));
  for (uint64_t i = 0; i < 6; ++i)
    weights.push_back(Tensor::onHost(device, {64, 64}, ElementType::f32));
  std::vector<Tensor> inputs{rows[0]};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  streamer.enter(Phase::StepBegin);
  streamer.enter(Phase::Forward);
  EXPECT_EQ(errorOf([&] { submit(device, binary.program("forward"), inputs, &stop); }).first, ErrorCode::StepAborted);
  EXPECT_EQ(streamer.policy().state("a/h.1"), BlockState::Prefetching) << "its readers wait in the compute queue";
  scripted->resume();
  device->drain();
  scripted->timeWaitsAs(0.164);
  scripted->pauseCopiesIn(); // so that the copy of h.2 does not end before
  streamer.enter(Phase::Backward);
  EXPECT_EQ(streamer.policy().state("a/h.2"), BlockState::Prefetching) << "in the slab of h.1";
  // The caller goes to where nobody expected him.
  inputs = rows;
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  submit(device, binary.program("backward"), inputs, &streamer);
  streamer.enter(Phase::StepEnd);
  EXPECT_EQ(streamer.policy().slabs().waitCount(), 1);
  EXPECT_DOUBLE_EQ(streamer.policy().slabs().totalWaitMs(), 164);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with("pinned pool: \"a/h.5\" waited 164 ms for slabs")) << warnings[0];
}

// And that devices whose copies have one priority do nothing with it.
TEST(WeightStreamerConfig, SaysThatAPriorityIsClamped) {
  for (auto [priority, expected] : {std::pair(3, 2u), std::pair(-2, 1u), std::pair(-1, 0u)}) {
    std::vector<std::string> warnings;
    WeightStreamerOptions options;
    options.warn = [&](const std::string &text) { warnings.push_back(text); };
    WeightStreamer streamer(Device::open("sim:dram=4MiB"),
                            quiet(R"(, "copy_stream_priority": )" + std::to_string(priority)), std::move(options));
    ASSERT_EQ(warnings.size(), expected);
    if (expected == 2) {
      EXPECT_EQ(warnings[0],
                "memory.stagehand.copy_stream_priority: 3 is outside of the device's range, -5 to 0; 0 is used");
    }
    if (expected) {
      EXPECT_EQ(warnings.back(),
                "memory.stagehand.copy_stream_priority: device \"sim:dram=4MiB\" has copy queues of one "
                "priority, so that the key has no effect there; leave it out");
    }
  }
}
