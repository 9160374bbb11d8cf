//===- ConstantPool.h - the constants of a binary ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOPROG_CONSTANTPOOL_H
#define SEGUE_LIB_CONVERSION_SEGUETOPROG_CONSTANTPOOL_H

#include "mlir/IR/BuiltinAttributes.h"
#include "llvm/ADT/StringMap.h"
#include <string>

namespace segue {

/// Returns the bytes of one element: little-endian, one byte for i1.
std::string elementToBytes(mlir::Attribute element);

/// Returns the bytes of all elements in row-major order, or of one if they are equal and
/// `splat` is set; nothing for a resource that was not parsed.
std::optional<std::string> elementsToBytes(mlir::ElementsAttr elements, bool splat);

/// Collects the constants of all programs in one segment; equal bytes are
/// stored once.
class ConstantPool {
public:
  /// Returns the offset of `bytes` in the segment, a multiple of prog::kAlignment.
  uint64_t add(llvm::StringRef bytes);
  const std::string &bytes() const { return data; }

private:
  std::string data;
  llvm::StringMap<uint64_t> offsets;
};

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOPROG_CONSTANTPOOL_H
