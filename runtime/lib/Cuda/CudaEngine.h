//===- CudaEngine.h - what a GPU computes besides kernels -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An engine that fills memory by the driver, multiplies by cuBLASLt, and by kernels of the
// runtime multiplies with codes and by groups, convolves, attends, changes and counts numbers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_CUDAENGINE_H
#define SEGUE_LIB_CUDA_CUDAENGINE_H

#include "AttentionKernels.h"
#include "LibraryCalls.h"
#include "QuantizedProducts.h"
#include "segue/runtime/Engine/Engine.h"

namespace segue::inline runtime::cuda {

class CudaEngine final : public Engine {
public:
  CudaEngine(std::string device, BuiltinKernels &kernels, Products &products, DeviceMemory &memory,
             const ProductOptions &options)
      : device_(std::move(device)), kernels_(kernels), products_(products),
        quantized_(kernels, products, memory, options), libraryCalls_(device_, kernels, products, memory),
        isTf32_(options.tf32) {}

  /// Returns the bytes that plans will take, as far as they are known (Device::bytesForPrograms).
  uint64_t bytesToTake() const {
    return products_.bytesToTake() + quantized_.bytesToTake() + libraryCalls_.bytesToTake();
  }

  std::shared_ptr<const MatmulPlan> planMatmul(const MatmulSpec &spec) override { return products_.plan(spec); }
  std::shared_ptr<const QuantizedMatmulPlan> planQuantizedMatmul(const QuantizedMatmulSpec &spec) override {
    return quantized_.plan(spec);
  }
  std::shared_ptr<const AttentionPlan> planAttention(const AttentionSpec &spec) override {
    return cuda::planAttention(device_, kernels_, spec, isTf32_);
  }
  std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const AttentionGradSpec &spec) override {
    return cuda::planAttentionGrad(device_, kernels_, spec, isTf32_);
  }
  std::shared_ptr<const LibraryPlan> planLibraryCall(const LibraryCallSpec &spec) override {
    return libraryCalls_.plan(spec);
  }
  void fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) override;
  void add(float *sum, const float *addend, int64_t count) override;
  void countNonFinite(const NonFiniteRows &rows, const void *data, NonFiniteCount &count) override;
  void scale(float *data, int64_t count, float factor) override;
  void rotate(float *rows, int64_t count, int64_t columns) override;
  void restore(const LowBitRows &rows) override;
  uint64_t fusedCalls() const override { return quantized_.calls(); }

private:
  std::string device_;
  BuiltinKernels &kernels_;
  Products &products_;
  QuantizedProducts quantized_;
  LibraryCalls libraryCalls_;
  bool isTf32_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_CUDAENGINE_H
