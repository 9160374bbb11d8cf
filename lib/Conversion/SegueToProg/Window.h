//===- Window.h - a strided window into a buffer ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Where a tensor lies: a buffer, the first element, and the elements to step
// per dimension. Shape ops of segue act on windows without touching bytes;
// where strides cannot show the result there is no window.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOPROG_WINDOW_H
#define SEGUE_LIB_CONVERSION_SEGUETOPROG_WINDOW_H

#include "mlir/IR/BuiltinTypes.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include <optional>

namespace segue {

inline mlir::RankedTensorType typeOf(mlir::Value value) { return mlir::cast<mlir::RankedTensorType>(value.getType()); }

/// Consecutive dimensions seen as one.
struct Collapsed {
  int64_t extent = 1;
  int64_t stride = 1;
};

struct Window {
  /// Null while the buffer is not known: the shape of a place.
  mlir::Value buffer;
  /// The first element, in elements from the start of the buffer.
  int64_t offset = 0;
  mlir::Type element;
  llvm::SmallVector<int64_t> shape, strides;

  /// The whole of a dense row-major buffer.
  static Window dense(mlir::Value buffer, llvm::ArrayRef<int64_t> shape, mlir::Type element);

  int64_t elements() const;
  uint64_t bytes() const;
  uint64_t byteOffset() const;

  /// Returns true if the elements lie one after another in row-major order.
  bool isDense() const;
  /// Returns true if both are the same elements in the same order.
  bool sameAs(const Window &other) const;
  /// Returns true if the last dimension is contiguous.
  bool hasUnitLastStride() const;

  /// The windows that shape ops of segue make of this one.
  Window transpose(llvm::ArrayRef<int64_t> permutation) const;
  Window slice(llvm::ArrayRef<int64_t> starts, llvm::ArrayRef<int64_t> steps, llvm::ArrayRef<int64_t> shape) const;
  Window broadcast(llvm::ArrayRef<int64_t> dims, llvm::ArrayRef<int64_t> shape) const;
  std::optional<Window> reshape(llvm::ArrayRef<int64_t> shape) const;

  /// The dimensions `dims`, in that order, as one; nothing where no single
  /// stride steps through them.
  std::optional<Collapsed> collapse(llvm::ArrayRef<int64_t> dims) const;
};

/// The window of the result of a transpose, slice, broadcast or reshape whose
/// operand lies in `operand`.
std::optional<Window> applyShapeOp(mlir::Operation *op, const Window &operand);

/// The window in which the operand of a transpose or reshape lies when its
/// result lies in `result`.
std::optional<Window> invertShapeOp(mlir::Operation *op, const Window &result);

/// Returns true for `pad` and `concat`: each operand is a part of the result.
bool isInParts(mlir::Operation *op);

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOPROG_WINDOW_H
