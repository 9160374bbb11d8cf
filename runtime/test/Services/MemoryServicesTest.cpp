//===- MemoryServicesTest.cpp - the memory policies at work ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A forward that saves a chain of tensors and a backward that sums them up,
// latest first, run under each service and each fault. The sum must be the same
// to the bit, and nothing may be left when a step is over.
//
//===----------------------------------------------------------------------===//

#include "SavedChain.h"
#include <chrono>
#include <condition_variable>
#include <thread>

using namespace segue;
using namespace segue::test;

namespace {
struct MemoryServicesTest : SavedChainTest {};
struct Everywhere : SavedChainTest, testing::WithParamInterface<const char *> {};
} // namespace

INSTANTIATE_TEST_SUITE_P(Sims, Everywhere,
                         testing::Values(plainSim, "sim:dram=8MiB,pinned=32MiB,threads=1,adversarial=3",
                                         "sim:dram=8MiB,pinned=32MiB,threads=1,adversarial=4",
                                         "sim:streams,dram=8MiB,pinned=32MiB,threads=1,adversarial=4", "cpu:threads=1"));

// Values do not depend on services, watermarks, checksums, slots or classes.
TEST_P(Everywhere, ResultsDoNotDepend) {
  setUp(GetParam());
  struct Case {
    double high, low;
    bool checksums, predictive, conductor;
    int inflight, slabs;
    bool spills;
  };
  const Case cases[] = {
      {0.6, 0.1, false, true, false, 1, 12, true}, {0.6, 0.1, true, true, false, 1, 12, true},
      {0.6, 0.1, true, true, true, 2, 12, true},   {1.2, 0.9, true, true, true, 1, 12, true},
      {1.2, 0.9, false, false, false, 4, 1, true}, {1.2, 1.1, true, false, true, 2, 2, true},
      {7.5, 7, true, true, true, 1, 12, false},    {0.6, 0, true, true, true, 2, 0, true},
  };
  for (const Case &each : cases) {
    SCOPED_TRACE(testing::Message() << "high " << each.high << " slabs " << each.slabs);
    Json stagehand = activation();
    stagehand["vram_high_watermark_mb"] = each.high;
    stagehand["vram_low_watermark_mb"] = each.low;
    stagehand["debug_checksums"] = each.checksums;
    stagehand["predictive_restore"] = each.predictive;
    stagehand["max_inflight_d2h"] = stagehand["max_inflight_h2d"] = each.inflight;
    stagehand["slabs_per_class"] = each.slabs;
    start(config(stagehand, each.conductor ? conductor() : Json()));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(step(), reference);
      Json record = services->activationRecord();
      expectWhole(record);
      expectNothingLeft();
      if (each.spills)
        EXPECT_GT(int64_t(record["activations_spilled"]), 0) << record.dump();
      else
        EXPECT_EQ(record["activations_spilled"], 0);
      EXPECT_EQ(record["step"], i + 1);
    }
    services.reset();
    EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), pinned) << "the pool is given back";
    EXPECT_TRUE(warnings.empty()) << warnings.front();
  }
}

// A spilled tensor's bytes serve others: eight of 256 KiB never lie on the
// device at once, in either direction.
TEST_F(MemoryServicesTest, SpillingLowersThePeak) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["vram_high_watermark_mb"] = 0.6;
  start(config(stagehand));
  device->memory().resetPeak();
  EXPECT_EQ(step(), reference);
  // x, y, the chain's last two, one on its way out; on the way back three more.
  EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), live + 6 * bytes);
  EXPECT_EQ(services->activationRecord()["activations_spilled"], count);
}

