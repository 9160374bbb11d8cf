//===- MatmulBench.cpp - GFLOP/s of the engine's matmul -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The products of a training step of config S (bench/peers/gpt_common.py), of
// its forward pass and of the gradients for inputs (dX) and weights (dW). Names
// say m x k x n and how a and b lie: T is transposed in memory.
//
//   segue-bench-engine --benchmark_filter=matmul
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Engine.h"
#include <benchmark/benchmark.h>
#include <string>
#include <vector>

using namespace segue;

namespace {

struct Shape {
  const char *name;
  int64_t batch, m, k, n;
  bool transposedA, transposedB;
};

} // namespace

static constexpr Shape kShapes[] = {
    {"1024x1024x1024", 1, 1024, 1024, 1024, false, false},
    {"qkv/2048x384x1152", 1, 2048, 384, 1152, false, false},
    {"qkv/2048x384x1152T", 1, 2048, 384, 1152, false, true},
    {"fc/2048x384x1536", 1, 2048, 384, 1536, false, false},
    {"fc/2048x384x1536T", 1, 2048, 384, 1536, false, true},
    {"out/2048x1536x384", 1, 2048, 1536, 384, false, false},
    {"out/2048x1536x384T", 1, 2048, 1536, 384, false, true},
    {"proj/2048x384x384", 1, 2048, 384, 384, false, false},
    {"proj/2048x384x384T", 1, 2048, 384, 384, false, true},
    {"head/2048x384x256", 1, 2048, 384, 256, false, false},
    {"head_dX/2048x256x384T", 1, 2048, 256, 384, false, true},
    {"qkv_dX/2048x1152x384T", 1, 2048, 1152, 384, false, true},
    {"qkv_dW/384Tx2048x1152", 1, 384, 2048, 1152, true, false},
    {"fc_dW/384Tx2048x1536", 1, 384, 2048, 1536, true, false},
    {"out_dW/1536Tx2048x384", 1, 1536, 2048, 384, true, false},
    {"proj_dW/384Tx2048x384", 1, 384, 2048, 384, true, false},
    {"small/16x256x384", 1, 16, 256, 384, false, false},
    {"scores/48x256x64x256T", 48, 256, 64, 256, false, true},
    {"values/48x256x256x64", 48, 256, 256, 64, false, false},
};

static MatrixView place(ElementType type, int64_t rows, int64_t columns, bool transposed) {
  if (transposed)
    return {type, {rows * columns, 1, rows}};
  return {type, {rows * columns, columns, 1}};
}

static void runMatmul(benchmark::State &state, Shape shape, ElementType type, int threads) {
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
  Engine engine{Threads(threads)};
  auto plan = engine.planMatmul(spec);
  for (auto _ : state)
    plan->run(a.data(), b.data(), c.data(), nullptr);
  state.counters["GFLOP/s"] = benchmark::Counter(spec.flops() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(plan->describe());
}

static const bool registered = [] {
  for (ElementType type : {ElementType::f32, ElementType::bf16})
    for (int threads : {1, 2})
      for (const Shape &shape : kShapes) {
        std::string title =
            "matmul/" + std::string(name(type)) + "/threads:" + std::to_string(threads) + "/" + shape.name;
        benchmark::RegisterBenchmark(title.c_str(), runMatmul, shape, type, threads)
            ->UseRealTime()
            ->MinTime(0.2)
            ->Unit(benchmark::kMicrosecond);
      }
  return true;
}();
