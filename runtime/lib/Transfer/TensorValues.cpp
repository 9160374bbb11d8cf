//===- TensorValues.cpp - members of Tensor that move bytes ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tensors lie below the engine that moves their bytes; what writes or reads a value is
// defined here.
//
//===----------------------------------------------------------------------===//

#include "../Tensor/NullHandles.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

Tensor Tensor::zeros(const DeviceRef &device, TensorDesc desc) {
  Tensor tensor = empty(device, std::move(desc));
  device->transfer().fillZero(tensor);
  return tensor;
}

Tensor Tensor::scalar(const DeviceRef &device, float value) {
  Tensor tensor = empty(device, TensorDesc({}, ElementType::f32));
  device->transfer().writeScalar(tensor, &value, sizeof value);
  return tensor;
}

Tensor Tensor::scalar(const DeviceRef &device, int64_t value) {
  Tensor tensor = empty(device, TensorDesc({}, ElementType::i64));
  device->transfer().writeScalar(tensor, &value, sizeof value);
  return tensor;
}

double Tensor::item() const {
  requireGiven(*this, "Tensor::item");
  if (elementCount() != 1)
    throw Error(ErrorCode::InvalidArgument,
                desc().str() + " has " + std::to_string(elementCount()) + " elements; item() reads a tensor of one");
  Tensor host = toHost(*this);
  if (!device()->hasBytes())
    return 0; // after the time that it takes
  switch (element()) {
  case ElementType::f32:
    return *host.data<float>();
  case ElementType::f64:
    return *host.data<double>();
  case ElementType::bf16:
    return bf16ToFloat(*host.data<uint16_t>());
  case ElementType::f16:
    return f16ToFloat(*host.data<uint16_t>());
  case ElementType::i64:
    return double(*host.data<int64_t>());
  case ElementType::i32:
    return *host.data<int32_t>();
  case ElementType::i8:
    return *host.data<int8_t>();
  case ElementType::i1:
    return *host.data<uint8_t>() != 0;
  }
  return 0;
}

} // namespace segue::inline runtime
