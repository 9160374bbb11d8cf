//===- WeightStreamerTest.cpp - weights that come with their block --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "StreamedChains.h"
#include "Transfer/ScriptedDevice.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Files/Safetensors.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <thread>

using namespace segue;
using namespace segue::test;
namespace fs = std::filesystem;

class WeightStreamerTest : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(All, WeightStreamerTest, OnDevices::all());

// The device has no room for all weights: a plain run says so, and a streamed
// one trains to the same bits.
TEST_P(WeightStreamerTest, TrainsWhatDoesNotFitToTheSameBits) {
  constexpr int steps = 20;
  Course expected = courseWithout(GetParam(), frozen, trained, steps);
  for (int64_t slots : {1, 2, 3, 8}) {
    SCOPED_TRACE(std::to_string(slots) + " slots");
    DeviceRef device = Device::open(GetParam());
    Model model(device, frozen, trained);
    // Of eight weights three slots, two gradients, the rate, and a little for
    // activations.
    uint64_t budget = slots == 8 ? 0 : (uint64_t(slots) + 2 + 1) * weightBytes + 24 * 1024;
    if (budget && !device->hasUnifiedMemory()) {
      device->memory().setBudget(Space::DeviceDram, budget);
      if (slots <= 3) {
        EXPECT_LT(budget, 9 * weightBytes + 24 * 1024);
      }
    }
    WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 2)"), {.slots = slots});
    model.stream(streamer);
    EXPECT_EQ(streamer.slots(), slots);
    for (int i = 0; i < steps; ++i) {
      ASSERT_EQ(model.step(&streamer), expected.steps[size_t(i)]) << "step " << i;
      EXPECT_EQ(streamer.record()["step"], i + 1);
    }
    streamer.flush();
    for (size_t i = 0; i < model.layers(1); ++i)
      EXPECT_EQ(model.weight(1, i), expected.weights[i]);
    Json record = streamer.record();
    if (slots == 8) {
      EXPECT_EQ(record["loads"], 0); // all are there
    } else {
      EXPECT_GT(record["loads"], 0);
    }
    EXPECT_EQ(record["dtype_promotions"], 0);
  }
}

// A program may stand for another one whose blocks use the same parameters, whatever its batches are.
TEST_P(WeightStreamerTest, ProgramsForOtherExtentsHaveTheSameBlocks) {
  WeightStreamer streamer(Device::open(GetParam()), quiet(""));
  Binary first = ChainWriter({.layers = 5}).binary(), longer = ChainWriter({.layers = 5, .rows = 7}).binary(),
         shorter = ChainWriter({.layers = 4}).binary();
  for (const char *name : {"forward", "backward"}) {
    EXPECT_NO_THROW(streamer.requireAlike("m", longer.program(name), first.program(name)));
    auto [code, said] = errorOf([&] { streamer.requireAlike("m", shorter.program(name), first.program(name)); });
    EXPECT_EQ(code, ErrorCode::Unsupported);
    EXPECT_NE(said.find("of module \"m\" for batches of other extents touches parameters in other blocks"),
              std::string::npos)
        << said;
  }
}

// The example of docs/specs/weight-stagehand.md: N 5, window 2, capacity 3.
TEST_P(WeightStreamerTest, SevenLoads) {
  DeviceRef device = Device::open(GetParam());
  Binary binary = ChainWriter({.layers = 5}).binary();
  std::vector<Tensor> weights;
  for (uint64_t i = 0; i < 5; ++i)
    weights.push_back(random(device, {64, 64}, i, 0.1f));
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 2)"), {.slots = 3});
  auto source = [&](const Value &value) {
    WeightSource found;
    found.host = weights[size_t(value.name[1] - '0')];
    return std::optional(found);
  };
  streamer.add(StepPhase::Forward, "", binary.program("forward"), source);
  streamer.add(StepPhase::Backward, "", binary.program("backward"), source);
  streamer.start();
  Tensor x = random(device, {2, 64}, 9, 1);
  streamer.enter(Phase::StepBegin);
  streamer.enter(Phase::Forward);
  std::vector<Tensor> inputs{x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  std::vector<Tensor> y = submit(device, binary.program("forward"), inputs, &streamer);
  device->drain(); // the last may be on its way
  streamer.enter(Phase::Backward);
  EXPECT_EQ(streamer.policy().resident(), (std::vector<std::string>{"h.2", "h.3", "h.4"}));
  inputs = {y.back(), x};
  inputs.insert(inputs.end(), y.begin(), y.end() - 1);
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  submit(device, binary.program("backward"), inputs, &streamer);
  streamer.enter(Phase::StepEnd);
  EXPECT_EQ(streamer.record()["loads"], 7);
  EXPECT_EQ(streamer.record()["h2d_bytes"], 7 * weightBytes);
  EXPECT_EQ(streamer.record()["evictions"], 4);
}

