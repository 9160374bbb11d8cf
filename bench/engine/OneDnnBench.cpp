//===- OneDnnBench.cpp - GFLOP/s of oneDNN on the same products -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the engine's f32 kernels are compared with: oneDNN's matmul primitive on
// plain operands, and its sgemm, split over threads as oneDNN does.
//
//   segue-bench-engine --benchmark_filter=f32/threads:1
//       --benchmark_enable_random_interleaving=true --benchmark_repetitions=3
//
//===----------------------------------------------------------------------===//

#include "MatmulShapes.h"
#include <benchmark/benchmark.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

using namespace segue::bench;

static void setRate(benchmark::State &state, const MatmulShape &shape) {
  double flops = 2.0 * shape.batch * shape.m * shape.n * shape.k;
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

static void runPrimitive(benchmark::State &state, MatmulShape shape, int threads) {
  omp_set_num_threads(threads);
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  auto describe = [](int64_t rows, int64_t columns, bool transposed) {
    dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1};
    return dnnl::memory::desc({rows, columns}, dnnl::memory::data_type::f32, strides);
  };
  auto a = describe(shape.m, shape.k, shape.transposedA), b = describe(shape.k, shape.n, shape.transposedB),
       c = describe(shape.m, shape.n, false);
  std::vector<float> left(shape.m * shape.k, 0.5f), right(shape.k * shape.n, 0.25f), result(shape.m * shape.n);
  dnnl::matmul primitive({dnnl::matmul::desc(a, b, c), engine});
  std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, {a, engine, left.data()}},
                                                  {DNNL_ARG_WEIGHTS, {b, engine, right.data()}},
                                                  {DNNL_ARG_DST, {c, engine, result.data()}}};
  for (auto _ : state) {
    primitive.execute(stream, arguments);
    stream.wait();
  }
  setRate(state, shape);
}

static void runSgemm(benchmark::State &state, MatmulShape shape, int threads) {
  omp_set_num_threads(threads);
  std::vector<float> left(shape.m * shape.k, 0.5f), right(shape.k * shape.n, 0.25f), result(shape.m * shape.n);
  for (auto _ : state)
    dnnl_sgemm(shape.transposedA ? 'T' : 'N', shape.transposedB ? 'T' : 'N', shape.m, shape.n, shape.k, 1, left.data(),
               shape.transposedA ? shape.m : shape.k, right.data(), shape.transposedB ? shape.k : shape.n, 0,
               result.data(), shape.n);
  setRate(state, shape);
}

static const bool oneDnnRegistered = [] {
  for (int threads : {1, 2})
    for (const MatmulShape &shape : kMatmulShapes) {
      if (shape.batch != 1)
        continue;
      std::string title = "/f32/threads:" + std::to_string(threads) + "/" + shape.name;
      auto add = [&](const char *name, auto run) {
        benchmark::RegisterBenchmark((name + title).c_str(), run, shape, threads)
            ->UseRealTime()
            ->MinTime(0.2)
            ->Unit(benchmark::kMicrosecond);
      };
      add("onednn_primitive", &runPrimitive);
      add("onednn_sgemm", &runSgemm);
    }
  return true;
}();
