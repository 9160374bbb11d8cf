//===- LowBitForms.h - rotation and low rank beside 4-bit codes -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two things make a weight in 4 bits better. Its codes may be those of W R,
// where R has the Hadamard matrix of order 256 on its diagonal as often as it
// fits in the columns of W:
//
//   R[256 b + i, 256 b + j] = (-1)^popcount(i & j) / 16
//
// R is its own inverse. It spreads an outlier over 256 columns, so that the
// scales of groups have no outliers to make room for. And a product of two thin
// matrices may be added to what the codes are: W' = Q R + A B.
//
// A product needs W' made anew, or takes x to the codes: x W'ᵀ = (x R) Qᵀ +
// (x Bᵀ) Aᵀ. All sums are made in one order in f32: the same bits everywhere.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_LOWBITFORMS_H
#define SEGUE_RUNTIME_ENGINE_LOWBITFORMS_H

#include <cstdint>
#include <span>

namespace segue::inline runtime {

/// The number of columns that are rotated together.
inline constexpr int64_t rotationBlock = 256;

/// Returns true if a weight with so many columns can be rotated.
constexpr bool canRotate(int64_t columns) { return columns > 0 && columns % rotationBlock == 0; }

/// Rotates rows in place; their length is a multiple of rotationBlock.
void rotateRows(std::span<float> rows);

/// A weight [count, columns] of f32 that holds Q, and what makes W' of it.
struct LowBitRows {
  float *rows = nullptr;
  int64_t count = 0, columns = 0;
  bool rotated = false;
  /// `a` is [count, rank] and `b` [rank, columns]; without a rank both may be null.
  int64_t rank = 0;
  const float *a = nullptr, *b = nullptr;
};

/// Turns rows of Q into rows of W' in place. `rows` are the rows from `first` on of a
/// weight of `columns`. `a` is [out, rank] and `b` [rank, columns]; without a rank both may
/// be null.
void restoreRows(bool rotated, int64_t rank, const float *a, const float *b, int64_t first, int64_t columns,
                 std::span<float> rows);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_LOWBITFORMS_H
