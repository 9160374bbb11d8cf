//===- NullHandles.h - null arguments at the door ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A default Tensor, DeviceRef or function holds nothing, and callers hand them
// over by mistake. What takes one from outside asks here before it looks into it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_TENSOR_NULLHANDLES_H
#define SEGUE_RUNTIME_LIB_TENSOR_NULLHANDLES_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"

namespace segue::inline runtime {

/// Returns `device`; throws InvalidArgument if it is null. `who` asks, as in "toLayout".
inline const DeviceRef &requireGiven(const DeviceRef &device, std::string_view who) {
  if (!device)
    throw Error(ErrorCode::InvalidArgument, std::string(who) + ": the device is null; open one with Device::open");
  return device;
}

/// Returns `tensor`; throws InvalidArgument if it is none.
inline const Tensor &requireGiven(const Tensor &tensor, std::string_view who) {
  if (!tensor)
    throw Error(ErrorCode::InvalidArgument, std::string(who) + ": a null tensor was given, one that holds no values");
  return tensor;
}

/// Returns `function`; throws InvalidArgument if there is none to call.
template <typename Signature>
const std::function<Signature> &requireGiven(const std::function<Signature> &function, std::string_view who) {
  if (!function)
    throw Error(ErrorCode::InvalidArgument, std::string(who) + ": an empty function was given");
  return function;
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_TENSOR_NULLHANDLES_H
