//===- TensorExchange.h - tensors to and from Python ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tensors cross without a copy, by DLPack: whatever speaks it (torch, numpy,
// jax, our own) is wrapped where it lies, and ours are exported the same way.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_TENSOREXCHANGE_H
#define SEGUE_PYTHON_TENSOREXCHANGE_H

#include "segue/runtime/Tensor/Tensor.h"
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <optional>
#include <utility>

namespace segue::python {

/// Wraps memory of Python on `device`; the array lives as long as the tensor.
/// Only a `writable` tensor may be bound as a parameter. An array in the memory of the GPU that
/// `device` is waits for what `stream` has been given by now, a CUstream, or for the entry `behind`
/// of the compute queue, which does; the stream waits for its last use when it is let go. Throws
/// InvalidArgument for memory that is neither the CPU's nor the device's, and element types that
/// Segue lacks.
Tensor wrapArray(const DeviceRef &device, const nanobind::ndarray<nanobind::ro> &array, bool writable,
                 std::optional<uintptr_t> stream = std::nullopt, std::optional<uint64_t> behind = std::nullopt);

/// Returns the shape of an array, wherever it lies, and the name of its element type.
nanobind::tuple describeArray(const nanobind::ndarray<nanobind::ro> &array);

/// A tensor that is handed to others where it lies.
struct TensorThere {
  Tensor tensor;
};

/// Returns true if others can use it where it lies, in the memory of a GPU.
bool isThere(const Tensor &tensor);
/// Returns DLPack's type and number of the GPU that the tensor is on.
nanobind::tuple deviceOfView(const Tensor &tensor);
/// The tensor as an array where it lies, in the memory of a GPU. `stream` is DLPack's: what is
/// given to it from now on waits for the tensor, and the tensor's memory for what it is given
/// as long as the array lives. Throws InvalidArgument for tensors elsewhere.
nanobind::ndarray<nanobind::array_api> viewOnDevice(const Tensor &tensor, std::optional<intptr_t> stream);

/// Returns the bytes of the memory that tensors wrapped on `device` lie in; what several lie in
/// counts once.
uint64_t outsideBytes(const Device &device);

/// The tensor as an array over the same memory, kept alive by `owner`.
nanobind::ndarray<nanobind::array_api> exportTensor(const Tensor &tensor, nanobind::handle owner);

/// A DLPack capsule of the same: what `__dlpack__` gives, without the arguments and the object around it.
nanobind::object capsuleOf(const Tensor &tensor, nanobind::handle owner);

/// An array over the tensor's memory on the disk, which the system brings and drops by pages, and
/// true; where the tensor is elsewhere, or in a form that strides do not show, over a copy
/// on the device's disk, and false. Throws Unsupported for a device without a disk.
std::pair<nanobind::ndarray<nanobind::array_api>, bool> viewOnDisk(const Tensor &tensor);

/// An array of one byte that keeps `owner` alive: what stands for an object of
/// ours where a caller wants tensors. No other live array has its address.
nanobind::ndarray<nanobind::array_api> placeholderFor(nanobind::handle owner);

} // namespace segue::python

#endif // SEGUE_PYTHON_TENSOREXCHANGE_H
