//===- RegionBench.cpp - what a region of threads costs -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Regions of two threads with some microseconds of work for each, and some between two
// regions, on the runtime's pool and on OpenMP's. The time is that of the region: what it
// takes above the work of one thread is what sharing costs.
//
//   segue-bench-engine --benchmark_filter=region
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Threads.h"
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <string>

using namespace segue;

using Clock = std::chrono::steady_clock;

static void workFor(int64_t steps) {
  for (int64_t i = 0; i < steps; ++i)
    asm volatile("" : : "r"(i) : "memory");
}

/// Returns the steps of workFor that take a microsecond.
static int64_t stepsPerMicrosecond() {
  static const int64_t steps = [] {
    constexpr int64_t count = 1 << 20;
    double least = 1;
    for (int round = 0; round < 20; ++round) {
      auto begin = Clock::now();
      workFor(count);
      least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return std::max<int64_t>(1, int64_t(count / (1e6 * least)));
  }();
  return steps;
}

template <typename Region> static void addRegions(const char *pool, const Region &region) {
  for (int gap : {0, 10, 100})
    for (int work : {0, 10}) {
      std::string title = std::string("region/") + pool + "/work:" + std::to_string(work) + "us/gap:" + std::to_string(gap) + "us";
      benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State &state) {
        int64_t steps = stepsPerMicrosecond();
        for (auto _ : state) {
          workFor(gap * steps);
          auto begin = Clock::now();
          region(work * steps);
          state.SetIterationTime(std::chrono::duration<double>(Clock::now() - begin).count());
        }
      })
          ->UseManualTime()
          ->MinTime(0.1)
          ->Unit(benchmark::kMicrosecond);
    }
}

static const bool regionsRegistered = [] {
  addRegions("segue", [](int64_t steps) {
    Threads(2).parallelFor(2, 1, [&](int64_t begin, int64_t end) { workFor((end - begin) * steps); });
  });
  addRegions("openmp", [](int64_t steps) {
#pragma omp parallel num_threads(2)
    workFor(steps);
  });
  return true;
}();