// Exactly the keys of docs/specs, in the files that the config names.
TEST_F(MemoryServicesTest, TelemetryHasTheKeysOfTheSpecs) {
  setUp(plainSim);
  start(config(activation(), conductor()));
  step();
  step();
  auto keys = [](const Json &object) {
    std::vector<std::string> keys;
    for (const auto &[key, value] : object.items())
      keys.push_back(key);
    std::ranges::sort(keys);
    return keys;
  };
  std::vector<Json> lines = folder.lines("activation.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  std::vector<std::string> expected{"step",
                                    "activations_saved",
                                    "activations_kept",
                                    "activations_spilled",
                                    "activations_restored",
                                    "spill_bytes",
                                    "restore_bytes",
                                    "stall_time_ms",
                                    "stall_count",
                                    "pool_hits",
                                    "pool_misses",
                                    "vram_peak_mb",
                                    "activations_shared",
                                    "activations_recomputed",
                                    "activations_rescued",
                                    "activations_leaked",
                                    "prefetch_hits",
                                    "prefetch_late",
                                    "finalize_waits",
                                    "kept_reasons",
                                    "unpinned_peak_mb",
                                    "pool_bytes",
                                    "pool_grown_slabs",
                                    "transfer_retries",
                                    "checksum_recovered",
                                    "aborted"};
  std::ranges::sort(expected);
  EXPECT_EQ(keys(lines[0]), expected);
  EXPECT_EQ(lines[1]["step"], 2);
  EXPECT_EQ(lines[0]["spill_bytes"], count * bytes);
  services->finishRecords();
  lines = folder.lines("conductor.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  expected = {"step_id",
              "phase_durations",
              "vram_allocated_mb",
              "vram_headroom_mb",
              "runtime_snapshots",
              "pinned_granted_mb",
              "vram_reserved_uncommitted_mb",
              "h2d_inflight",
              "d2h_inflight",
              "h2d_peak",
              "d2h_peak",
              "h2d_denied",
              "d2h_denied",
              "slot_overruns",
              "grant_count",
              "deny_count",
              "partial_count",
              "deny_reasons",
              "pressure_max",
              "suppressed_at",
              "reclaimed_mb",
              "ceiling_exceeded",
              "adapter_errors",
              "h2d_gbps",
              "d2h_gbps",
              "aborted"};
  std::ranges::sort(expected);
  EXPECT_EQ(keys(lines[0]), expected);
  EXPECT_GT(double(lines[0]["d2h_gbps"]), 0) << "spills took tokens";
  EXPECT_GE(int64_t(lines[0]["d2h_peak"]), 1);
  EXPECT_EQ(lines[0]["pinned_granted_mb"], 12);
  EXPECT_TRUE(lines[0]["runtime_snapshots"].contains("activation_stagehand"));
  for (const char *phase : {"step_begin", "forward", "backward"})
    EXPECT_TRUE(lines[0]["phase_durations"].contains(phase)) << lines[0].dump();
}

// Off is not there: no file, no object, no budget.
TEST_F(MemoryServicesTest, DisabledIsNotConstructed) {
  open(plainSim);
  Json off = activation();
  off["enabled"] = false;
  start(config(off));
  EXPECT_EQ(services, nullptr);
  EXPECT_EQ(MemoryServices::create(device, Config()), nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder.path / "activation.jsonl"));
}

// Conductor's hard cap is the budget of the allocator while it runs.
TEST_F(MemoryServicesTest, TheHardCapIsTheBudget) {
  setUp(plainSim);
  uint64_t before = device->memory().budget(Space::DeviceDram);
  Json cap = conductor();
  cap["vram_hard_cap_mb"] = 3;
  cap["vram_soft_cap_mb"] = 2;
  start(config(activation(), cap));
  EXPECT_EQ(device->memory().budget(Space::DeviceDram), 3u << 20);
  device->memory().resetPeak();
  EXPECT_EQ(step(), reference);
  EXPECT_LE(device->memory().peakBytes(Space::DeviceDram), 3u << 20);
  services.reset();
  EXPECT_EQ(device->memory().budget(Space::DeviceDram), before);
}

