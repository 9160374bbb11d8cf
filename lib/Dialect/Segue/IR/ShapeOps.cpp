//===- ShapeOps.cpp - verifies ops that make or move elements -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Checks.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "llvm/Support/CheckedArithmetic.h"

using namespace mlir;
using namespace segue;

Attribute segue::ConstantOp::getSplat() {
  auto elements = dyn_cast<DenseElementsAttr>(getValue());
  return elements && elements.isSplat() ? elements.getSplatValue<Attribute>() : Attribute();
}

LogicalResult segue::ConstantOp::verify() {
  auto resource = dyn_cast<DenseResourceElementsAttr>(getValue());
  AsmResourceBlob *blob = resource ? resource.getRawHandle().getBlob() : nullptr;
  if (!blob || !isStorable(getType()))
    return success();
  uint64_t needed = getType().getNumElements() * *elementBytes(getType().getElementType());
  if (blob->getData().size() != needed) // C1
    return emitOpError() << "has a resource of " << blob->getData().size() << " bytes, but " << getType() << " has "
                         << needed;
  return success();
}

LogicalResult IotaOp::verify() { return checks::dimension(*this, getDim(), {"result", getResult()}); } // C1

LogicalResult ReshapeOp::verify() {
  auto from = getInput().getType(), to = getType();
  if (from.getNumElements() != to.getNumElements()) // C1
    return emitOpError() << "`result` of shape " << checks::listed(to.getShape()) << " has " << to.getNumElements()
                         << " elements, but `input` of shape " << checks::listed(from.getShape()) << " has "
                         << from.getNumElements();
  return checks::sameElement(*this, {"result", getResult()}, {"input", getInput()}); // C2
}

LogicalResult TransposeOp::verify() {
  ArrayRef<int64_t> shape = getInput().getType().getShape(), permutation = getPermutation();
  if (failed(checks::onePerDimension(*this, "permutation", permutation, {"input", getInput()})) ||
      failed(checks::dimensions(*this, "permutation", permutation, {"input", getInput()})))
    return failure();
  SmallVector<bool> seen(shape.size(), false);
  SmallVector<int64_t> permuted;
  for (int64_t dim : permutation) {
    if (std::exchange(seen[dim], true)) // C1
      return emitOpError() << "`permutation` " << checks::listed(permutation) << " names dimension " << dim << " twice";
    permuted.push_back(shape[dim]);
  }
  if (failed(checks::shape(*this, {"result", getResult()}, permuted, "the permuted shape of `input`"))) // C2
    return failure();
  return checks::sameElement(*this, {"result", getResult()}, {"input", getInput()});
}

LogicalResult BroadcastOp::verify() {
  ArrayRef<int64_t> from = getInput().getType().getShape(), to = getType().getShape();
  if (failed(checks::onePerDimension(*this, "dims", getDims(), {"input", getInput()})) || // C1
      failed(checks::dimensions(*this, "dims", getDims(), {"result", getResult()})) ||
      failed(checks::increasing(*this, "dims", getDims())))
    return failure();
  for (auto [k, dim] : llvm::enumerate(getDims()))
    if (from[k] != 1 && from[k] != to[dim]) // C2
      return emitOpError() << "dimension " << k << " of `input` is " << from[k] << ", but dimension " << dim
                           << " of `result` is " << to[dim] << "; only an extent of 1 is repeated";
  return checks::sameElement(*this, {"result", getResult()}, {"input", getInput()}); // C3
}

LogicalResult SliceOp::verify() {
  checks::Named input = {"input", getInput()};
  if (failed(checks::onePerDimension(*this, "starts", getStarts(), input)) || // C1
      failed(checks::onePerDimension(*this, "limits", getLimits(), input)) ||
      failed(checks::onePerDimension(*this, "steps", getSteps(), input)))
    return failure();
  SmallVector<int64_t> shape;
  for (auto [k, start, limit, step, extent] :
       llvm::enumerate(getStarts(), getLimits(), getSteps(), input.type().getShape())) {
    if (start < 0 || start > limit || limit > extent) // C2
      return emitOpError() << "takes [" << start << ", " << limit << ") of dimension " << k
                           << ", which must be a part of [0, " << extent << ")";
    if (step < 1)
      return emitOpError() << "has step " << step << " in dimension " << k << ", which must be at least 1";
    shape.push_back((limit - start) / step + ((limit - start) % step != 0));
  }
  if (failed(checks::shape(*this, {"result", getResult()}, shape, "the shape of the box"))) // C3
    return failure();
  return checks::sameElement(*this, {"result", getResult()}, input);
}

LogicalResult PadOp::verify() {
  checks::Named input = {"input", getInput()};
  if (failed(checks::onePerDimension(*this, "low", getLow(), input)) || // C1
      failed(checks::onePerDimension(*this, "high", getHigh(), input)) ||
      failed(checks::onePerDimension(*this, "interior", getInterior(), input)))
    return failure();
  SmallVector<int64_t> shape;
  for (auto [k, low, high, interior, extent] :
       llvm::enumerate(getLow(), getHigh(), getInterior(), input.type().getShape())) {
    if (low < 0 || high < 0 || interior < 0)
      return emitOpError() << "has a negative padding in dimension " << k << ": low " << low << ", high " << high
                           << ", interior " << interior;
    auto sum = llvm::checkedMulAdd<int64_t>(std::max<int64_t>(extent - 1, 0), interior, extent);
    sum = sum ? llvm::checkedAdd(*sum, low) : std::nullopt;
    sum = sum ? llvm::checkedAdd(*sum, high) : std::nullopt;
    if (!sum)
      return emitOpError() << "pads dimension " << k << " to an extent that is not a number of 63 bits: low " << low
                           << ", high " << high << ", interior " << interior;
    shape.push_back(*sum);
  }
  if (failed(checks::shape(*this, {"result", getResult()}, shape, "the padded shape of `input`")) || // C2
      failed(checks::sameElement(*this, {"result", getResult()}, input)))
    return failure();
  if (getValue().getType() != input.element()) // C3
    return emitOpError() << "`value` is " << getValue().getType() << ", but `input` holds " << input.element();
  return success();
}

LogicalResult ConcatOp::verify() {
  if (getInputs().empty()) // C1
    return emitOpError("needs at least one operand");
  if (failed(checks::dimension(*this, getDim(), {"result", getResult()}))) // C2
    return failure();
  int64_t dim = getDim(), total = 0;
  ArrayRef<int64_t> shape = getType().getShape();
  for (auto [i, value] : llvm::enumerate(getInputs())) {
    auto type = cast<RankedTensorType>(value.getType());
    if (type.getRank() != getType().getRank()) // C3
      return emitOpError() << "operand " << i << " of shape " << checks::listed(type.getShape()) << " has "
                           << type.getRank() << " dimensions, but `result` has " << shape.size();
    for (auto [k, extent] : llvm::enumerate(type.getShape()))
      if (static_cast<int64_t>(k) != dim && extent != shape[k])
        return emitOpError() << "dimension " << k << " of operand " << i << " is " << extent
                             << ", but that of `result` is " << shape[k] << "; only dimension " << dim << " may differ";
    if (type.getElementType() != getType().getElementType()) // C4
      return emitOpError() << "operand " << i << " holds " << type.getElementType() << ", but `result` holds "
                           << getType().getElementType();
    total += type.getDimSize(dim);
  }
  if (total != shape[dim])
    return emitOpError() << "dimension " << dim << " of `result` is " << shape[dim] << ", but the operands sum to "
                         << total;
  return success();
}
