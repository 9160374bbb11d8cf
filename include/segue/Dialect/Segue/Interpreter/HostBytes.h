//===- HostBytes.h - tensors as kernels see them ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_INTERPRETER_HOSTBYTES_H
#define SEGUE_DIALECT_SEGUE_INTERPRETER_HOSTBYTES_H

#include "segue/Dialect/Segue/Interpreter/Interpreter.h"

namespace segue {

/// Returns the bytes of one element in memory; an i1 takes one, which is 0 or 1.
size_t bytesOfElement(mlir::Type element);

/// The elements of `tensor`, dense and row-major, each as its type lies in memory.
std::vector<char> toBytes(const HostTensor &tensor);

/// The other way; `bytes` holds at least as many as the tensor needs.
HostTensor fromBytes(mlir::RankedTensorType type, const char *bytes);

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_INTERPRETER_HOSTBYTES_H
