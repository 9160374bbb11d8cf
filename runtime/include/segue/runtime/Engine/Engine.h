//===- Engine.h - what a device computes besides kernels --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The interface of a device's library. Programs and services compute on the memory of
// a device through it and through launches of kernels, and in no other way.
//
// It turns a matmul or an attention into a plan, once, when a program is prepared; the
// executor runs the plan at each submit. What needs no plan is asked for at once. Runs
// of plans and operations are calls of a body (Device.h): within one they may return
// before they are done, and their memory and arguments stay until then.
//
//   auto plan = device.engine().planMatmul(spec);   // when a program is prepared
//   plan->run(a, b, c, bias);                       // in a body, at each submit
//
// Any thread may make plans. All memory is the device's.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_ENGINE_H
#define SEGUE_RUNTIME_ENGINE_ENGINE_H

#include "segue/runtime/Engine/Attention.h"
#include "segue/runtime/Engine/LibraryCall.h"
#include "segue/runtime/Engine/LowBitForms.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/NonFinite.h"
#include "segue/runtime/Engine/QuantizedMatmul.h"
#include <cstdint>
#include <memory>

namespace segue::inline runtime {

class Engine {
public:
  virtual ~Engine() = default;

  /// Makes a plan for a spec without problem (findProblem() is empty). Equal specs give the
  /// same plan. May allocate and compile code, which takes microseconds to milliseconds.
  virtual std::shared_ptr<const MatmulPlan> planMatmul(const MatmulSpec &spec) = 0;
  virtual std::shared_ptr<const QuantizedMatmulPlan> planQuantizedMatmul(const QuantizedMatmulSpec &spec) = 0;
  virtual std::shared_ptr<const AttentionPlan> planAttention(const AttentionSpec &spec) = 0;
  virtual std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const AttentionGradSpec &spec) = 0;
  virtual std::shared_ptr<const LibraryPlan> planLibraryCall(const LibraryCallSpec &spec) = 0;

  /// Writes the lowest `patternBytes` (1, 2, 4 or 8) of `pattern` over and over to
  /// `bytes`, a multiple of them.
  virtual void fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) = 0;

  /// Does sum[i] += addend[i] for `count` numbers.
  virtual void add(float *sum, const float *addend, int64_t count) = 0;

  /// Adds the NaN and Inf of `rows`, the first of which begins at `data`, to `count` in
  /// the host's memory.
  virtual void countNonFinite(const NonFiniteRows &rows, const void *data, NonFiniteCount &count) = 0;

  /// Does data[i] *= factor for `count` numbers.
  virtual void scale(float *data, int64_t count, float factor) = 0;

  /// Rotates `count` rows of `columns` in place (LowBitForms.h).
  virtual void rotate(float *rows, int64_t count, int64_t columns) = 0;

  /// Makes rows of codes rows of their weight, in place (restoreRows).
  virtual void restore(const LowBitRows &rows) = 0;

  /// Returns how many plans of planQuantizedMatmul have run so far: products that read codes.
  virtual uint64_t fusedCalls() const = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_ENGINE_H
