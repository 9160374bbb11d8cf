//===- PlannedRemakesTest.cpp - plans that compute again ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Deep models over a link so slow that a plan computes saved tensors again, with and
// without random numbers in them: losses and parameters are those of the run without
// services, to the bit, each block lies at its planned address, and a step takes less
// time than one that moves all that is away. What fails in a run is said.
//
//===----------------------------------------------------------------------===//

#include "DeepModel.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

using namespace segue;
using segue::test::DeepModel;

namespace {
struct RemadeRun {
  std::vector<float> bits;
  uint64_t peak = 0, recomputed = 0, spilled = 0;
  AddressFigures addresses;
};

/// A session with drawn parameters, planned or without services.
Session makeSession(const DeviceRef &device, const Binary &binary, bool isPlanned,
                    std::function<void(const std::string &)> warn) {
  SessionOptions options;
  options.warn = std::move(warn);
  if (isPlanned)
    options.config = Config::parse(R"({"memory": {"stagehand": {"activation_stagehand": {
        "enabled": true, "mode": "planned", "telemetry_enabled": false}}}})",
                                   "test");
  Session session(device, {{"deep", binary}}, std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, randomTensor(device, info.desc.shape, uint32_t(info.key.back())));
  return session;
}

/// Five steps on a device of `cap` bytes; planned, or without services.
RemadeRun train(const Binary &binary, const DeepModel &model, const std::string &rest, uint64_t cap,
                size_t microBatches, bool isPlanned) {
  DeviceRef device = Device::open("sim:dram=" + std::to_string(cap) + rest);
  Session session = makeSession(device, binary, isPlanned, [](const std::string &text) { ADD_FAILURE() << text; });
  device->memory().resetPeak();
  RemadeRun run;
  for (uint32_t step = 0; step < 5; ++step) {
    std::vector<TensorMap> batches(microBatches);
    for (TensorMap &batch : batches)
      batch["x"] = randomTensor(device, {model.rows, model.width}, 100 * step + uint32_t(&batch - batches.data()));
    run.bits.push_back(float(session.step(batches, 1e-2).loss));
    if (!isPlanned)
      continue;
    Json record = session.services()->activationRecord();
    run.recomputed += record.at("activations_recomputed").get<uint64_t>();
    run.spilled += record.at("activations_spilled").get<uint64_t>();
    EXPECT_EQ(record.at("activations_leaked"), 0);
  }
  run.peak = device->memory().peakBytes(Space::DeviceDram);
  run.addresses = device->memory().addressFigures();
  for (const ParameterInfo &info : session.parameters())
    for (float value : values(session.parameter(info.key)))
      run.bits.push_back(value);
  return run;
}

bool sameBits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Returns the step as it would be if nothing could be computed again.
StepProfile movedOnly(StepProfile profile) {
  profile.remakes.clear();
  for (ResidencyGap &gap : profile.gaps)
    gap.remake = noIndex;
  return profile;
}
} // namespace

TEST(PlannedRemakes, ValuesAreThoseWithoutServices) {
  static constexpr const char *kinds[] = {"", ",adversarial=3", ",streams", ",streams,adversarial=4"};
  std::mt19937 random(14);
  auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  uint64_t recomputed = 0, spilled = 0;
  for (int number = 0; number < 8 && !testing::Test::HasFailure(); ++number) {
    DeepModel model{pick(3, 7), 32 * pick(1, 16), 16 * pick(1, 6), number % 2 == 1};
    SCOPED_TRACE("model " + std::to_string(number));
    Binary binary = model.compiled();
    size_t microBatches = 1 + size_t(number / 4);
    std::string rest = std::string(kinds[number % 4]) + ",pinned=64MiB,link=100MB/s,latency=50us,threads=1";
    StepTwin twin(virtualTwin(*Device::open("sim:dram=64MiB" + rest)), {{"deep", binary}}, {}, microBatches);
    ResidencyPlanner planner(twin.record());
    uint64_t least = certify(twin, planner, 0).bytes;
    uint64_t most = certified(twin, planner, planner.unconstrained(), 0).bytes;
    RemadeRun free = train(binary, model, rest, 64 << 20, microBatches, /*isPlanned=*/false);
    for (uint64_t part = 0; part < 3; ++part) {
      uint64_t cap = least + (most - least) * part / 3;
      SCOPED_TRACE("cap " + std::to_string(cap));
      RemadeRun run = train(binary, model, rest, cap, microBatches, /*isPlanned=*/true);
      EXPECT_TRUE(sameBits(run.bits, free.bits)) << "loss " << run.bits[0] << ", not " << free.bits[0];
      EXPECT_LE(run.peak, cap);
      EXPECT_EQ(run.addresses.displaced, 0u) << run.addresses.lastDisplaced;
      recomputed += run.recomputed;
      spilled += run.spilled;
    }
  }
  std::printf("%llu saved tensors were computed again, %llu were moved\n", (unsigned long long)recomputed,
              (unsigned long long)spilled);
  EXPECT_GT(recomputed, 100u);
  EXPECT_GT(spilled, 10u) << "plans that move and compute show more";
}