// A program may hold forward and backward: the services see both phases, by its
// commands, and its blocks within them.
TEST_F(MemoryServicesTest, TwoPhasesInOneProgram) {
  open(plainSim);
  start(config(activation(), conductor()));
  TestFile file;
  uint32_t add = file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4});
  schema::ProgramT &p = file.addProgram("step");
  uint32_t before = addBuffer(p, schema::BufferKind::input, addInput(p, "x", {elements}), 0, bytes);
  for (schema::Phase phase : {schema::Phase::forward, schema::Phase::backward}) {
    addPhase(p, phase);
    schema::BlockBeginT block;
    block.name = "b";
    addCommand(p, std::move(block));
    std::string name = schema::EnumNamePhase(phase);
    uint32_t after = addBuffer(p, schema::BufferKind::output, addOutput(p, name, {elements}), 0, bytes);
    addLaunch(p, add, {before, before, after}, elements, 64);
    schema::BlockEndT end;
    end.name = "b";
    addCommand(p, std::move(end));
    before = after;
  }
  Binary binary = Binary::fromMemory(file.serialize(), {}, "step.segue");
  Tensor x = ramp(1, 0);
  for (int i = 0; i < 2; ++i) {
    enter(Phase::StepBegin);
    Tensor y = toHost(submit(device, binary.program("step"), {x}, services.get()).back());
    EXPECT_EQ(y.data<float>()[elements - 1], 4);
    enter(Phase::StepEnd);
    Json record = services->conductorRecord();
    EXPECT_EQ(record["step_id"], i + 1);
    EXPECT_FALSE(record["aborted"]);
    for (const char *phase : {"forward", "backward"})
      EXPECT_TRUE(record["phase_durations"].contains(phase)) << record.dump();
    EXPECT_FALSE(record["phase_durations"].contains("optimizer")) << record.dump();
  }
}

//===----------------------------------------------------------------------===//
// Under faults
//===----------------------------------------------------------------------===//

// A spill that fails for good leaves the record on the device, with one
// warning; its slab is free again.
TEST_F(MemoryServicesTest, ASpillThatFailsIsKept) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["transfer_retries"] = 1;
  start(config(stagehand, conductor()));
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  scripted->failNextCopy(4); // twice by the engine, once more by the service
  std::vector<Tensor> saved = forward();
  device->drain();
  enter(Phase::Backward);
  EXPECT_EQ(backward(std::move(saved)), reference);
  EXPECT_TRUE(scripted->hasFailed());
  enter(Phase::Optimizer);
  enter(Phase::StepEnd);
  EXPECT_EQ(services->activationRecord()["transfer_retries"], 1);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("activation \"saved."), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("could not be copied to the host and stays on the device"), std::string::npos);
  expectNothingLeft();
  EXPECT_EQ(step(), reference);
  expectWhole(services->activationRecord());
  EXPECT_EQ(services->activationRecord()["transfer_retries"], 0);
}

// A spill that fails once is tried again, and nobody notices.
TEST_F(MemoryServicesTest, ASpillIsRetried) {
  setUp(plainSim);
  start(config(activation()));
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  scripted->failNextCopy(2);
  std::vector<Tensor> saved = forward();
  enter(Phase::Backward);
  EXPECT_EQ(backward(std::move(saved)), reference);
  EXPECT_TRUE(scripted->hasFailed());
  enter(Phase::StepEnd);
  expectWhole(services->activationRecord());
  EXPECT_EQ(services->activationRecord()["transfer_retries"], 1);
  EXPECT_TRUE(warnings.empty());
}