//===----------------------------------------------------------------------===//
// Numeric guards
//===----------------------------------------------------------------------===//

namespace {
/// Hands everything on and notes what is watched.
struct Watched : ForwardEvents {
  int programs = 0, results = 0;
  void receive(const Event &event) override {
    forward(event);
    deliver(*this, event);
  }
  void on(const event::OfferResults &offer) {
    programs += offer.areWatched;
  }
  void on(const event::BlockResult &) { ++results; }
};

/// Counts what is not finite in all that forward and backward gave.
struct Tally : EventSink {
  int64_t nans = 0, infs = 0;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::OfferResults &offer) { offer.areWatched = true; }
  void on(const event::BlockResult &written) {
    for (float each : valuesOf(written.value)) {
      nans += std::isnan(each);
      infs += std::isinf(each);
    }
  }
};
} // namespace

// A weight of one block has gone bad: the record counts what that and the blocks
// after it give, and the warning names the block and the value where it began.
TEST_P(WeightStreamerTest, CountsWhatIsNotFinite) {
  struct Case {
    const char *name;
    size_t chain, layer;
    float value;
    const char *where;
  };
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Case &each :
       {Case{"nan", 0, 3, nan, "block \"a/h.3\" gives 2 NaN and 0 Inf in \"s4\" of program \"forward\""},
        Case{"inf", 1, 0, inf, "block \"b/h.0\" gives 0 NaN and 2 Inf in \"s1\" of program \"forward\""},
        Case{"none", 0, 0, 1.0f, ""}}) {
    SCOPED_TRACE(each.name);
    auto spoil = [&](Model &model) { model.weightTensor(each.chain, each.layer).data<float>()[5] = each.value; };
    Tally expected;
    {
      DeviceRef plain = Device::open("cpu");
      Model model(plain, frozen, trained);
      spoil(model);
      model.step(&expected);
    }
    EXPECT_EQ(expected.nans + expected.infs > 0, *each.where != 0);
    DeviceRef device = Device::open(GetParam());
    Model model(device, frozen, trained);
    spoil(model);
    std::vector<std::string> warnings;
    WeightStreamerOptions options;
    options.slots = 3;
    options.warn = [&](const std::string &text) { warnings.push_back(text); };
    WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 2)"), std::move(options));
    model.stream(streamer);
    Watched watched;
    watched.target = &streamer;
    model.step(&watched);
    EXPECT_EQ(watched.programs, 4) << "not the optimizer";
    EXPECT_EQ(watched.results, 2 * 6 + 2 * 2 + 2) << "values of forward, their gradients, gradients of weights";
    EXPECT_EQ(streamer.record()["nan_count"], expected.nans);
    EXPECT_EQ(streamer.record()["inf_count"], expected.infs);
    if (!*each.where) {
      EXPECT_TRUE(warnings.empty());
      continue;
    }
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0],
              "step 1: " + std::string(each.where) + "; what else this step has is in nan_count and inf_count");
    model.step(&watched);
    ASSERT_EQ(warnings.size(), 2u) << "once per step";
    EXPECT_TRUE(warnings[1].starts_with("step 2: ")) << warnings[1];
  }
}

TEST_P(WeightStreamerTest, LooksAtNothingUnlessAsked) {
  DeviceRef device = Device::open(GetParam());
  Model model(device, frozen, trained);
  model.weightTensor(0, 2).data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  WeightStreamer streamer(device, quiet(R"(, "nan_inf_check": false)"), {.slots = 3});
  model.stream(streamer);
  Watched watched;
  watched.target = &streamer;
  model.step(&watched);
  EXPECT_EQ(watched.programs, 0);
  EXPECT_EQ(watched.results, 0);
  EXPECT_EQ(streamer.record()["nan_count"], 0);
}

