//===- AttentionBench.cpp - time of attention and its derivative ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Causal attention of config S: q, k and v lie side by side in the result of
// one projection, [batch, rows, 3, heads, dim], as in a GPT block. GFLOP/s count
// the scores below the diagonal only.
//
//   segue-bench-engine --benchmark_filter=attention
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/CpuEngine.h"
#include <benchmark/benchmark.h>
#include <cmath>
#include <string>
#include <vector>

using namespace segue;

static AttentionGradSpec describe(int64_t batch, int64_t heads, int64_t rows, int64_t dim, float dropout) {
  AttentionGradSpec grad;
  AttentionSpec &spec = grad.forward;
  spec.batch = batch, spec.heads = heads, spec.rows = spec.keys = rows, spec.dim = dim;
  spec.causal = true;
  spec.dropout = dropout;
  spec.scale = 1 / std::sqrt(static_cast<float>(dim));
  int64_t width = heads * dim;
  spec.q = spec.k = spec.v = grad.gradQ = grad.gradK = grad.gradV = {rows * 3 * width, dim, 3 * width, 1};
  spec.out = grad.gradOut = {rows * width, dim, width, 1};
  return grad;
}

static void runAttention(benchmark::State &state, int threads, bool backward, float dropout) {
  int64_t batch = 8, heads = 6, rows = 256, dim = 64, width = heads * dim;
  AttentionGradSpec spec = describe(batch, heads, rows, dim, dropout);
  std::vector<float> qkv(batch * rows * 3 * width), gradQkv(qkv.size()), out(batch * rows * width), gradOut(out.size()),
      lse(batch * heads * rows);
  for (size_t i = 0; i < qkv.size(); ++i)
    qkv[i] = static_cast<float>(i * 7919 % 1001) / 500 - 1;
  for (size_t i = 0; i < gradOut.size(); ++i)
    gradOut[i] = static_cast<float>(i * 6007 % 997) / 500 - 1;
  float *q = qkv.data(), *k = q + width, *v = k + width, *gradQ = gradQkv.data();
  int64_t seed = 1, step = 0;
  CpuEngine engine{Threads(threads)};
  auto forward = engine.planAttention(spec.forward);
  auto derivative = engine.planAttentionGrad(spec);
  AttentionArgs args{q, k, v, nullptr, &seed, &step, out.data(), lse.data()};
  AttentionGradArgs gradArgs{
      q, k, v, nullptr, &seed, &step, out.data(), lse.data(), gradOut.data(), gradQ, gradQ + width, gradQ + 2 * width};
  forward->run(args);
  for (auto _ : state) {
    if (backward)
      derivative->run(gradArgs);
    else
      forward->run(args);
  }
  double scores = static_cast<double>(batch * heads * rows) * (rows + 1) / 2;
  state.counters["GFLOP/s"] =
      benchmark::Counter((backward ? 10 : 4) * dim * scores * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

static const bool attentionRegistered = [] {
  for (bool backward : {false, true})
    for (float dropout : {0.0f, 0.1f})
      for (int threads : {1, 2}) {
        std::string title = std::string(backward ? "attention_grad" : "attention") + (dropout ? "/dropout" : "") +
                            "/f32/threads:" + std::to_string(threads) + "/8x6x256x64";
        benchmark::RegisterBenchmark(title.c_str(), runAttention, threads, backward, dropout)
            ->UseRealTime()
            ->MinTime(0.2)
            ->Unit(benchmark::kMicrosecond);
      }
  return true;
}();