// A restore that fails is retried; one that fails for good aborts the step with
// the name of record and block, and the next step is as if nothing had been.
TEST_F(MemoryServicesTest, ARestoreThatFailsAbortsTheStep) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["predictive_restore"] = false;
  start(config(stagehand, conductor()));
  for (int fail : {2, 1000}) {
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    std::vector<Tensor> saved = forward();
    enter(Phase::Backward);
    device->drain();
    services->receive(event::BlockBegin{chain.program("backward"), "drained"}); // all spills are known to be good
    scripted->copiesToFail = fail;
    if (fail == 2) {
      EXPECT_EQ(backward(std::move(saved)), reference);
      enter(Phase::StepEnd);
      EXPECT_EQ(services->activationRecord()["transfer_retries"], 1);
      continue;
    }
    // An event of backward hears of it, or its reader does, whichever comes first.
    static constexpr std::string_view ended = "could not be copied back to the device; the step is aborted";
    bool wasHeard = false;
    try {
      backward(std::move(saved));
      FAIL() << "nothing was thrown";
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::TransferFailed);
      // Where copies have failed before backward looks at its inputs, the executor names the first of these.
      EXPECT_NE(std::string(error.what()).find("\"saved."), std::string::npos) << error.what();
      wasHeard = std::string_view(error.what()).find(ended) != std::string_view::npos;
    }
    try { // before an optimizer could use what was computed from it, or from the one before
      enter(Phase::Optimizer);
      EXPECT_TRUE(wasHeard) << "nothing was thrown"; // backward stopped at its first copy, and none was queued behind
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::TransferFailed);
      std::string name = wasHeard ? "activation \"saved." : "activation \"saved.7\" of block \"b.7\" ";
      EXPECT_NE(std::string_view(error.what()).find(name), std::string_view::npos) << error.what();
      EXPECT_NE(std::string_view(error.what()).find(ended), std::string_view::npos) << error.what();
    }
    services->abortStep();
    scripted->copiesToFail = 0;
    EXPECT_EQ(services->activationRecord()["aborted"], true);
    EXPECT_EQ(services->conductorRecord()["aborted"], true);
    expectNothingLeft();
  }
  EXPECT_EQ(step(), reference);
  expectWhole(services->activationRecord());
  EXPECT_EQ(services->activationRecord()["step"], 3);
  services->finishRecords();
  EXPECT_EQ(folder.lines("conductor.jsonl").size(), 3u);
}

// What needs a tensor that is away waits in the compute queue. The host, which
// would not come back from a device at rest, goes on; a copy that fails then is
// tried again in its own queue, and heard of once its reader has been freed.
TEST_F(MemoryServicesTest, ReadersWaitInTheQueue) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["predictive_restore"] = false;
  recordEvents = folder.path;
  start(config(stagehand, conductor()));
  for (int fail : {0, 2}) {
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    std::vector<Tensor> saved = forward();
    device->drain();
    enter(Phase::Backward); // all spills are known to be good
    scripted->pauseCopiesIn(/*resumesWhenWaited=*/false);
    scripted->failNextCopy(fail);
    bool isRescued = false, isNeeded = false;
    std::mutex mutex;
    std::condition_variable ended;
    bool isQueued = false;
    std::thread rescue([&] {
      std::unique_lock lock(mutex);
      isRescued = !ended.wait_for(lock, std::chrono::seconds(60), [&] { return isQueued; });
      isNeeded = scripted->awaitNeed(60); // a reader that finds its copy done would not stand still
      scripted->resume();
    });
    std::vector<Tensor> sum = submit(device, chain.program("backward"), std::move(saved), services.get());
    {
      std::lock_guard lock(mutex);
      isQueued = true;
    }
    ended.notify_all();
    rescue.join();
    EXPECT_FALSE(isRescued) << "the host waited for a copy";
    EXPECT_TRUE(isNeeded) << "compute came to no reader";
    Tensor host = toHost(sum[0]);
    EXPECT_EQ(std::vector<float>(host.data<float>(), host.data<float>() + elements), reference);
    enter(Phase::Optimizer);
    enter(Phase::StepEnd);
    Json record = services->activationRecord();
    expectWhole(record);
    EXPECT_GE(int64_t(record["activations_restored"]), 5);
    EXPECT_EQ(record["transfer_retries"], fail / 2);
    EXPECT_GT(double(record["stall_time_ms"]), 0) << "compute stood still, and that is counted";
    expectNothingLeft();
  }
}

// The polynomial of docs/specs/activation-stagehand.md.
TEST_F(MemoryServicesTest, TheChecksumIsCrc32) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["vram_high_watermark_mb"] = 0.001;
  stagehand["vram_low_watermark_mb"] = 0;
  stagehand["min_spill_bytes"] = 0;
  stagehand["predictive_restore"] = false;
  stagehand["debug_checksums"] = true;
  start(config(stagehand));
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  std::vector<Tensor> others = forward();
  Tensor digits = Tensor::onHost(device, {9}, ElementType::i8);
  std::memcpy(digits.bytes(), "123456789", 9);
  digits = copyTo(device, digits, TensorDesc({9}, ElementType::i8));
  services->receive(event::Save{chain.program("forward"), 0, digits});
  device->drain();
  enter(Phase::Backward); // the sum is taken when the copy is known to have ended
  ASSERT_EQ(digits.desc().layout.space, Space::HostPinned);
  digits.data<int8_t>()[0] = '0';
  try {
    services->receive(event::Restore{chain.program("backward"), 0, digits});
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::ChecksumMismatch);
    EXPECT_NE(std::string(error.what()).find("0xcbf43926 when it left the device"), std::string::npos) << error.what();
  }
  services->abortStep();
}

