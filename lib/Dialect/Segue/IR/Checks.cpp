//===- Checks.cpp - what several verifiers check --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Checks.h"
#include "llvm/Support/InterleavedRange.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace segue;
using namespace segue::checks;

std::string checks::listed(ArrayRef<int64_t> values) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::interleaved_array(values);
  return text;
}

LogicalResult checks::shape(Operation *op, Named value, ArrayRef<int64_t> expected, StringRef why) {
  if (value.type().getShape() == expected)
    return success();
  return op->emitOpError() << "`" << value.name << "` has shape " << listed(value.type().getShape()) << ", but " << why
                           << " is " << listed(expected);
}

LogicalResult checks::sameElement(Operation *op, Named value, Named like) {
  if (value.element() == like.element())
    return success();
  return op->emitOpError() << "`" << value.name << "` holds " << value.element() << ", but `" << like.name << "` holds "
                           << like.element();
}

LogicalResult checks::dimension(Operation *op, int64_t dim, Named value) {
  if (dim >= 0 && dim < value.type().getRank())
    return success();
  return op->emitOpError() << "`dim` is " << dim << ", but `" << value.name << "` of shape "
                           << listed(value.type().getShape()) << " has " << value.type().getRank() << " dimensions";
}

LogicalResult checks::dimensions(Operation *op, StringRef attribute, ArrayRef<int64_t> dims, Named value) {
  for (int64_t dim : dims)
    if (dim < 0 || dim >= value.type().getRank())
      return op->emitOpError() << "`" << attribute << "` names dimension " << dim << ", but `" << value.name
                               << "` of shape " << listed(value.type().getShape()) << " has " << value.type().getRank()
                               << " dimensions";
  return success();
}

LogicalResult checks::increasing(Operation *op, StringRef attribute, ArrayRef<int64_t> dims) {
  for (size_t i = 1; i < dims.size(); ++i)
    if (dims[i - 1] >= dims[i])
      return op->emitOpError() << "`" << attribute << "` must be strictly increasing, but is " << listed(dims);
  return success();
}

LogicalResult checks::onePerDimension(Operation *op, StringRef attribute, ArrayRef<int64_t> values, Named value) {
  if (static_cast<int64_t>(values.size()) == value.type().getRank())
    return success();
  return op->emitOpError() << "`" << attribute << "` has " << values.size() << " entries, but `" << value.name
                           << "` of shape " << listed(value.type().getShape()) << " has " << value.type().getRank()
                           << " dimensions";
}
