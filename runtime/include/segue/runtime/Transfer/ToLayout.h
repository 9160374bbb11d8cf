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

/// Blocks until what was queued to read or write the tensor is done: whoever
/// owns wrapped memory may change it then.
void waitForUses(const Tensor &tensor);

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

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_TOLAYOUT_H
