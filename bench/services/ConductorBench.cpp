//===- ConductorBench.cpp - what a call of Conductor costs ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each call with Conductor on (1) and off (0): three services, 64 reservations
// live, a plan of 96 blocks.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/Conductor.h"
#include <benchmark/benchmark.h>

using namespace segue;

namespace {
struct Bench {
  explicit Bench(bool isOn) {
    ConductorConfig config;
    config.enabled = isOn;
    config.telemetry.enabled = false;
    conductor = Conductor(config, config.limits(uint64_t(24) << 30));
    owner = conductor.attach(weights);
    conductor.attach(activations);
    conductor.registerOwner("transfer");
    std::vector<PlannedBlock> plan;
    for (StepPhase phase : {StepPhase::Forward, StepPhase::Backward})
      for (int block = 0; block < 48; ++block)
        plan.push_back({phase, "h." + std::to_string(block), 1 << 20, 0.01, 1 << 20, 1 << 20});
    conductor.setPlan(std::move(plan));
    for (uint64_t id = 1; id <= 64; ++id)
      conductor.reserve({.id = id, .owner = owner, .bytes = 1 << 20});
    conductor.beginStep(1);
    conductor.enterPhase(StepPhase::Forward);
  }
  StagehandKnobs weightKnobs;
  ActivationKnobs activationKnobs;
  StagehandAdapter weights{"stagehand", weightKnobs};
  ActivationAdapter activations{"activation_stagehand", activationKnobs};
  Conductor conductor;
  ServiceId owner{};
};
} // namespace

static void conductorPhase(benchmark::State &state) {
  Bench bench(state.range(0));
  StepPhase next = StepPhase::Backward;
  for (auto _ : state) {
    bench.conductor.enterPhase(next);
    next = next == StepPhase::Backward ? StepPhase::Forward : StepPhase::Backward;
  }
}
BENCHMARK(conductorPhase)->Arg(1)->Arg(0);

static void conductorBlock(benchmark::State &state) {
  Bench bench(state.range(0));
  std::vector<std::string> names;
  for (int block = 0; block < 48; ++block)
    names.push_back("h." + std::to_string(block));
  size_t block = 0;
  for (auto _ : state) {
    bench.conductor.enterBlock(names[block]);
    block = (block + 1) % names.size();
  }
}
BENCHMARK(conductorBlock)->Arg(1)->Arg(0);

static void conductorReserveRelease(benchmark::State &state) {
  Bench bench(state.range(0));
  uint64_t id = 1000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(bench.conductor.reserve({.id = ++id, .owner = bench.owner, .bytes = 4096}));
    bench.conductor.release(id);
  }
}
BENCHMARK(conductorReserveRelease)->Arg(1)->Arg(0);

static void conductorAcquireRelease(benchmark::State &state) {
  Bench bench(state.range(0));
  uint64_t id = 1000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(bench.conductor.acquireOrWait({.id = ++id, .owner = bench.owner}));
    benchmark::DoNotOptimize(bench.conductor.releaseToken(id, bench.owner));
  }
}
BENCHMARK(conductorAcquireRelease)->Arg(1)->Arg(0);
