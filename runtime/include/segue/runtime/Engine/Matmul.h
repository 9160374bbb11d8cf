//===- Matmul.h - batched matrix product ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A spec says what a matmul computes (MatmulSpec), and a plan runs it. The spec is the
// Matmul command of schemas/program.fbs without buffers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_MATMUL_H
#define SEGUE_RUNTIME_ENGINE_MATMUL_H

#include "segue/runtime/Layout/ElementType.h"
#include <array>
#include <string>

namespace segue::inline runtime {

/// One operand of a matmul: [batch, rows, columns].
struct MatrixView {
  ElementType element = ElementType::f32;
  /// Elements to step per batch, row and column; 0 repeats.
  std::array<int64_t, 3> strides = {0, 0, 1};

  bool operator==(const MatrixView &) const = default;
};

/// c[z, i, j] = sum over l of a[z, i, l] * b[z, l, j] (+ bias[j]) (+ c[z, i, j]
/// if accumulate), summed in f32, or in f64 where all are. a is [batch, m, k], b is [batch, k, n], c is
/// [batch, m, n]; extents may be 0 (k = 0 gives bias, or 0).
struct MatmulSpec {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  MatrixView a, b, c;
  /// A dense [n] of type `bias` is added to each row.
  bool hasBias = false;
  ElementType bias = ElementType::f32;
  /// Adds to what c holds instead of overwriting it.
  bool accumulate = false;

  /// Returns 2 * batch * m * n * k.
  double flops() const { return 2.0 * batch * m * n * k; }

  /// Returns why no engine can run this: a sentence to append to
  /// "matmul: ". Empty if it can. Element types are f64, or f32, bf16 or f16
  /// (a and b alike); c has unit column stride, rows that do not
  /// overlap, and strides that are not 0 where the extent is above 1.
  std::string findProblem() const;

  /// Returns the same product as one of more rows where the batch is that: all items share
  /// b, and the rows of a and c go on from one item to the next. Else returns this spec.
  MatmulSpec batchAsRows() const;

  bool operator==(const MatmulSpec &) const = default;
};

/// A matmul made ready: run it as often as you like. Made by Engine; equal
/// specs share one plan. Any thread may run it; runs of one engine's plans wait
/// for each other.
class MatmulPlan {
public:
  virtual ~MatmulPlan() = default;

  /// Computes c from a, b and, if the spec has one, bias (else null). Pointers
  /// are to the first elements. c must not overlap the others. Blocks on a processor; in a
  /// body of a device with streams it may return before that is done (Engine.h). Allocates
  /// nothing, but for a workspace of a GPU's queue. The result is the same at each run.
  virtual void run(const void *a, const void *b, void *c, const void *bias) const = 0;

  /// Returns how the work is done, for logs and benchmarks: "onednn rows x2".
  virtual std::string describe() const = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_MATMUL_H
