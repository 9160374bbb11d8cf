//===- QuantizedMatmulBench.cpp - products of codes -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// y = x W'ᵀ and dx = dy W' with W' in int8_row and int4_group64 storage, beside
// dequantising it and then multiplying, and beside the same product with W' in
// f32: at many rows widening costs little, at few rows the weight's bytes are
// what counts.
//
//   segue-bench-engine --benchmark_filter=codes
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include <array>
#include <benchmark/benchmark.h>
#include <string>
#include <vector>

using namespace segue;

static constexpr int64_t extent = 2048;

static TensorDesc weightOf(StorageType storage) { return {{extent, extent}, ElementType::f32, {.storage = storage}}; }

static void runFused(benchmark::State &state, int64_t rows, bool transposed, StorageType storage) {
  QuantizedMatmulSpec spec{.rows = rows, .out = extent, .in = extent, .codeStride = extent, .storage = storage};
  spec.transposed = transposed;
  spec.xStride = spec.yStride = extent;
  std::vector<float> x(size_t(rows * extent), 0.01f), y(x.size());
  LayoutParts parts = weightOf(storage).parts();
  // Codes 3 or 0x33, scales of a small number, whatever their type.
  std::vector<uint8_t> weight(parts.bytes, 0x33);
  CpuEngine engine{Threads(1)};
  auto plan = engine.planQuantizedMatmul(spec);
  for (auto _ : state)
    plan->run({.x = x.data(), .codes = weight.data(), .scales = weight.data() + parts.scales, .y = y.data()});
  state.counters["weight_MiB"] = double(parts.bytes) / (1 << 20);
  state.SetLabel(plan->describe());
}

/// `storage`: what is dequantised before each product; Element: nothing.
static void runDense(benchmark::State &state, int64_t rows, bool transposed, StorageType storage) {
  MatmulSpec spec{.m = rows, .n = extent, .k = extent};
  spec.a.strides = spec.c.strides = {0, extent, 1};
  spec.b.strides = transposed ? std::array<int64_t, 3>{0, extent, 1} : std::array<int64_t, 3>{0, 1, extent};
  std::vector<float> x(size_t(rows * extent), 0.01f), y(x.size()), w(size_t(extent * extent), 0.5f);
  std::vector<uint8_t> weight(weightOf(storage).spanBytes(), 0x33);
  CopyPlan dequantize(weightOf(storage), weightOf(StorageType::Element));
  CpuEngine engine{Threads(1)};
  auto plan = engine.planMatmul(spec);
  for (auto _ : state) {
    if (isQuantized(storage))
      dequantize.run(weight.data(), w.data(), 1);
    plan->run(x.data(), w.data(), y.data(), nullptr);
  }
  state.counters["weight_MiB"] = double(weight.size() * isQuantized(storage) + 4 * w.size()) / (1 << 20);
  state.SetLabel(plan->describe());
}

static const bool quantizedRegistered = [] {
  for (int64_t rows : {1, 16, 512})
    for (bool transposed : {false, true})
      for (StorageType storage : {StorageType::Element, StorageType::Int8Row, StorageType::Int4Group64})
        for (bool fused : {true, false}) {
          if (fused && !isQuantized(storage))
            continue;
          std::string title = std::string("codes/") + (transposed ? "dx" : "y") + "/rows:" + std::to_string(rows) +
                              "/2048x2048/" + std::string(name(storage)) +
                              (fused                  ? "/fused"
                               : isQuantized(storage) ? "/dequantised"
                                                      : "/f32");
          benchmark::RegisterBenchmark(title.c_str(), fused ? runFused : runDense, rows, transposed, storage)
              ->UseRealTime()
              ->MinTime(0.2)
              ->Unit(benchmark::kMicrosecond);
        }
  return true;
}();
