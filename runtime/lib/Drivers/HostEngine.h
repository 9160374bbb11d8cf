//===- HostEngine.h - the engine of devices made of threads -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_HOSTENGINE_H
#define SEGUE_LIB_DRIVERS_HOSTENGINE_H

#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Engine/Engine.h"

namespace segue::inline runtime {

/// Does everything at once, on the threads of this process.
class HostEngine final : public Engine {
public:
  explicit HostEngine(Threads threads) : cpu_(threads) {}

  const Threads &threads() const { return cpu_.threads(); }

  std::shared_ptr<const MatmulPlan> planMatmul(const MatmulSpec &spec) override { return cpu_.planMatmul(spec); }
  std::shared_ptr<const QuantizedMatmulPlan> planQuantizedMatmul(const QuantizedMatmulSpec &spec) override {
    return cpu_.planQuantizedMatmul(spec);
  }
  std::shared_ptr<const AttentionPlan> planAttention(const AttentionSpec &spec) override {
    return cpu_.planAttention(spec);
  }
  std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const AttentionGradSpec &spec) override {
    return cpu_.planAttentionGrad(spec);
  }
  std::shared_ptr<const LibraryPlan> planLibraryCall(const LibraryCallSpec &spec) override {
    return cpu_.planLibraryCall(spec);
  }
  void fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) override;
  void add(float *sum, const float *addend, int64_t count) override;
  void countNonFinite(const NonFiniteRows &rows, const void *data, NonFiniteCount &count) override;
  void scale(float *data, int64_t count, float factor) override;
  void rotate(float *rows, int64_t count, int64_t columns) override;
  void restore(const LowBitRows &rows) override;
  uint64_t fusedCalls() const override { return cpu_.fusedCalls(); }

private:
  CpuEngine cpu_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_HOSTENGINE_H
