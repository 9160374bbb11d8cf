//===- StorableTypes.cpp - tensors that memory can hold -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/IR/StorableTypes.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "llvm/Support/CheckedArithmetic.h"

using namespace mlir;
using namespace segue;

bool segue::isStorable(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  std::optional<uint64_t> element = tensor ? elementBytes(tensor.getElementType()) : std::nullopt;
  if (!element || !tensor.hasStaticShape())
    return false;
  std::optional<int64_t> bytes = static_cast<int64_t>(*element);
  for (int64_t extent : tensor.getShape())
    bytes = bytes ? llvm::checkedMul(*bytes, std::max<int64_t>(extent, 1)) : std::nullopt;
  return bytes && *bytes < int64_t(1) << 62;
}

LogicalResult segue::verifyStorableTypes(Operation *op) {
  auto verify = [&](TypeRange types, StringRef what) -> LogicalResult {
    for (auto [at, type] : llvm::enumerate(types))
      if (isa<RankedTensorType>(type) && !isStorable(type))
        return op->emitOpError() << what << " #" << at << " has type " << type
                                 << ", whose size in bytes is not a number of 62 bits";
    return success();
  };
  return failure(failed(verify(op->getOperandTypes(), "operand")) || failed(verify(op->getResultTypes(), "result")));
}