// A program that cannot go on while its kernels wait in the queue: they are not
// run any more, and what lies in their outputs is no value of a block.
TEST(WeightStreamerGuards, CountNothingThatNeverRan) {
  struct Stop : ForwardEvents {
    DeviceRef device;
    std::promise<void> goOn;
    int blocks = 0, results = 0;
    void receive(const Event &event) override {
      deliver(*this, event);
      forward(event);
    }
    void on(const event::BlockBegin &) {
      if (++blocks == 1 && device)
        device->enqueue(Queue::Compute, {}, Work{[held = goOn.get_future().share()] { held.wait(); }, {}, "held"});
      if (blocks == 4)
        throw Error(ErrorCode::DeviceOom, "no room for what follows");
    }
    void on(const event::BlockResult &) { ++results; }
  };
  // An adversary runs what it likes when it likes; a thread of its own can be held.
  for (int seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    DeviceRef device = Device::open("sim:dram=4MiB" + (seed ? ",adversarial=" + std::to_string(seed) : ""));
    Model model(device, frozen, trained);
    std::vector<std::string> warnings;
    WeightStreamerOptions options;
    options.slots = 8; // all stay, so that nobody waits for a load
    options.warn = [&](const std::string &text) { warnings.push_back(text); };
    WeightStreamer streamer(device, quiet(), std::move(options));
    model.stream(streamer);
    model.step(&streamer);
    Stop stop;
    stop.target = &streamer;
    stop.device = seed ? nullptr : device;
    EXPECT_EQ(errorOf([&] { model.step(&stop); }).first, ErrorCode::DeviceOom);
    EXPECT_EQ(stop.results, 3);
    stop.goOn.set_value();
    streamer.abortStep();
    EXPECT_EQ(streamer.record()["aborted"], true);
    EXPECT_EQ(streamer.record()["nan_count"], 0);
    EXPECT_EQ(streamer.record()["inf_count"], 0);
    EXPECT_EQ(warnings, std::vector<std::string>{});
  }
}

// A step that is given up has what was counted by then.
TEST_P(WeightStreamerTest, AnAbortedStepHasItsCounts) {
  DeviceRef device = Device::open(GetParam());
  Model model(device, frozen, trained);
  model.weightTensor(0, 5).data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::string> warnings;
  WeightStreamerOptions options;
  options.slots = 3;
  options.warn = [&](const std::string &text) { warnings.push_back(text); };
  WeightStreamer streamer(device, quiet(), std::move(options));
  model.stream(streamer);
  struct Stop : Watched {
    void receive(const Event &event) override {
      auto *begin = std::get_if<event::PhaseBegin>(&event);
      if (begin && begin->phase == Phase::Backward)
        throw Error(ErrorCode::StepAborted, "enough");
      Watched::receive(event);
    }
  } stop;
  stop.target = &streamer;
  EXPECT_EQ(errorOf([&] { model.step(&stop); }).first, ErrorCode::StepAborted);
  streamer.abortStep();
  EXPECT_TRUE(streamer.record()["aborted"]);
  EXPECT_EQ(streamer.record()["nan_count"], 2 + 2 * 64 * 2)
      << "a column of s6, then all of s1 and y of the other chain";
  EXPECT_EQ(warnings.size(), 1u);
}

// What blocks take on the device is measured in its queue and told to the policy.
TEST_P(WeightStreamerTest, MeasuresWhatBlocksCompute) {
  DeviceRef device = Device::open(GetParam());
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(), {.slots = 3});
  model.stream(streamer);
  for (int i = 0; i < 3; ++i)
    model.step(&streamer);
  EXPECT_GT(streamer.record()["compute_time_ms"].get<double>(), 0);
}

//===----------------------------------------------------------------------===//
// Residency control
//===----------------------------------------------------------------------===//

