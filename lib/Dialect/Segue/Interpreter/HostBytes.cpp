//===- HostBytes.cpp - tensors as kernels see them ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/Interpreter/HostBytes.h"
#include "llvm/ADT/APFloat.h"
#include <cstring>

using namespace mlir;
using namespace segue;

size_t segue::bytesOfElement(Type element) { return (element.getIntOrFloatBitWidth() + 7) / 8; }

std::vector<char> segue::toBytes(const HostTensor &tensor) {
  Type element = tensor.type.getElementType();
  size_t size = bytesOfElement(element);
  std::vector<char> bytes(tensor.size() * size);
  for (int64_t at = 0; at < tensor.size(); ++at) {
    uint64_t raw;
    if (auto type = dyn_cast<FloatType>(element)) {
      llvm::APFloat value(tensor.floats[at]);
      bool inexact;
      value.convert(type.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &inexact);
      raw = value.bitcastToAPInt().getZExtValue();
    } else {
      raw = static_cast<uint64_t>(tensor.ints[at]);
    }
    std::memcpy(bytes.data() + at * size, &raw, size);
  }
  return bytes;
}

HostTensor segue::fromBytes(RankedTensorType type, const char *bytes) {
  HostTensor tensor = HostTensor::filled(type);
  Type element = type.getElementType();
  size_t size = bytesOfElement(element);
  for (int64_t at = 0; at < tensor.size(); ++at) {
    uint64_t raw = 0;
    std::memcpy(&raw, bytes + at * size, size);
    if (auto floatType = dyn_cast<FloatType>(element)) {
      llvm::APFloat value(floatType.getFloatSemantics(), llvm::APInt(floatType.getWidth(), raw));
      bool inexact;
      value.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &inexact);
      tensor.floats[at] = value.convertToDouble();
    } else {
      tensor.ints[at] = element.isInteger(1) ? raw != 0 : llvm::SignExtend64(raw, element.getIntOrFloatBitWidth());
    }
  }
  return tensor;
}
