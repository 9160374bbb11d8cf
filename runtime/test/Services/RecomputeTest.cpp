//===- RecomputeTest.cpp - saved tensors that are computed again ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The chain of SavedChain.h with programs that make each of its tensors from the
// one before: whatever is kept, moved or computed again, the sum is the same to
// the bit.
//
//===----------------------------------------------------------------------===//

#include "SavedChain.h"
#include "segue/runtime/Program/Recomputation.h"
#include <cstdlib>

using namespace segue;
using namespace segue::test;

namespace {
struct RecomputeTest : SavedChainTest {
  RecomputeTest() { chain = makeChain(/*recomputable=*/true); }

  /// Every value that can be is computed again; `more` is said beside.
  void startRecomputing(const Json &more = Json::object()) {
    Json stagehand = activation();
    stagehand["recompute_threshold_bytes"] = int64_t(bytes) + 1;
    stagehand.update(more);
    start(config(stagehand));
  }
};
struct RecomputeEverywhere : RecomputeTest, testing::WithParamInterface<const char *> {};
} // namespace

INSTANTIATE_TEST_SUITE_P(Sims, RecomputeEverywhere,
                         testing::Values(plainSim, "sim:dram=8MiB,pinned=32MiB,threads=1,adversarial=3",
                                         "sim:dram=8MiB,pinned=32MiB,threads=1,adversarial=4",
                                         "sim:streams,dram=8MiB,pinned=32MiB,threads=1,adversarial=4", "cpu:threads=1"));

// The file says what makes a value again, from what, and what that costs.
TEST_F(RecomputeTest, TheFileSaysHow) {
  std::vector<std::optional<Recomputation>> again = recomputations(chain.program("forward"));
  ASSERT_EQ(again.size(), size_t(count));
  EXPECT_FALSE(again[0]);
  ASSERT_TRUE(again[3]);
  EXPECT_EQ(again[3]->program.name(), "recompute.3");
  EXPECT_EQ(again[3]->output, 0u);
  ASSERT_EQ(again[3]->sources.size(), 2u);
  EXPECT_TRUE(again[3]->sources[0].isSaved);
  EXPECT_EQ(again[3]->sources[0].index, 2u);
  EXPECT_FALSE(again[3]->sources[1].isSaved);
  EXPECT_EQ(again[3]->sources[1].index, 1u);
  EXPECT_EQ(again[3]->commands, 1u);
  EXPECT_EQ(again[3]->bytes, 3 * bytes);
  EXPECT_DOUBLE_EQ(again[3]->seconds(1e12, double(3 * bytes), 0.5), 1.5);
}

// A file whose table is wrong is refused: what would run in the place of saved
// bytes must fit to the last number.
TEST(RecomputeFile, IsVerified) {
  struct Case {
    const char *error;
    void (*change)(schema::BinaryT &root);
  };
  // Programs: forward, backward, recompute.1 and so on.
  const Case cases[] = {
      {"save point 3: recompute_program 99 of 9",
       [](schema::BinaryT &root) { root.programs[0]->save_points[3]->recompute_program = 99; }},
      {"save point 3: recompute_program -2 of 9",
       [](schema::BinaryT &root) { root.programs[0]->save_points[3]->recompute_program = -2; }},
      {"save point 3: program \"recompute.3\": output 1 is not the saved value",
       [](schema::BinaryT &root) { root.programs[0]->save_points[3]->recompute_output = 1; }},
      {"save point 3: program \"recompute.3\": output 0 is not the saved value",
       [](schema::BinaryT &root) { root.programs[4]->outputs[0]->desc->element = schema::ElementType::i32; }},
      {"save point 3: program \"recompute.3\": input \"saved.77\" is not a saved output of this program",
       [](schema::BinaryT &root) { root.programs[4]->inputs[0]->name = "saved.77"; }},
      {"save point 3: program \"recompute.3\": input \"z\" is not an input of this program",
       [](schema::BinaryT &root) { root.programs[4]->inputs[1]->name = "z"; }},
      {"save point 3: program \"recompute.3\": input \"y\" is not an input of this program",
       [](schema::BinaryT &root) { root.programs[4]->inputs[1]->role = schema::Role::frozen; }},
      {"save point 3: program \"recompute.3\": it writes what it is given",
       [](schema::BinaryT &root) {
         root.programs[4]->aliases.push_back(std::make_unique<schema::AliasT>());
         root.programs[4]->aliases[0]->required = true;
       }},
  };
  for (const Case &each : cases) {
    TestFile file = makeChainFile(/*recomputable=*/true);
    each.change(file.root);
    try {
      Binary::fromMemory(file.serialize());
      ADD_FAILURE() << each.error << ": nothing was thrown";
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::FileCorrupt);
      EXPECT_NE(std::string(error.what()).find(each.error), std::string::npos) << error.what();
    }
  }
}