// The twin plays what was reckoned: as long, in as much memory, and faster than a plan
// that moves everything that is away. A fast link has nothing computed again.
TEST(PlannedRemakes, AStepOverASlowLinkIsFaster) {
  DeepModel model{.layers = 8, .rows = 2048, .width = 256};
  Binary binary = model.compiled();
  auto twinOver = [&](const char *link) {
    std::string spec = "sim:virtual,dram=1GiB,pinned=1GiB,flops=20TFLOP/s,membw=400GB/s,launch=2us,link=";
    return StepTwin(spec + link, {{"deep", binary}}, {});
  };
  StepTwin twin = twinOver("8GB/s");
  ResidencyPlanner planner(twin.record()), mover(movedOnly(planner.profile()));
  EXPECT_LE(planner.smallestBudget(), mover.smallestBudget());
  EXPECT_LE(certify(twin, planner, 0).bytes, certify(twin, mover, 0).bytes);
  uint64_t least = planner.smallestBudget(), most = planner.unconstrained().peakBytes;
  for (uint64_t part = 1; part < 4; ++part) {
    uint64_t budget = least + (most - least) * part / 4;
    SCOPED_TRACE("budget " + std::to_string(budget));
    StepTwin::Played made = twin.play(planner.profile(), planner.plan(budget));
    StepTwin::Played moved = twin.play(mover.profile(), mover.plan(budget));
    EXPECT_GT(made.remade, 0u);
    EXPECT_EQ(moved.remade, 0u);
    EXPECT_LE(made.peakBytes, budget);
    EXPECT_LT(made.seconds, 0.9 * moved.seconds);
    std::printf("%llu KiB: %.2f ms (reckoned %.2f) with %llu computed again, %.2f ms (%.2f) with all moved\n",
                (unsigned long long)budget >> 10, made.seconds * 1e3, planner.plan(budget).seconds * 1e3,
                (unsigned long long)made.remade, moved.seconds * 1e3, mover.plan(budget).seconds * 1e3);
    EXPECT_NEAR(made.seconds, planner.plan(budget).seconds, 0.25 * made.seconds);
  }
  StepTwin fast = twinOver("400GB/s");
  ResidencyPlanner quick(fast.record());
  EXPECT_EQ(quick.plan(most - (most - least) / 4).remakeSeconds, 0);
}

namespace {
/// Blocks of device_dram that were taken.
struct TakenBlocks final : MemoryWatcher {
  void onTaken(const void *, uint64_t, uint32_t, OwnerId) override { ++count; }
  void onGiven(const void *) override {}
  uint64_t count = 0;
};
} // namespace

// Memory and copies that fail in each place of two planned steps, also within the runs
// that make tensors again and for what they read: a typed error or the same bits, and the
// step can be taken once more.
TEST(PlannedRemakes, FaultsInRunsAreSaid) {
  static constexpr int steps = 2;
  DeepModel model{.layers = 5, .rows = 256, .width = 32, .isRandom = true};
  Binary binary = model.compiled();
  std::string rest = ",pinned=64MiB,link=100MB/s,latency=50us,threads=1";
  StepTwin twin(virtualTwin(*Device::open("sim:dram=64MiB" + rest)), {{"deep", binary}}, {});
  ResidencyPlanner planner(twin.record());
  uint64_t least = certify(twin, planner, 0).bytes;
  uint64_t cap = least + (certified(twin, planner, planner.unconstrained(), 0).bytes - least) / 3;
  uint64_t recomputed = 0;
  auto make = [&](const DeviceRef &device, bool isPlanned) {
    return makeSession(device, binary, isPlanned, [](const std::string &) {});
  };
  auto step = [&](Session &session) {
    auto number = uint32_t(session.stepCount());
    TensorMap batch{{"x", randomTensor(session.device(), {model.rows, model.width}, 100 * number)}};
    double loss = session.step(batch, 1e-2).loss;
    if (session.services())
      recomputed += session.services()->activationRecord().at("activations_recomputed").get<uint64_t>();
    return loss;
  };
  std::vector<double> losses;
  Session free = make(Device::open("sim:dram=64MiB" + rest), /*isPlanned=*/false);
  for (int i = 0; i < steps; ++i)
    losses.push_back(step(free));

  std::string planned = "sim:dram=" + std::to_string(cap) + rest;
  TakenBlocks taken;
  DeviceRef calm = Device::open(planned);
  calm->memory().watch(&taken);
  uint64_t taken0 = 0, copies0 = 0, copies = 0;
  {
    Session session = make(calm, /*isPlanned=*/true);
    taken0 = taken.count;
    copies0 = calm->transfer().counters().h2dCopies;
    for (int i = 0; i < steps; ++i)
      EXPECT_EQ(step(session), losses[size_t(i)]);
    copies = calm->transfer().counters().h2dCopies;
  }
  calm->memory().watch(nullptr);
  ASSERT_GE(recomputed, uint64_t(steps));

  int told = 0, torn = 0, runs = 0;
  auto play = [&](const std::string &fault) {
    SCOPED_TRACE(fault);
    ++runs;
    DeviceRef device = Device::open(planned + fault);
    Session session = make(device, /*isPlanned=*/true);
    for (int tries = 0; session.stepCount() < steps; ++tries) {
      ASSERT_LT(tries, 50) << "it is never done";
      auto now = size_t(session.stepCount());
      try {
        EXPECT_EQ(step(session), losses[now]);
      } catch (const Error &error) {
        ++told;
        if (error.code() == ErrorCode::StateTorn) { // in the optimizer
          ++torn;
          return;
        }
        EXPECT_TRUE(error.code() == ErrorCode::DeviceOom || error.code() == ErrorCode::TransferFailed) << error.what();
      }
    }
  };
  for (uint64_t n = taken0 + 1; n <= taken.count && !testing::Test::HasFailure(); n += 2)
    play(",fail-dram=" + std::to_string(n) + "x9");
  for (uint64_t n = copies0 + 1; n <= copies && !testing::Test::HasFailure(); n += 2)
    play(",fail-h2d=" + std::to_string(n) + "x4");
  std::printf("%d runs, %d errors, %d of them in the optimizer\n", runs, told, torn);
  EXPECT_GT(runs, 20);
  EXPECT_GT(told, torn);
}
