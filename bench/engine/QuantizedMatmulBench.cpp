//===- QuantizedMatmulBench.cpp - fused INT8 products ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// y = x W'ᵀ and dx = dy W' with W' in int8_row storage, beside the same product
// with W' in f32: at many rows widening costs little, at few rows the weight's
// bytes are what counts.
//
//   segue-bench-engine --benchmark_filter=int8
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Engine.h"
#include <benchmark/benchmark.h>
#include <string>
#include <vector>

using namespace segue;

static void runFused(benchmark::State &state, int64_t rows, int64_t out, int64_t in, bool transposed) {
  QuantizedMatmulSpec spec{.rows = rows, .out = out, .in = in, .codeStride = in};
  spec.transposed = transposed;
  spec.xStride = spec.depth();
  spec.yStride = spec.columns();
  std::vector<float> x(size_t(rows * spec.depth()), 0.01f), y(size_t(rows * spec.columns())), scale(size_t(out), 0.5f);
  std::vector<int8_t> codes(size_t(out * in), 3);
  Engine engine{Threads(1)};
  auto plan = engine.planQuantizedMatmul(spec);
  for (auto _ : state)
    plan->run(x.data(), codes.data(), scale.data(), nullptr, y.data());
  state.counters["GFLOP/s"] = benchmark::Counter(spec.flops() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(plan->describe());
}

static void runDense(benchmark::State &state, int64_t rows, int64_t out, int64_t in, bool transposed) {
  MatmulSpec spec{.m = rows, .n = transposed ? in : out, .k = transposed ? out : in};
  spec.a.strides = {0, spec.k, 1};
  spec.b.strides = transposed ? std::array<int64_t, 3>{0, in, 1} : std::array<int64_t, 3>{0, 1, in};
  spec.c.strides = {0, spec.n, 1};
  std::vector<float> x(size_t(rows * spec.k), 0.01f), y(size_t(rows * spec.n)), w(size_t(out * in), 0.5f);
  Engine engine{Threads(1)};
  auto plan = engine.planMatmul(spec);
  for (auto _ : state)
    plan->run(x.data(), w.data(), y.data(), nullptr);
  state.counters["GFLOP/s"] = benchmark::Counter(spec.flops() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(plan->describe());
}

static const bool registered = [] {
  for (int64_t rows : {1, 16, 512})
    for (bool transposed : {false, true})
      for (bool fused : {true, false}) {
        std::string title = std::string("int8/") + (transposed ? "dx" : "y") + "/rows:" + std::to_string(rows) +
                            "/2048x2048/" + (fused ? "fused" : "dense_f32");
        benchmark::RegisterBenchmark(title.c_str(), fused ? runFused : runDense, rows, 2048, 2048, transposed)
            ->UseRealTime()
            ->MinTime(0.2)
            ->Unit(benchmark::kMicrosecond);
      }
  return true;
}();