// Neither slab nor other memory of the host: the tensor stays, the step goes on.
TEST_F(MemoryServicesTest, NoHostMemoryKeeps) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["slabs_per_class"] = 2;
  stagehand["unpinned_max_mb"] = 0;
  stagehand["pool_growth"] = false;
  start(config(stagehand));
  EXPECT_EQ(step(), reference);
  Json record = services->activationRecord();
  expectWhole(record);
  EXPECT_EQ(record["activations_spilled"], 2);
  EXPECT_EQ(record["kept_reasons"]["no_host_memory"], count - 2);
}

// The pool grows between steps to what the last would have wanted.
TEST_F(MemoryServicesTest, ThePoolGrowsBetweenSteps) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["slabs_per_class"] = 1;
  stagehand["pinned_pool_max_mb"] = 12;
  start(config(stagehand));
  EXPECT_EQ(step(), reference);
  Json first = services->activationRecord();
  EXPECT_GT(int64_t(first["pool_misses"]), 0);
  EXPECT_GT(int64_t(first["pool_grown_slabs"]), 0);
  EXPECT_EQ(step(), reference);
  EXPECT_EQ(services->activationRecord()["pool_misses"], 0);
  EXPECT_EQ(device->memory().liveBytes(Space::HostPinned) - pinned,
            uint64_t(services->activationRecord()["pool_bytes"]));
}

// No page-locked memory for the pool: an error, and nothing is left of it.
TEST_F(MemoryServicesTest, ThePoolIsAllOrNothing) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["slabs_per_class"] = 40;
  EXPECT_THROW(start(config(stagehand, conductor())), OutOfMemory);
  EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), pinned);
  EXPECT_EQ(device->memory().budget(Space::DeviceDram), 8u << 20);
  EXPECT_EQ(step(), reference);
}

// The config against the device, and one service against the other.
TEST_F(MemoryServicesTest, ConfigsThatDoNotFit) {
  open(plainSim);
  Json stagehand = activation();
  stagehand["vram_high_watermark_mb"] = 100;
  try {
    start(config(stagehand));
    FAIL() << "nothing was thrown";
  } catch (const ConfigError &error) {
    EXPECT_EQ(error.hint(), "at most the device's capacity of 8 MiB");
  }
  Json cap = conductor();
  cap["pinned_cap_mb"] = 11;
  try {
    start(config(activation(), cap));
    FAIL() << "nothing was thrown";
  } catch (const ConfigError &error) {
    EXPECT_EQ(error.key(), "pinned_cap_mb");
    EXPECT_EQ(error.hint(), "at least the pool of activation_stagehand, 12 MiB");
  }
  EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), 0u);
  recordEvents = folder.path / "missing";
  EXPECT_THROW(start(config(activation())), Error);
}

// Where the file names no size, the pool takes half of the page-locked memory at most, and
// the log says what was chosen. A size that the file names is taken, or refused.
TEST_F(MemoryServicesTest, TheDefaultPoolFitsTheDevice) {
  Json stagehand = activation();
  stagehand.erase("pinned_pool_classes_mb");
  stagehand.erase("slabs_per_class");
  recordEvents = folder.path;
  for (auto [mib, slabs] : {std::pair(256, Json{88, 2, 2, 0, 0}), {64, {24, 2, 0, 0, 0}}, {3, {1, 0, 0, 0, 0}}}) {
    setUp("sim:dram=8MiB,threads=1,pinned=" + std::to_string(mib) + "MiB");
    start(config(stagehand));
    EXPECT_EQ(step(), reference);
    services.reset();
    EXPECT_EQ(folder.lines("activation.jsonl").back()["pool_misses"] == 0, mib > 3);
    std::ifstream log(folder.path / "activation.json");
    EXPECT_EQ(Json::parse(log)["config"]["slabs_per_class"], slabs);
  }
  stagehand["slabs_per_class"] = 2;
  EXPECT_THROW(start(config(stagehand)), OutOfMemory);
}