TEST_P(WeightStreamerTest, KeepsBlocksWhileAScopeLives) {
  DeviceRef device = Device::open(GetParam());
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 1)"), {.slots = 4});
  auto scope = streamer.keepResident({"a/h.0", "a/h.1"}); // before there is a policy
  model.stream(streamer);
  // At the turn the last four blocks are there, unless somebody keeps others.
  struct AtTheTurn : ForwardEvents {
    std::vector<std::string> there;
    void receive(const Event &event) override {
      deliver(*this, event);
      forward(event);
    }
    void on(const event::PhaseBegin &begin) {
      if (begin.phase == Phase::Backward)
        there = static_cast<WeightStreamer *>(target)->policy().resident();
    }
  } turn;
  turn.target = &streamer;
  auto isKept = [&] {
    model.step(&turn);
    return std::ranges::count(turn.there, "a/h.0") + std::ranges::count(turn.there, "a/h.1") == 2;
  };
  EXPECT_TRUE(isKept());
  EXPECT_TRUE(isKept());
  streamer.flush();
  streamer.stop();
  streamer.start();
  EXPECT_TRUE(isKept()) << "the claim outlives the policy";
  scope.release();
  scope.release();
  EXPECT_FALSE(isKept());
  auto [code, what] = errorOf([&] { (void)streamer.keepResident({"a/h.7"}); });
  EXPECT_EQ(code, ErrorCode::NameUnknown) << what;
  std::optional<WeightStreamer> gone(std::in_place, device, quiet());
  auto late = gone->keepResident({"x"});
  gone.reset(); // a scope may outlive its streamer
}

// Room that another model has reserved is out of a guest's reach.
TEST_P(WeightStreamerTest, GuestsLeaveOthersTheirRoom) {
  DeviceRef device = Device::open(GetParam());
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(R"(, "vram_high_watermark_mb": 3, "vram_low_watermark_mb": 2)"), {.slots = 4});
  EXPECT_EQ(errorOf([&] { (void)streamer.headroomBytes(); }).first, ErrorCode::StateTransition);
  model.stream(streamer);
  model.step(&streamer);
  int64_t headroom = streamer.headroomBytes();
  auto reserved = streamer.reserve("b", ResidencyRank::Primary, 100000);
  EXPECT_EQ(streamer.headroomBytes(), headroom) << "nobody is a guest";
  {
    auto guest = streamer.asGuest("a");
    EXPECT_EQ(streamer.headroomBytes(), headroom - 100000);
    auto own = streamer.asGuest("b");
    EXPECT_EQ(streamer.headroomBytes(), headroom);
  }
  EXPECT_EQ(streamer.headroomBytes(), headroom);
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

class WeightFileTest : public testing::Test {
protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("segue-weights-" + std::to_string(::getpid()));
    fs::create_directories(folder);
    path = folder / "weights.safetensors";
    TensorMap tensors;
    for (uint64_t i = 0; i < 6; ++i)
      tensors["w" + std::to_string(i)] = weightOf(i);
    saveSafetensors(path, tensors);
  }
  void TearDown() override { fs::remove_all(folder); }

  Tensor weightOf(uint64_t i) { return random(device, {64, 64}, 100 + i, 0.2f); }

  std::unique_ptr<WeightStreamer> streamed(Model &model, const std::string &config = "",
                                           WeightStreamerOptions options = {.slots = 2}) {
    auto streamer = std::make_unique<WeightStreamer>(device, quiet(config), std::move(options));
    model.stream(*streamer, [&, file = openedFile(path)](size_t chain, size_t layer) {
      WeightSource source;
      if (chain == 1) {
        source.host = model.weightTensor(1, layer);
      } else {
        source.file = file;
        source.name = "w" + std::to_string(layer);
      }
      return source;
    });
    return streamer;
  }

  DeviceRef device = Device::open("sim:dram=4MiB");
  fs::path folder, path;
};

// Through slabs of the pool.
TEST_F(WeightFileTest, StreamsFromSafetensors) {
  Model resident(device, frozen, trained), model(device, frozen, trained);
  resident.placeAll();
  for (const char *config : {"", R"(, "pinned_pool_mb": 2, "pinned_slab_mb": 1)"}) {
    auto streamer = streamed(model, config);
    for (int step = 0; step < 3; ++step)
      EXPECT_EQ(model.step(streamer.get()), resident.step(nullptr));
    streamer->flush();
    EXPECT_EQ(streamer->record()["host_pool_in_use"], 0);
  }
}