// Rule 8 with any threshold, beside spills, under pressure or with none: 20
// steps each. Chains of what is computed again are cut: every fifth of a run
// is not. What the figures of a step choose is left to them (-1).
TEST_P(RecomputeEverywhere, ResultsDoNotDepend) {
  setUp(GetParam());
  struct Case {
    double high, low;
    int64_t threshold, slabs;
    bool checksums, conductor;
    int64_t recomputed;
  };
  const int64_t all = int64_t(bytes) + 1, none = int64_t(bytes);
  const Case cases[] = {
      {0.6, 0.1, 0, 12, false, false, -1}, {0.6, 0.1, all, 12, false, false, 6},   {0.6, 0.1, all, 12, true, true, 6},
      {0.6, 0.1, all, 0, false, false, 6}, {7.5, 7, all, 12, false, false, 0},     {0.6, 0.1, none, 12, true, true, -1},
      {1.3, 0.1, all, 1, false, true, -1}, {1.6, 1.1, none, 12, false, false, -1},
  };
  for (const Case &each : cases) {
    SCOPED_TRACE(testing::Message() << "high " << each.high << " threshold " << each.threshold);
    Json stagehand = activation();
    stagehand["vram_high_watermark_mb"] = each.high;
    stagehand["vram_low_watermark_mb"] = each.low;
    stagehand["recompute_threshold_bytes"] = each.threshold;
    stagehand["slabs_per_class"] = each.slabs;
    stagehand["debug_checksums"] = each.checksums;
    start(config(stagehand, each.conductor ? conductor() : Json()));
    // Builds that take many times as long play some of them.
    for (int i = 0; i < (std::getenv("SEGUE_SAMPLE") ? 6 : 20); ++i) {
      ASSERT_EQ(step(), reference);
      Json record = services->activationRecord();
      expectWhole(record);
      expectNothingLeft();
      if (each.recomputed < 0)
        continue;
      EXPECT_EQ(record["activations_recomputed"], each.recomputed) << record.dump();
      EXPECT_EQ(int64_t(record["activations_spilled"]) + int64_t(record["activations_kept"]), count - each.recomputed);
    }
    services.reset();
    EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), pinned);
    EXPECT_TRUE(warnings.empty()) << warnings.front();
  }
}

// By cost: over a slow link one step spills, and the next ones compute some
// again, those whose copies would hold up the step. The events are recorded.
TEST_F(RecomputeTest, TheCheaperIsChosenBetweenSteps) {
  // A copy takes 26 ms: more than computing again does under a sanitizer, beside another load.
  setUp("sim:dram=8MiB,pinned=32MiB,link=10MB/s,latency=1us,threads=1");
  recordEvents = folder.path;
  start(config(activation()));
  EXPECT_EQ(step(), reference);
  EXPECT_EQ(services->activationRecord()["activations_spilled"], count);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(step(), reference);
    Json record = services->activationRecord();
    expectWhole(record);
    EXPECT_GT(int64_t(record["activations_recomputed"]), 0) << record.dump();
    EXPECT_LT(int64_t(record["spill_bytes"]), count * int64_t(bytes));
  }
  services.reset();
  std::ifstream log(folder.path / "activation.json");
  std::string text((std::istreambuf_iterator<char>(log)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find("\"plan\":\"recompute\""), std::string::npos);
  EXPECT_NE(text.find("\"RECOMPUTE\""), std::string::npos);
}

