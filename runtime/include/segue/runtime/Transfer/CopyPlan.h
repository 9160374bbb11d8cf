//===- CopyPlan.h - any layout to any layout in one address space -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A CopyPlan brings a tensor from one layout, storage and element type to
// another of the same shape, both in memory of this process. It is total: every
// pair of strides, tiles, storages and element types has a plan. Planned once,
// run many times.
//
//   CopyPlan plan(tensor.desc(), wanted);
//   if (int64_t row = plan.run(tensor.bytes(), memory, threads); row >= 0)
//     ... // row `row` was to be quantised and holds NaN or infinity
//
// Values: casts are those of the `cast` op (to a smaller float rounds to nearest
// even; float to integer drops the fraction and saturates, NaN becomes 0; to i1
// is "not zero"; integer to smaller integer wraps). A row storage is
// dequantised to f32 and rounded once, to integers to the nearest; whatever is
// quantised goes through f32 by the formulas of RowStorage.h, zero points 0.
// From a row storage to the same one, codes, scales and zero points move as
// they are, whatever the logical element types; only a row whose zero point is
// not 0 and has no place in the target is quantised again.
//
// Bytes: padding of tiles and the gap before the scales are zeroed; gaps between
// strided elements are left alone. A source may repeat elements (stride 0), a
// target may not.
//
// A plan is a value that may be copied cheaply and run by any number of threads
// at once, on memory that does not overlap.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TRANSFER_COPYPLAN_H
#define SEGUE_RUNTIME_TRANSFER_COPYPLAN_H

#include "segue/runtime/Layout/TensorDesc.h"
#include <cstddef>
#include <memory>

namespace segue::inline runtime {

enum class InstructionSet : int8_t;

class CopyPlan {
public:
  /// A Side holds what may differ between the two sides of a copy.
  struct Side {
    ElementType element = ElementType::f32;
    Layout layout;

    Side(ElementType element, Layout layout) : element(element), layout(std::move(layout)) {}
    Side(ElementType element, std::vector<int64_t> strides) : element(element), layout{.strides = std::move(strides)} {}
  };

  /// Throws LayoutMismatch if the shapes differ, InvalidArgument if a
  /// description is not valid or the target puts two elements in one place.
  /// Spaces, offsets and alignments do not matter here. With `most`, runs the
  /// loops for that instruction set at most.
  CopyPlan(const TensorDesc &source, const TensorDesc &target);
  CopyPlan(const TensorDesc &source, const TensorDesc &target, InstructionSet most);
  CopyPlan(std::span<const int64_t> shape, const Side &source, const Side &target);

  /// Copies from the first element at `source` to the first element at
  /// `target`. Uses up to `threads` threads of the pool where the size
  /// pays for them; the result does not depend on their number. Returns when
  /// all is written. Allocates nothing and throws nothing.
  ///
  /// Returns the first row that was quantised and holds an element that is NaN
  /// or infinite, or -1. Such rows are written as quantizeRow says.
  int64_t run(const void *source, void *target, int threads) const;

  /// Return the bytes of memory that a run has to touch: elements of the source (repeated
  /// ones once) with scales and zero points; elements of the target with padding, scales
  /// and zero points.
  uint64_t bytesRead() const;
  uint64_t bytesWritten() const;

  /// Returns true if a run is one copy of consecutive bytes.
  bool isContiguous() const;

  /// Return the descriptions of both sides, for a device that has loops of its own.
  const TensorDesc &source() const;
  const TensorDesc &target() const;

private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_COPYPLAN_H
