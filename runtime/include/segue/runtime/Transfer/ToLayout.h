//===- ToLayout.h - the one operation that moves bytes ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// toLayout brings a tensor to a layout and does nothing if it is there. Its
// inner half, a CopyPlan, converts any layout into any other in one address
// space, and says what becomes of the values.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TRANSFER_TOLAYOUT_H
#define SEGUE_RUNTIME_TRANSFER_TOLAYOUT_H

#include "segue/runtime/Tensor/Tensor.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include <functional>
#include <span>

namespace segue::inline runtime {

/// Returns whether `tensor` has `layout` on its own device,
/// by the equality that decides elision. Has no side effect.
bool hasLayout(const Tensor &tensor, const Layout &layout);

/// Returns a tensor with the shape of `tensor` and the element type and
/// layout of `desc`, on `device`. Returns the same handle, without a copy,
/// if nothing is to be done; otherwise new storage, which is pending on a
/// device with queues. May narrow the element type. Throws LayoutMismatch
/// if the shapes differ, Unsupported for a space that the device lacks, and
/// DeviceOom; never changes `tensor`. TransferEngine gives more control.
Tensor toLayout(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc);

/// Returns the values in their logical element type, dense in the host's
/// memory. Blocks until they are there, so that the host may read them at
/// once. Throws the error of a copy or program that should have written them.
Tensor toHost(const Tensor &tensor);

/// Calls `take` with the values of a tensor in their logical element type, dense and in order: with all of them at once
/// where the host can read them, and otherwise, where they lie dense, with a mebibyte at a time, so that no more of the
/// tensor is in the host's memory. Blocks. Throws as toHost does, and what `take` throws.
void forEachPiece(const Tensor &tensor, const std::function<void(std::span<const std::byte> bytes)> &take);

/// Blocks until the tensor is written. Throws the error of what should have
/// written it, or UseAfterFree.
void wait(const Tensor &tensor);

/// Blocks until what was queued to read or write the tensor is done: whoever
/// owns wrapped memory may change it then.
void waitForUses(const Tensor &tensor);

/// Returns a copy in new storage, also where none is needed.
Tensor copyTo(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc);

/// Copies `source` over the whole of `target`, which has the same shape and
/// any element type and layout. Throws LayoutMismatch, InvalidArgument for
/// read-only memory.
void copyInto(const Tensor &source, const Tensor &target);

/// With `retain` false, the bytes are freed once the next program
/// has read them, although the caller still holds handles.
void setRetain(const Tensor &tensor, bool retain);

/// Gives the storage up: the next program that takes the tensor may overwrite
/// it or use it for an output. Does nothing but count where somebody else holds
/// the storage too, and returns false.
bool donate(const Tensor &tensor);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_TOLAYOUT_H