// Computing again takes memory, too: a source, beside what it makes. Where the
// cap leaves room for a copy back alone nothing is chosen, whatever the link costs.
TEST_F(RecomputeTest, OnlyWhatTheCapHasRoomFor) {
  setUp("sim:dram=8MiB,pinned=32MiB,link=20MB/s,latency=1us,threads=1");
  std::vector<int64_t> recomputed;
  for (double cap : {1.55, 4.0}) {
    SCOPED_TRACE(cap);
    Json capped = conductor();
    capped["vram_hard_cap_mb"] = capped["vram_soft_cap_mb"] = cap;
    start(config(activation(), capped));
    recomputed.push_back(0);
    for (int i = 0; i < 6; ++i) {
      ASSERT_EQ(step(), reference);
      Json record = services->activationRecord();
      expectWhole(record);
      EXPECT_LE(double(record["vram_peak_mb"]), cap);
      recomputed.back() += int64_t(record["activations_recomputed"]);
    }
    services.reset();
  }
  EXPECT_LT(recomputed[0], recomputed[1]);
}

// Chains that rule 8 drops are made at once, 1 to 4 at the need of 4. Where the
// device has no room for all of them, those before the last are given up, and made
// once more at their needs.
TEST_F(RecomputeTest, WhatWasMadeEarlyMakesRoom) {
  setUp(plainSim);
  Json stagehand = activation(), capped = conductor();
  stagehand["recompute_threshold_bytes"] = int64_t(bytes) + 1;
  capped["vram_hard_cap_mb"] = capped["vram_soft_cap_mb"] = 2.05; // 2.5 with the whole chain
  start(config(stagehand, capped));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(step(), reference);
    Json record = services->activationRecord();
    expectWhole(record);
    EXPECT_EQ(record["activations_recomputed"], 6);
    EXPECT_LE(double(record["vram_peak_mb"]), 2.05);
    expectNothingLeft();
  }
}

// What is to be computed again holds nothing: at the end of forward the device
// has two tensors of the eight, and no host memory is taken for the others.
TEST_F(RecomputeTest, HoldsNothing) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["recompute_threshold_bytes"] = int64_t(bytes) + 1;
  stagehand["slabs_per_class"] = 0;
  stagehand["unpinned_max_mb"] = 0;
  start(config(stagehand));
  EXPECT_EQ(step(), reference);
  live = device->memory().liveBytes(Space::DeviceDram); // without what the first step kept for the next
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  std::vector<Tensor> saved = forward();
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), live + 2 * bytes);
  enter(Phase::Backward);
  EXPECT_EQ(backward(std::move(saved)), reference);
  enter(Phase::StepEnd);
  EXPECT_EQ(services->activationRecord()["activations_recomputed"], 6);
  EXPECT_EQ(services->activationRecord()["kept_reasons"]["no_host_memory"], 2);
}

// A value that was dropped and is read outside of its step is an error that
// says so, never other bytes.
TEST_F(RecomputeTest, WhatWasDroppedIsNotRead) {
  setUp(plainSim);
  startRecomputing();
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  std::vector<Tensor> saved = forward();
  services->abortStep();
  try {
    submit(device, chain.program("backward"), saved);
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::StateTransition) << error.what();
    EXPECT_NE(std::string(error.what()).find("was dropped to be computed again within its step"), std::string::npos)
        << error.what();
  }
  saved.clear();
  expectNothingLeft();
  EXPECT_EQ(step(), reference);
}

