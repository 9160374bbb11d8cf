//===- RunConverter.h - converts runs of elements ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Brings elements that lie side by side from one stored form to another by at
// most two kernels of ElementKernels, with a block of f32 (or i64) on the stack
// between them. The caller, CopyPlan, knows where the elements lie.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_TRANSFER_RUNCONVERTER_H
#define SEGUE_RUNTIME_LIB_TRANSFER_RUNCONVERTER_H

#include "../Tensor/ElementKernels.h"
#include "segue/runtime/Layout/Layout.h"
#include <cstddef>

namespace segue::inline runtime {

/// The scales and zero points of the rows of both sides; null where there are
/// none. While rows are scanned, targetScales holds the bits of the largest
/// magnitude seen so far.
struct RowParameters {
  const float *sourceScales = nullptr, *sourceZeroPoints = nullptr;
  float *targetScales = nullptr;
};

/// Maps elements to rows: element i of a run belongs to row first + i * step.
struct RowIndex {
  int64_t first = 0, step = 0;
};

class RunConverter {
public:
  enum class Kind : uint8_t { Move, Cast, Dequantize, Quantize, Requantize };

  /// With `dropsZeroPoints` the source has zero points and the target no place for them, so
  /// that rows of the same storage may have to be quantised again.
  RunConverter(ElementType source, StorageType sourceStorage, ElementType target, StorageType targetStorage,
               bool dropsZeroPoints, const ElementKernels &kernels);

  Kind kind() const { return kind_; }
  /// Returns true if the rows must be scanned for their scales first.
  bool quantizes() const { return kind_ == Kind::Quantize || kind_ == Kind::Requantize; }
  bool usesRows() const { return kind_ == Kind::Dequantize || quantizes(); }
  /// Requantises only rows whose zero point is not 0; the others keep codes and
  /// scale.
  bool keepsRows() const { return keepsRows_; }

  /// Writes `source` to `target` in the other form.
  void run(int64_t count, const std::byte *source, std::byte *target, const RowParameters &rows, RowIndex row) const;

  /// Raises the bits in rows.targetScales to the largest magnitudes of a run.
  /// `finite` leaves out what is not; `shared` rows may be raised by several
  /// threads at once.
  void scan(int64_t count, const std::byte *source, const RowParameters &rows, RowIndex row, bool finite,
            bool shared) const;

private:
  /// Returns the source as f32: in place if it is, otherwise in `buffer`.
  const float *load(int64_t count, const std::byte *source, const RowParameters &rows, RowIndex row,
                    float *buffer) const;
  void encode(int64_t count, const float *values, const RowParameters &rows, RowIndex row, uint8_t *codes) const;
  void requantize(int64_t count, const std::byte *source, const RowParameters &rows, RowIndex row,
                  uint8_t *codes) const;

  const ElementKernels *kernels_;
  Kind kind_ = Kind::Move;
  bool keepsRows_ = false, throughInt64_ = false, throughDouble_ = false;
  uint8_t sourceBytes_ = 0, targetBytes_ = 0;
  /// Indices into ElementKernels::decode and encode.
  uint8_t decoder_ = 0, encoder_ = 0;
  void (*toFloat_)(int64_t, const void *, float *) = nullptr;
  void (*fromFloat_)(int64_t, const float *, void *) = nullptr;
  void (*toDouble_)(int64_t, const void *, double *) = nullptr;
  void (*fromDouble_)(int64_t, const double *, void *) = nullptr;
  void (*toInt64_)(int64_t, const void *, int64_t *) = nullptr;
  void (*fromInt64_)(int64_t, const int64_t *, void *) = nullptr;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_TRANSFER_RUNCONVERTER_H