TEST_F(WeightFileTest, AFileThatChangesStopsTheStep) {
  Model model(device, frozen, trained);
  auto streamer = streamed(model);
  model.step(streamer.get());
  std::vector<float> before;
  streamer->flush();
  before = model.weight(1, 0);
  std::ofstream(path, std::ios::app) << "x";
  auto [code, what] = errorOf([&] { model.step(streamer.get()); });
  EXPECT_EQ(code, ErrorCode::SourceChanged) << what;
  EXPECT_NE(what.find("block \"a/h."), std::string::npos) << what;
  EXPECT_NE(what.find("weights.safetensors: another size"), std::string::npos) << what;
  streamer->abortStep();
  EXPECT_TRUE(streamer->record()["aborted"]);
  EXPECT_EQ(model.weight(1, 0), before); // those of the last finished step
}

TEST_F(WeightFileTest, AllThatDoesNotMatchIsListed) {
  TensorMap tensors;
  tensors["w0"] = weightOf(0);
  tensors["extra"] = weightOf(1);
  saveSafetensors(path, tensors);
  Model model(device, frozen, trained);
  auto [code, what] = errorOf([&] { streamed(model); });
  EXPECT_EQ(code, ErrorCode::MissingWeight);
  EXPECT_NE(what.find("5 of 6 frozen weights have no source"), std::string::npos) << what;
  EXPECT_NE(what.find("wanted w5 (f32[64,64]): no source has it"), std::string::npos) << what;
  EXPECT_NE(what.find("left over in the source: extra"), std::string::npos) << what;
}

//===----------------------------------------------------------------------===//
// Faults, records
//===----------------------------------------------------------------------===//

// A weight that cannot be read stops the step in its block, after others have
// run, and the next one is as if nothing had been.
TEST(WeightStreamerFaults, AStepThatFailedLeavesNothingBehind) {
  DeviceRef device = Device::open("sim:dram=4MiB");
  Model resident(device, frozen, trained), model(device, frozen, trained);
  resident.placeAll();
  WeightStreamer streamer(device, quiet(), {.slots = 2});
  model.stream(streamer);
  auto expected = resident.step(nullptr);
  EXPECT_EQ(model.step(&streamer), expected);
  expected = resident.step(nullptr);
  Tensor lost = model.weightTensor(0, 3);
  lost.storage()->outcome()->fail(Error(ErrorCode::TransferFailed, "the cable is cut"));
  auto [code, what] = errorOf([&] { model.step(&streamer); });
  EXPECT_EQ(code, ErrorCode::TransferFailed);
  EXPECT_NE(what.find("the cable is cut"), std::string::npos) << what;
  EXPECT_NE(what.find("block \"a/h.3\""), std::string::npos) << what;
  streamer.abortStep();
  EXPECT_TRUE(streamer.record()["aborted"]);
  EXPECT_GE(streamer.record()["loads"], 3) << "others ran before";
  EXPECT_EQ(streamer.record()["host_pool_in_use"], 0);
  for (const char *id : {"a/h.0", "a/h.3"})
    EXPECT_EQ(streamer.policy().useCount(id), 0);
  lost.storage()->forgetOutcome();
  EXPECT_EQ(model.step(&streamer), expected);
}

namespace {
/// How far the device had come when the last program of forward was queued.
struct AtTheTurn : ForwardEvents {
  const WeightStreamer *streamer = nullptr;
  bool isUnderWay = false;
  void receive(const Event &event) override {
    deliver(*this, event);
    forward(event);
  }
  void on(const event::PhaseBegin &begin) {
    if (begin.phase == Phase::Backward)
      isUnderWay = streamer->policy().state("b/h.1") == BlockState::Prefetching;
  }
};
} // namespace

// A block of 16 KiB takes 16 ms of the link: its program is queued behind its load,
// and what compute waited is what the link took, less what ran beside it.
TEST(WeightStreamerQueues, ComputeWaitsInItsQueue) {
  DeviceRef device = Device::open("sim:dram=4MiB,link=1MB/s");
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 1)"), {.slots = 2});
  model.stream(streamer);
  AtTheTurn turn;
  turn.target = &streamer;
  turn.streamer = &streamer;
  model.step(&turn);
  EXPECT_TRUE(turn.isUnderWay) << "the thread did not wait for the load of the last block";
  Json record = streamer.record();
  EXPECT_GE(record["stall_time_ms"].get<double>(), 8 * 16.0 / 2) << record;
  EXPECT_GE(record["stall_count"], 8) << record;
  EXPECT_EQ(record["prefetch_hits"].get<int>() + record["prefetch_late"].get<int>() +
                record["prefetch_misses"].get<int>(),
            8 + 8 + 2)
      << record;
}