// A parameter that comes with its block lies on the host, where its bytes may be
// old: what needs it is moved, never computed again.
TEST_F(RecomputeTest, StreamedParameters) {
  setUp(plainSim);
  startRecomputing();
  y = toHost(y);
  EXPECT_EQ(step(), reference);
  EXPECT_EQ(services->activationRecord()["activations_recomputed"], 0);
  EXPECT_EQ(services->activationRecord()["activations_spilled"], count);
}

// A parameter that nobody keeps until backward.
TEST_F(RecomputeTest, AnInputThatIsGone) {
  setUp(plainSim);
  startRecomputing();
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  std::vector<Tensor> saved = forward();
  y = Tensor();
  enter(Phase::Backward);
  try {
    backward(std::move(saved));
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::StateTransition) << error.what();
    EXPECT_NE(std::string(error.what()).find("is to be computed again, but input \"y\" is gone"), std::string::npos)
        << error.what();
  }
  services->abortStep();
  expectNothingLeft();
}

//===----------------------------------------------------------------------===//
// Recovery
//===----------------------------------------------------------------------===//

// Bytes that are not those that left: the value is computed again.
TEST_F(RecomputeTest, AChecksumRecovers) {
  setUp(plainSim);
  Vandal vandal;
  for (bool ahead : {false, true}) {
    Json stagehand = activation();
    stagehand["predictive_restore"] = ahead;
    stagehand["debug_checksums"] = true;
    start(config(stagehand, conductor()), &vandal);
    vandal.armed = !ahead;
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    std::vector<Tensor> saved = forward();
    device->drain();
    services->receive(event::BlockBegin{chain.program("backward"), "drained"}); // all spills are known to be good
    if (ahead)
      for (int k : {3, 5})
        saved[k].data<uint8_t>()[1000] ^= 1;
    enter(Phase::Backward);
    EXPECT_EQ(backward(std::move(saved)), reference);
    enter(Phase::StepEnd);
    Json record = services->activationRecord();
    expectWhole(record);
    EXPECT_EQ(record["checksum_recovered"], ahead ? 2 : 1) << record.dump();
    EXPECT_EQ(record["activations_recomputed"], 0) << "counted at save alone";
    expectNothingLeft();
    vandal.armed = false;
    services.reset();
  }
}

// Restores that fail for good: all but the first of the chain are computed
// again, and that one comes back last, when the link is whole.
TEST_F(RecomputeTest, AFailedRestoreRecovers) {
  setUp(plainSim);
  for (bool ahead : {false, true}) {
    Json stagehand = activation();
    stagehand["predictive_restore"] = ahead;
    stagehand["transfer_retries"] = 1;
    start(config(stagehand, conductor()));
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    std::vector<Tensor> saved = forward();
    device->drain();
    services->receive(event::BlockBegin{chain.program("backward"), "drained"});
    scripted->copiesToFail = 4; // one copy: twice by the engine, once more by the service
    enter(Phase::Backward);
    EXPECT_EQ(backward(std::move(saved)), reference);
    enter(Phase::StepEnd);
    Json record = services->activationRecord();
    expectWhole(record);
    EXPECT_EQ(record["transfer_retries"], 1) << record.dump();
    expectNothingLeft();
    services.reset();
  }
}

// Nothing is left of a step that is abandoned while values are dropped.
TEST_F(RecomputeTest, AbortedStepsLeaveNothing) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["recompute_threshold_bytes"] = int64_t(bytes) + 1;
  start(config(stagehand, conductor()));
  for (Phase last : {Phase::Forward, Phase::Backward}) {
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    std::vector<Tensor> saved = forward();
    if (last == Phase::Backward)
      enter(Phase::Backward);
    services->abortStep();
    saved.clear();
    expectNothingLeft();
    EXPECT_EQ(step(), reference);
    expectWhole(services->activationRecord());
  }
}
