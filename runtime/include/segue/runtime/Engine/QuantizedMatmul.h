//===- QuantizedMatmul.h - product with a weight of codes ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Multiplies floats with a weight as a row or group storage holds it, W' = (q -
// zero point) * scale, without a float copy of the weight: codes are widened
// panel by panel in the cache. A linear layer takes both forms:
//
//   y  = x W'ᵀ + bias   of row storage: sums of x * (q - zero point) in f32,
//                       times the scale of the column behind the last term; of
//                       group storage: sums of x * W'. Then the bias, then one
//                       rounding to the result
//   dx = dy W'          (transposed) sums of dy * W' in f32, W' as dequantised
//
// x may be as narrow as the layer: columns of W that pad its rows are not read.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_QUANTIZEDMATMUL_H
#define SEGUE_RUNTIME_ENGINE_QUANTIZEDMATMUL_H

#include "segue/runtime/Layout/Layout.h"

namespace segue::inline runtime {

struct QuantizedMatmulSpec {
  /// The rows of x and of the result; may be 0.
  int64_t rows = 0;
  /// The weight is [out, in], its rows `codeStride` elements apart: a byte or
  /// half a byte each.
  int64_t out = 0, in = 0, codeStride = 0;
  StorageType storage = StorageType::Int8Row;
  bool hasZeroPoints = false;
  /// False: [rows, in] times Wᵀ gives [rows, out]. True: [rows, out] times W
  /// gives [rows, in].
  bool transposed = false;
  /// The element type of x, f32, bf16 or f16; and of the result, the same type or f32.
  /// Elements of a row are adjacent, rows xStride or yStride elements apart.
  ElementType x = ElementType::f32, y = ElementType::f32;
  /// A dense row that is added to each row of the result.
  bool hasBias = false;
  ElementType bias = ElementType::f32;
  int64_t xStride = 0, yStride = 0;

  int64_t depth() const { return transposed ? out : in; }
  int64_t columns() const { return transposed ? in : out; }
  double flops() const { return 2.0 * double(rows) * double(out) * double(in); }
  /// Returns why no engine can run this: a sentence. Empty if it can.
  std::string findProblem() const;

  bool operator==(const QuantizedMatmulSpec &) const = default;
};

/// The memory of a run: pointers to first elements, which are null for what the spec does without.
struct QuantizedMatmulArgs {
  const void *x = nullptr, *codes = nullptr;
  /// The scales: f32 [out], or bf16 [codeStride / group, out] of a group storage.
  const void *scales = nullptr;
  /// The zero points: f32 [out].
  const void *zeroPoints = nullptr;
  const void *bias = nullptr;
  void *y = nullptr;
};

/// A product made ready. Any thread may run it; runs of one engine wait for each other.
class QuantizedMatmulPlan {
public:
  virtual ~QuantizedMatmulPlan() = default;

  /// Computes y. Memory must not overlap. Blocks; does not allocate. The result
  /// does not depend on the number of threads.
  virtual void run(const QuantizedMatmulArgs &args) const = 0;

  virtual std::string describe() const = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_QUANTIZEDMATMUL_H