// What has arrived when compute comes to it is a hit, although the thread saw it on
// its way.
TEST(WeightStreamerQueues, WhatComesInTimeIsAHit) {
  DeviceRef device = Device::open("sim:dram=4MiB");
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 2)"), {.slots = 4});
  model.stream(streamer);
  model.step(&streamer);
  // Compute takes longer than every copy that was queued before.
  struct Slow : ForwardEvents {
    DeviceRef device;
    void receive(const Event &event) override {
      deliver(*this, event);
      forward(event);
    }
    void on(const event::BlockEnd &) {
      device->enqueue(Queue::Compute, Fence(Queue::HostToDevice, device->position(Queue::HostToDevice)),
                      Work{[] {}, {}, "slow"});
    }
  } slow;
  slow.target = &streamer;
  slow.device = device;
  model.step(&slow);
  Json record = streamer.record();
  EXPECT_GE(record["loads"], 8) << record;
  EXPECT_GE(record["prefetch_hits"], 14) << record;
  EXPECT_LE(record["prefetch_late"], 2) << record;
}

// A load fails, and the second try of it in the queue, behind which its reader waits:
// the step ends with the block and its source, and nothing is used or counted. Where
// the second try brings it, no bit differs.
TEST(WeightStreamerQueues, LoadsAreTriedOnceMoreInTheQueue) {
  Course expected = courseWithout("sim:dram=4MiB", frozen, trained, 2);
  // Each weight is a copy; x and the rate go before them.
  for (std::string tries : {"x2", "x3", "x4"})
    for (int copy = 3; copy <= 14; ++copy) {
      SCOPED_TRACE("copy " + std::to_string(copy) + tries);
      DeviceRef device = Device::open("sim:dram=4MiB,adversarial=" + std::to_string(copy) +
                                      ",fail-h2d=" + std::to_string(copy) + tries);
      Model model(device, frozen, trained);
      std::vector<std::string> warnings;
      WeightStreamerOptions options;
      options.slots = 2;
      options.warn = [&](const std::string &text) { warnings.push_back(text); };
      WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 1)"), std::move(options));
      model.stream(streamer);
      for (int i = 0; i < 2; ++i)
        try {
          ASSERT_EQ(model.step(&streamer), expected.steps[size_t(i)]);
        } catch (const Error &error) {
          EXPECT_EQ(tries, "x4") << "two tries, twice";
          EXPECT_EQ(error.code(), ErrorCode::TransferFailed);
          EXPECT_NE(std::string(error.what()).find("of block \""), std::string::npos) << error.what();
          EXPECT_NE(std::string(error.what()).find("from the host's memory"), std::string::npos) << error.what();
          streamer.abortStep();
          EXPECT_TRUE(streamer.record()["aborted"]);
          EXPECT_EQ(streamer.record()["nan_count"], 0);
          break; // what the optimizer has done by then is another test's
        }
      EXPECT_EQ(warnings, std::vector<std::string>{});
    }
}

namespace {
/// Lets the copy of the rate fail in the queue, and the first block of the optimizer
/// wait behind it until the host waits.
struct AnOptimizerThatFails : ForwardEvents {
  ScriptedDevice *device = nullptr;
  Model *model = nullptr;
  bool isArmed = false;
  void receive(const Event &event) override {
    forward(event);
    deliver(*this, event);
  }
  void on(const event::PhaseBegin &begin) {
    isArmed = begin.phase == Phase::Optimizer;
    if (!isArmed)
      return;
    device->drain();
    device->pause(/*resumesWhenWaited=*/true);
    device->failNextCopy(2);
    model->placeRateAnew();
  }
  void on(const event::BlockBegin &) {
    if (std::exchange(isArmed, false))
      device->pause(/*resumesWhenWaited=*/true);
  }
};
} // namespace

