//===- ToLayout.h - the one operation that moves bytes ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// toLayout brings a tensor to a layout and does nothing if it is there. A
// CopyPlan is its inner half: one strided view into another of the same shape,
// casting on the way, planned once and run many times.
//
// Casts are those of the `cast` op: to a smaller float rounds to nearest even;
// float to integer drops the fraction and saturates (NaN becomes 0); to i1 is
// "not zero"; from i1 is 0 or 1; integer to smaller integer wraps.
//
// Tiles and row storages have no kernels on `cpu` yet: asking for them is an
// Unsupported error.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TRANSFER_TOLAYOUT_H
#define SEGUE_RUNTIME_TRANSFER_TOLAYOUT_H

#include "segue/runtime/Tensor/Tensor.h"

namespace segue::inline runtime {

/// The equality of layouts that decides elision, for a tensor and the layout
/// wanted of it on its own device. No side effect.
bool hasLayout(const Tensor &tensor, const Layout &layout);

/// A tensor with the shape of `tensor` and the element type and layout of
/// `desc`, on `device`. The same handle if nothing is to be done (no copy);
/// otherwise new storage, pending where the device works asynchronously. May
/// narrow the element type. Throws LayoutMismatch if the shapes differ,
/// Unsupported for a space that the device lacks, DeviceOom; `tensor` is never
/// changed. See TransferEngine for more control.
Tensor toLayout(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc);

/// The same values in their logical element type, dense in memory of the host,
/// which may read them at once: blocks until they are there. Throws the error
/// of a copy or program that should have written them.
Tensor toHost(const Tensor &tensor);

/// Blocks until the tensor is written. Throws the error of what should have
/// written it, or UseAfterFree.
void wait(const Tensor &tensor);

/// A copy in new storage, whether needed or not.
Tensor copyTo(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc);

/// Copies `source` over the whole of `target`, which has the same shape and
/// any element type and layout. Throws LayoutMismatch, InvalidArgument for
/// read-only memory.
void copyInto(const Tensor &source, const Tensor &target);

/// False: handles of the caller do not need the bytes any more once the next
/// program has read them; they are freed then.
void setRetain(const Tensor &tensor, bool retain);

/// Gives the storage up: the next program that takes the tensor may overwrite
/// it or use it for an output. Does nothing but count where somebody else holds
/// the storage too, and returns false.
bool donate(const Tensor &tensor);

/// One copy between two strided views of one shape, decided at construction:
/// dimensions merged and ordered by the strides of the target, then a straight
/// copy, a blocked transpose or a general walk.
class CopyPlan {
public:
  struct Side {
    ElementType element = ElementType::f32;
    std::vector<int64_t> strides;
  };

  CopyPlan(std::span<const int64_t> shape, const Side &source, const Side &target);

  /// Copies. The two must not overlap. Uses up to `threads` threads of the
  /// OpenMP pool where the size pays for them. Allocates nothing.
  void run(const void *source, void *target, int threads) const;

private:
  using RowKernel = void (*)(const std::byte *source, int64_t sourceStep, std::byte *target, int64_t targetStep,
                             int64_t count);
  struct Dim {
    int64_t extent, sourceStep, targetStep; // steps in bytes
  };

  std::vector<Dim> outer_;
  Dim inner_{1, 0, 0};
  int64_t rows_ = 1;
  uint64_t bytes_ = 0;
  RowKernel kernel_ = nullptr;
  bool blocked_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_TOLAYOUT_H
