//===- CudaEngine.h - what a GPU computes besides kernels -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An engine that fills memory by the driver. Everything else is Unsupported, with a
// message that says so: the device runs programs of kernels alone.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_CUDAENGINE_H
#define SEGUE_LIB_CUDA_CUDAENGINE_H

#include "Streams.h"
#include "segue/runtime/Engine/Engine.h"

namespace segue::inline runtime::cuda {

class CudaEngine final : public Engine {
public:
  CudaEngine(std::string device, const Context &context, Streams &streams)
      : device_(std::move(device)), context_(context), streams_(streams) {}

  std::shared_ptr<const MatmulPlan> planMatmul(const MatmulSpec &) override { refuse("matmul"); }
  std::shared_ptr<const QuantizedMatmulPlan> planQuantizedMatmul(const QuantizedMatmulSpec &) override {
    refuse("matmul with codes");
  }
  std::shared_ptr<const AttentionPlan> planAttention(const AttentionSpec &) override { refuse("attention"); }
  std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const AttentionGradSpec &) override {
    refuse("the gradient of attention");
  }
  std::shared_ptr<const LibraryPlan> planLibraryCall(const LibraryCallSpec &) override { refuse("library calls"); }
  void fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) override;
  void add(float *, const float *, int64_t) override { refuse("sums of gradients"); }
  void countNonFinite(const NonFiniteRows &, const void *, NonFiniteCount &) override { refuse("counts of NaN"); }
  void scale(float *, int64_t, float) override { refuse("scaling of gradients"); }
  void rotate(float *, int64_t, int64_t) override { refuse("rotation of slabs"); }
  void restore(const LowBitRows &) override { refuse("low-rank products of slabs"); }
  uint64_t fusedCalls() const override { return 0; }

private:
  [[noreturn]] void refuse(const char *what) const;

  std::string device_;
  const Context &context_;
  Streams &streams_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_CUDAENGINE_H
