//===- Window.cpp - a strided window into a buffer ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Window.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace segue;

Window Window::dense(Value buffer, ArrayRef<int64_t> shape, Type element) {
  return {buffer, 0, element, SmallVector<int64_t>(shape), prog::denseStrides(shape)};
}

int64_t Window::elements() const {
  int64_t n = 1;
  for (int64_t extent : shape)
    n *= extent;
  return n;
}

uint64_t Window::bytes() const { return elements() * *prog::elementBytes(element); }

uint64_t Window::byteOffset() const { return offset * *prog::elementBytes(element); }

bool Window::isDense() const {
  int64_t expected = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] != 1 && strides[dim] != expected)
      return false;
    expected *= shape[dim];
  }
  return true;
}

bool Window::sameAs(const Window &other) const {
  if (buffer != other.buffer || offset != other.offset || shape != other.shape || element != other.element)
    return false;
  for (auto [extent, a, b] : llvm::zip_equal(shape, strides, other.strides))
    if (extent != 1 && a != b)
      return false;
  return true;
}

bool Window::hasUnitLastStride() const { return shape.empty() || shape.back() == 1 || strides.back() == 1; }

Window Window::transpose(ArrayRef<int64_t> permutation) const {
  Window result{buffer, offset, element, {}, {}};
  for (int64_t dim : permutation) {
    result.shape.push_back(shape[dim]);
    result.strides.push_back(strides[dim]);
  }
  return result;
}

Window Window::slice(ArrayRef<int64_t> starts, ArrayRef<int64_t> steps, ArrayRef<int64_t> newShape) const {
  Window result{buffer, offset, element, SmallVector<int64_t>(newShape), {}};
  for (auto [start, step, stride] : llvm::zip_equal(starts, steps, strides)) {
    result.offset += start * stride;
    result.strides.push_back(step * stride);
  }
  return result;
}

Window Window::broadcast(ArrayRef<int64_t> dims, ArrayRef<int64_t> newShape) const {
  Window result{buffer, offset, element, SmallVector<int64_t>(newShape), SmallVector<int64_t>(newShape.size(), 0)};
  for (auto [dim, extent, stride] : llvm::zip_equal(dims, shape, strides))
    result.strides[dim] = extent == 1 ? 0 : stride;
  return result;
}

std::optional<Window> Window::reshape(ArrayRef<int64_t> newShape) const {
  // Dimensions that one stride steps through form a run; each run must be a
  // product of consecutive new extents.
  struct Run {
    int64_t extent, stride;
  };
  SmallVector<Run> runs;
  for (auto [extent, stride] : llvm::zip_equal(shape, strides)) {
    if (extent == 1)
      continue;
    if (!runs.empty() && runs.back().stride == stride * extent)
      runs.back() = {runs.back().extent * extent, stride};
    else
      runs.push_back({extent, stride});
  }
  Window result{buffer, offset, element, SmallVector<int64_t>(newShape), SmallVector<int64_t>(newShape.size(), 0)};
  size_t dim = newShape.size();
  for (Run run : llvm::reverse(runs)) {
    int64_t rest = run.extent, stride = run.stride;
    while (rest > 1) {
      if (dim == 0)
        return std::nullopt;
      int64_t extent = newShape[--dim];
      if (rest % extent != 0)
        return std::nullopt;
      result.strides[dim] = stride;
      stride *= extent;
      rest /= extent;
    }
  }
  // The remaining dimensions have extent 1 and get the strides that dense tensors have.
  for (size_t i = newShape.size(); i-- > 0;)
    if (newShape[i] == 1)
      result.strides[i] = i + 1 < newShape.size() ? result.strides[i + 1] * newShape[i + 1] : 1;
  return result;
}

std::optional<Collapsed> Window::collapse(ArrayRef<int64_t> dims) const {
  std::optional<Collapsed> run;
  for (int64_t dim : dims) {
    if (shape[dim] == 1)
      continue;
    if (!run)
      run = Collapsed{shape[dim], strides[dim]};
    else if (run->stride == strides[dim] * shape[dim])
      run = Collapsed{run->extent * shape[dim], strides[dim]};
    else
      return std::nullopt;
  }
  return run ? *run : Collapsed{1, 1};
}

std::optional<Window> segue::applyShapeOp(Operation *op, const Window &operand) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(op->getResult(0).getType()).getShape();
  return TypeSwitch<Operation *, std::optional<Window>>(op)
      .Case([&](TransposeOp op) { return operand.transpose(op.getPermutation()); })
      .Case([&](SliceOp op) { return operand.slice(op.getStarts(), op.getSteps(), shape); })
      .Case([&](BroadcastOp op) { return operand.broadcast(op.getDims(), shape); })
      .Case([&](ReshapeOp) { return operand.reshape(shape); })
      .Default([](Operation *) { return std::nullopt; });
}

std::optional<Window> segue::invertShapeOp(Operation *op, const Window &result) {
  if (auto transpose = dyn_cast<TransposeOp>(op)) {
    SmallVector<int64_t> inverse(transpose.getPermutation().size());
    for (auto [i, dim] : llvm::enumerate(transpose.getPermutation()))
      inverse[dim] = i;
    return result.transpose(inverse);
  }
  if (isa<ReshapeOp>(op))
    return result.reshape(cast<RankedTensorType>(op->getOperand(0).getType()).getShape());
  return std::nullopt;
}

bool segue::isInParts(Operation *op) {
  auto kernel = dyn_cast_if_present<KernelOpInterface>(op);
  return kernel && op->getNumOperands() && kernel.getOperandAccess(0) == OperandAccess::Part;
}