// Bytes that are not those that left are not used.
TEST_F(MemoryServicesTest, ChecksumsAreCompared) {
  setUp(plainSim);
  Vandal vandal;
  Json stagehand = activation();
  stagehand["predictive_restore"] = false;
  stagehand["debug_checksums"] = true;
  start(config(stagehand, conductor()), &vandal);
  EXPECT_EQ(step(), reference);
  vandal.armed = true;
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  std::vector<Tensor> saved = forward();
  enter(Phase::Backward);
  try {
    backward(std::move(saved));
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::ChecksumMismatch);
    EXPECT_NE(std::string(error.what()).find("activation \"saved.5\" of block \"b.5\": CRC-32 0x"), std::string::npos)
        << error.what();
  }
  vandal.armed = false;
  enter(Phase::StepBegin); // ends the old step
  EXPECT_EQ(services->activationRecord()["aborted"], true);
  services->abortStep();
  expectNothingLeft();
  EXPECT_EQ(step(), reference);
}

// Where the host can read what leaves, a copy that brought other bytes is made
// again, and nobody notices.
TEST_F(MemoryServicesTest, ACopyOutThatBringsOtherBytesIsMadeAgain) {
  setUp("cpu:threads=1");
  Json stagehand = activation();
  stagehand["debug_checksums"] = true;
  start(config(stagehand));
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  scripted->corruptsNextCopy = true;
  std::vector<Tensor> saved = forward();
  EXPECT_FALSE(scripted->corruptsNextCopy);
  enter(Phase::Backward);
  EXPECT_EQ(backward(std::move(saved)), reference);
  enter(Phase::StepEnd);
  EXPECT_EQ(services->activationRecord()["transfer_retries"], 1);
  EXPECT_TRUE(warnings.empty());
}

// What is needed while its copy leaves stays on the device for all who need it,
// also once the copy has ended.
TEST_F(MemoryServicesTest, WhatIsRescuedStaysOnTheDevice) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["predictive_restore"] = false;
  start(config(stagehand));
  const Program &forward = chain.program("forward"), &backward = chain.program("backward");
  Tensor one = ramp(3, 0.5f), other = one;
  std::vector<float> expected(elements);
  for (int64_t i = 0; i < elements; ++i)
    expected[size_t(i)] = 3 + 0.5f * float(i % 97);
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  services->receive(event::Submit{forward, std::vector<Tensor>{x, y}});
  scripted->pause();
  services->receive(event::Save{forward, 0, one});
  ASSERT_NE(one.desc().layout.space, Space::DeviceDram) << "it is on its way out";
  services->receive(event::Save{forward, 1, other});
  enter(Phase::Backward);
  services->receive(event::Submit{backward, std::vector<Tensor>{one, other}});
  services->receive(event::Restore{backward, 0, one});
  EXPECT_EQ(one.desc().layout.space, Space::DeviceDram);
  scripted->resume();
  device->drain();
  services->receive(event::BlockBegin{backward, "drained"}); // the copy is known to have ended
  one = Tensor();
  services->receive(event::Free{backward, 0});
  services->receive(event::Restore{backward, 1, other});
  ASSERT_EQ(other.desc().layout.space, Space::DeviceDram);
  Tensor host = toHost(other);
  EXPECT_EQ(std::vector<float>(host.data<float>(), host.data<float>() + elements), expected);
  services->receive(event::Free{backward, 1});
  other = Tensor();
  enter(Phase::StepEnd);
  EXPECT_EQ(services->activationRecord()["activations_rescued"], 1);
  EXPECT_EQ(services->activationRecord()["activations_restored"], 0);
  expectNothingLeft();
}

