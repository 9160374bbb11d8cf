//===- Int4Group.h - rows in 4 bits with a scale per group ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The formulas of the scheme int4_group. A group of 32 or 64 columns of a row
// shares one scale, which is rounded to bf16 before anything is divided by it:
//
//   scale = bf16(absmax / 7), or 1 where that is no normal number
//   q     = round_half_even(w / scale), in [-8, 7]
//   w'    = q * scale                       in f32
//
// Two codes lie in a byte, the one of the even column in the low half. Pure
// functions over memory of the caller.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_INT4GROUP_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_INT4GROUP_H

#include "segue/runtime/Services/SquareQ/SlabForm.h"
#include "segue/runtime/Tensor/RowStorage.h"

namespace segue::inline runtime {

/// Quantises one row, whose length is a multiple of `group`. `codes` holds
/// half as many bytes, `scales` one bf16 per group. Returns the first column
/// that is NaN or infinite, or -1; such a column counts as 0.
int64_t quantizeInt4Row(std::span<const float> row, int64_t group, std::span<std::byte> codes,
                        std::span<uint16_t> scales, ScaleSearch search = ScaleSearch::AbsMax);

/// The inverse. `row` may be shorter than what the codes hold: padding.
void dequantizeInt4Row(std::span<const std::byte> codes, std::span<const uint16_t> scales, int64_t group,
                       std::span<float> row);

/// Rounds f32 values to f32, bf16 or f16, at `to`.
void storeFloats(std::span<const float> values, ElementType element, std::byte *to);

/// A whole weight as it is stored, in memory that the caller keeps: codes
/// [out, padded / 2] and scales [padded / group, out].
class Int4Weight {
public:
  Int4Weight(const SlabSize &size, int64_t group, const std::byte *codes, const std::byte *scales)
      : size_(size), group_(group), codes_(codes), scales_(scales) {}

  int64_t rows() const { return size_.out; }
  /// Row `row` without its padding, each value rounded once. Any thread;
  /// allocates nothing.
  void dequantizeRow(int64_t row, ElementType element, std::byte *to) const;

private:
  SlabSize size_;
  int64_t group_;
  const std::byte *codes_, *scales_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_INT4GROUP_H
