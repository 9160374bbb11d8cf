//===- MatmulBench.cpp - GFLOP/s of the engine's matmul -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The products of MatmulShapes.h by the engine's plans.
//
//   segue-bench-engine --benchmark_filter=matmul
//
//===----------------------------------------------------------------------===//

#include "MatmulShapes.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include <benchmark/benchmark.h>
#include <string>
#include <vector>

using namespace segue;
using namespace segue::bench;

static MatrixView place(ElementType type, int64_t rows, int64_t columns, bool transposed) {
  if (transposed)
    return {type, {rows * columns, 1, rows}};
  return {type, {rows * columns, columns, 1}};
}

static void runMatmul(benchmark::State &state, MatmulShape shape, ElementType type, int threads) {
  MatmulSpec spec{shape.batch, shape.m, shape.n, shape.k};
  spec.a = place(type, shape.m, shape.k, shape.transposedA);
  spec.b = place(type, shape.k, shape.n, shape.transposedB);
  spec.c = place(type, shape.m, shape.n, false);
  // Zeros would do for time but for denormals and power: any small pattern.
  auto fill = [&](int64_t count) {
    std::vector<uint8_t> bytes(count * byteSize(type), 0x3C);
    return bytes;
  };
  auto a = fill(shape.batch * shape.m * shape.k), b = fill(shape.batch * shape.k * shape.n),
       c = fill(shape.batch * shape.m * shape.n);
  CpuEngine engine{Threads(threads)};
  auto plan = engine.planMatmul(spec);
  for (auto _ : state)
    plan->run(a.data(), b.data(), c.data(), nullptr);
  state.counters["GFLOP/s"] = benchmark::Counter(spec.flops() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(plan->describe());
}

static const bool matmulRegistered = [] {
  for (ElementType type : {ElementType::f32, ElementType::bf16})
    for (int threads : {1, 2})
      for (const MatmulShape &shape : kMatmulShapes) {
        std::string title =
            "matmul/" + std::string(name(type)) + "/threads:" + std::to_string(threads) + "/" + shape.name;
        benchmark::RegisterBenchmark(title.c_str(), runMatmul, shape, type, threads)
            ->UseRealTime()
            ->MinTime(0.2)
            ->Unit(benchmark::kMicrosecond);
      }
  return true;
}();