// Out of memory for a tensor that is needed: what came back ahead of its need
// leaves again, as its host copy is still good, and comes a second time.
TEST_F(MemoryServicesTest, RestoredTensorsMakeRoom) {
  setUp(plainSim);
  Json eager = activation();
  eager["vram_low_watermark_mb"] = 0;
  eager["vram_high_watermark_mb"] = 2.5;
  eager["max_inflight_h2d"] = 8;
  eager["restore_window"] = 8;
  start(config(eager));
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  std::vector<Tensor> saved = forward();
  device->drain();
  enter(Phase::Backward);
  for (int i = 0; i < 3; ++i) {
    device->drain();
    services->receive(event::BlockBegin{chain.program("backward"), "drained"});
  }
  // x, y and four that came back; what is kept for the next run of backward goes
  // first. Needed is the one that is expected last.
  device->memory().setBudget(Space::DeviceDram, 6 * bytes);
  Tensor first = saved.front();
  services->receive(event::Restore{chain.program("backward"), 0, first});
  EXPECT_EQ(first.desc().layout.space, Space::DeviceDram);
  device->memory().setBudget(Space::DeviceDram, 8 << 20);
  EXPECT_EQ(backward(std::move(saved)), reference);
  enter(Phase::StepEnd);
  Json record = services->activationRecord();
  expectWhole(record);
  EXPECT_EQ(record["activations_spilled"], 8);
  EXPECT_GT(int64_t(record["activations_restored"]), 8) << record.dump();
}

// A step that is abandoned between its phases.
TEST_F(MemoryServicesTest, AbortedStepsLeaveNothing) {
  setUp(plainSim);
  start(config(activation(), conductor()));
  for (Phase last : {Phase::StepBegin, Phase::Forward, Phase::Backward, Phase::Optimizer}) {
    std::vector<Tensor> saved;
    for (Phase phase : {Phase::StepBegin, Phase::Forward, Phase::Backward, Phase::Optimizer}) {
      enter(phase);
      if (phase == Phase::Forward)
        saved = forward();
      if (phase == last)
        break;
    }
    services->abortStep();
    saved.clear();
    EXPECT_EQ(services->activationRecord()["aborted"], true);
    expectNothingLeft();
    EXPECT_EQ(step(), reference);
    expectWhole(services->activationRecord());
  }
  EXPECT_TRUE(warnings.empty());
}

// A transfer that fails gives its token back once: none is left when the step
// is given up, and no speed is measured by copies that carried nothing.
TEST_F(MemoryServicesTest, FailedTransfersLeakNoToken) {
  setUp(plainSim);
  start(config(activation(), conductor()));
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  scripted->copiesToFail = 1000;
  std::vector<Tensor> saved = forward();
  device->drain();
  enter(Phase::Backward); // the last is tried again here
  device->drain();
  scripted->copiesToFail = 0;
  services->abortStep();
  Json failed = services->conductorRecord();
  EXPECT_EQ(failed["d2h_inflight"], 0);
  EXPECT_EQ(failed["h2d_inflight"], 0);
  EXPECT_GE(int64_t(failed["d2h_peak"]), 1) << "copies were tried";
  EXPECT_TRUE(failed["d2h_gbps"].is_null()) << failed.dump();
  EXPECT_EQ(failed["slot_overruns"], 0);
  saved.clear();
  EXPECT_EQ(step(), reference);
  EXPECT_GT(double(services->conductorRecord()["d2h_gbps"]), 0);
  expectNothingLeft();
}

// No memory for a tensor that has to return, and nothing that could leave: the
// error shows who reserved what of Conductor.
TEST_F(MemoryServicesTest, OutOfMemoryShowsTheHoldersOfConductor) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["predictive_restore"] = false;
  start(config(stagehand, conductor()));
  enter(Phase::StepBegin);
  enter(Phase::Forward);
  std::vector<Tensor> saved = forward();
  device->drain();
  enter(Phase::Backward);
  services->receive(event::BlockBegin{chain.program("backward"), "drained"}); // the spills' memory is free
  // x, y and half a tensor: what is kept for the next run serves nobody either.
  device->memory().setBudget(Space::DeviceDram, 2 * bytes + bytes / 2);
  Tensor last = saved.back();
  try {
    services->receive(event::Restore{chain.program("backward"), count - 1, last});
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::DeviceOom);
    std::string text = error.what();
    EXPECT_NE(text.find("activation \"saved.7\" cannot return; Conductor's reservations:\n"), std::string::npos)
        << text;
    EXPECT_NE(text.find("activation_stagehand, reservation "), std::string::npos) << text;
    EXPECT_NE(text.find(" bytes granted, "), std::string::npos) << text;
  }
  services->abortStep();
  saved.clear();
  last = Tensor();
  device->memory().setBudget(Space::DeviceDram, 8 << 20);
  expectNothingLeft();
}

