//===- ConstantPool.cpp - the constants of a binary -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ConstantPool.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue;

static void append(std::string &bytes, const APInt &value, uint64_t size) {
  uint64_t bits = value.getZExtValue();
  for (uint64_t i = 0; i < size; ++i)
    bytes.push_back(static_cast<char>(bits >> (8 * i)));
}

std::string segue::elementToBytes(Attribute element) {
  std::string bytes;
  auto typed = cast<TypedAttr>(element);
  uint64_t size = prog::elementBytes(typed.getType()).value_or(0);
  if (auto number = dyn_cast<FloatAttr>(element))
    append(bytes, number.getValue().bitcastToAPInt(), size);
  else
    append(bytes, cast<IntegerAttr>(element).getValue(), size);
  return bytes;
}

std::optional<std::string> segue::elementsToBytes(ElementsAttr elements, bool splat) {
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(elements)) {
    // Blobs are little-endian on the machines we compile on, one byte per i1.
    AsmResourceBlob *blob = resource.getRawHandle().getBlob();
    if (!blob)
      return std::nullopt;
    return std::string(blob->getData().data(), blob->getData().size());
  }
  Type element = elements.getShapedType().getElementType();
  uint64_t size = *prog::elementBytes(element);
  std::string bytes;
  int64_t count = splat ? 1 : elements.getNumElements();
  bytes.reserve(count * size);
  if (isa<FloatType>(element)) {
    auto values = elements.value_begin<APFloat>();
    for (int64_t i = 0; i < count; ++i, ++values)
      append(bytes, (*values).bitcastToAPInt(), size);
  } else {
    auto values = elements.value_begin<APInt>();
    for (int64_t i = 0; i < count; ++i, ++values)
      append(bytes, *values, size);
  }
  return bytes;
}

uint64_t ConstantPool::add(StringRef bytes) {
  uint64_t offset = llvm::alignTo(data.size(), prog::kAlignment);
  auto [entry, isNew] = offsets.try_emplace(bytes, offset);
  if (isNew) {
    data.resize(offset, 0);
    data.append(bytes.data(), bytes.size());
  }
  return entry->second;
}