// A slot that an optimizer wrote is saved back once that has run: where it has
// failed, the host's values are failed ones too, and nothing takes that back.
TEST(WeightStreamerFaults, ASaveBackWaitsForItsWriter) {
  auto scripted = std::make_shared<ScriptedDevice>("sim:dram=4MiB");
  DeviceRef device = scripted;
  Model model(device, frozen, trained);
  WeightStreamer streamer(device, quiet(R"(, "prefetch_window_blocks": 0)"), {.slots = 1});
  model.stream(streamer);
  model.step(&streamer);
  streamer.flush();
  AnOptimizerThatFails fault;
  fault.target = &streamer;
  fault.device = scripted.get();
  fault.model = &model;
  auto [code, what] = errorOf([&] {
    model.step(&fault);
    streamer.flush();
  });
  EXPECT_EQ(code, ErrorCode::DeviceOom);
  EXPECT_NE(what.find("held by b/h.0 (16384 bytes, its save-back failed)"), std::string::npos) << what;
  scripted->resume();
  EXPECT_TRUE(scripted->hasFailed());
  streamer.abortStep();
  for (size_t layer : {0, 1})
    EXPECT_TRUE(model.weightTensor(1, layer).storage()->failure()) << "layer " << layer;
}

TEST(WeightStreamerFaults, SaysWhatDoesNotFit) {
  DeviceRef device = Device::open("sim:dram=4MiB");
  device->memory().setBudget(Space::DeviceDram, 40 * 1024);
  Binary binary = ChainWriter({.layers = 2, .isTrained = true}).binary();
  Tensor weight = random(device, {64, 64}, 1, 1);
  auto make = [&](const WeightSource &source) {
    WeightStreamer streamer(device, quiet(R"(, "vram_high_watermark_mb": 0.015, "vram_low_watermark_mb": 0.01)"));
    streamer.add(StepPhase::Optimizer, "m", binary.program("optimizer"),
                 [&](const Value &) { return std::optional(source); });
    streamer.start();
  };
  auto [code, what] = errorOf([&] { make({.host = weight, .file = {}, .name = {}}); });
  EXPECT_EQ(code, ErrorCode::BudgetInfeasible);
  EXPECT_NE(what.find("block \"m/h.0\" needs a slot of 16384 bytes, and 15729 are left below the high watermark"),
            std::string::npos)
      << what;
  std::string path = testing::TempDir() + "read-only-" + std::to_string(getpid()) + ".safetensors";
  saveSafetensors(path, {{"w0", weight}});
  std::tie(code, what) = errorOf([&] { make({.host = {}, .file = openedFile(path), .name = "w0"}); });
  std::filesystem::remove(path);
  EXPECT_EQ(code, ErrorCode::InvalidArgument);
  EXPECT_NE(what.find("weight \"m.w0\" is written by program \"optimizer\", and its source is read-only"),
            std::string::npos)
      << what;
  std::tie(code, what) = errorOf([&] { make({.host = random(device, {64, 32}, 1, 1), .file = {}, .name = {}}); });
  EXPECT_EQ(code, ErrorCode::LayoutMismatch);
  std::tie(code, what) =
      errorOf([&] { make({.host = Tensor::onHost(device, {64, 64}, ElementType::bf16), .file = {}, .name = {}}); });
  EXPECT_EQ(code, ErrorCode::DtypeMismatch);
}

TEST(WeightStreamerRecord, GoesToTheFileWithItsLine) {
  fs::path path = fs::temp_directory_path() / ("segue-stagehand-" + std::to_string(::getpid()) + ".jsonl");
  fs::remove(path);
  DeviceRef device = Device::open("sim:dram=4MiB");
  Model model(device, frozen, trained);
  std::vector<std::string> lines;
  {
    WeightStreamer streamer(
        device, parse(R"({"telemetry_interval_steps": 2, "telemetry_file": ")" + path.string() + "\"}"),
        {.slots = 3, .slab = {}, .warn = {}, .log = [&](const std::string &line) { lines.push_back(line); }});
    model.stream(streamer);
    for (int i = 0; i < 4; ++i)
      model.step(&streamer);
  }
  std::ifstream file(path);
  std::string text;
  int count = 0;
  for (; std::getline(file, text); ++count) {
    Json record = Json::parse(text);
    EXPECT_EQ(record["step"], count + 1);
    EXPECT_GT(record["h2d_bytes"], 0);
    EXPECT_GT(record["compute_time_ms"].get<double>(), 0);
    EXPECT_GT(record["copy_time_ms"].get<double>(), 0);
    EXPECT_EQ(record.size(), 26u);
  }
  EXPECT_EQ(count, 4);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("[STAGEHAND step=2] hit=")) << lines[0];
  fs::remove(path);
}