// Telemetry that cannot be written: one warning per file, and the run goes on.
TEST_F(MemoryServicesTest, TelemetryThatCannotBeWrittenStopsNothing) {
  setUp(plainSim);
  Json stagehand = activation(), limits = conductor();
  for (const char *name : {"activation.jsonl", "conductor.jsonl"})
    std::filesystem::create_directory(folder.path / name); // a folder stands where the file should
  start(config(stagehand, limits));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(step(), reference);
  ASSERT_EQ(warnings.size(), 2u);
  for (const std::string &warning : warnings)
    EXPECT_NE(warning.find("cannot be opened"), std::string::npos) << warning;
  EXPECT_EQ(services->activationRecord()["step"], 3) << "the figures are there all the same";
}

// What was full, in the order of the rule: a slab of the next larger class, then
// memory that is not pinned up to its limit, then the device.
TEST_F(MemoryServicesTest, AFullPoolFallsBackInOrder) {
  setUp(plainSim);
  Json stagehand = activation();
  stagehand["pinned_pool_classes_mb"] = {1, 2};
  stagehand["slabs_per_class"] = {2, 1};
  stagehand["unpinned_max_mb"] = 0.5; // two of them
  stagehand["pool_growth"] = false;
  start(config(stagehand));
  EXPECT_EQ(step(), reference);
  Json record = services->activationRecord();
  expectWhole(record);
  EXPECT_EQ(record["pool_hits"], 3);
  EXPECT_EQ(record["pool_misses"], 2);
  EXPECT_EQ(record["unpinned_peak_mb"], 0.5);
  EXPECT_EQ(record["kept_reasons"]["no_host_memory"], count - 5);
}

// The worst of devices: copies fail, allocations fail, the memory shrinks. A
// step gives the right bits or an error; the next one begins anew.
TEST_F(MemoryServicesTest, HostileDevices) {
  int finished = 0, failed = 0;
  for (int seed = 1; seed <= 6; ++seed) {
    services.reset();
    setUp("sim:dram=8MiB,pinned=32MiB,threads=1,adversarial=" + std::to_string(seed));
    x = y = Tensor();
    scripted.reset();
    device = Device::open("sim:dram=8MiB,pinned=32MiB,threads=1,adversarial=" + std::to_string(seed) +
                          ",fail-copy=0.15,fail-alloc=0.02");
    auto persist = [&](auto make) {
      while (true)
        try {
          return make();
        } catch (const Error &) {
        }
    };
    x = persist([&] { return ramp(0.5f, 0.25f); });
    y = persist([&] { return ramp(1, 0.125f); });
    Json stagehand = activation();
    stagehand["debug_checksums"] = true;
    persist([&] {
      start(config(stagehand, conductor()));
      return 0;
    });
    for (int i = 0; i < 12; ++i) {
      try {
        size_t before = warnings.size();
        EXPECT_EQ(step(), reference);
        ++finished;
        expectWhole(services->activationRecord(), int64_t(warnings.size() - before));
      } catch (const Error &error) {
        ++failed;
        EXPECT_TRUE(error.code() == ErrorCode::TransferFailed || error.code() == ErrorCode::DeviceOom) << error.what();
        services->abortStep();
        EXPECT_EQ(services->activationRecord()["aborted"], true);
      }
      Json record = services->conductorRecord();
      EXPECT_EQ(record["h2d_inflight"], 0);
      EXPECT_EQ(record["d2h_inflight"], 0);
    }
  }
  EXPECT_GT(finished, 0);
  EXPECT_GT(failed, 0);
}
