//===- ConstantFolding.cpp - computing with constants ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ConstantFolding.h"

using namespace mlir;
using namespace segue;
using namespace segue::folding;

bool folding::isSplatOf(Attribute constant, double value) {
  Attribute element = splatElement(constant);
  if (auto number = dyn_cast_or_null<FloatAttr>(element))
    return number.getValueAsDouble() == value;
  if (auto number = dyn_cast_or_null<IntegerAttr>(element)) {
    if (number.getType().isInteger(1))
      return number.getValue().getZExtValue() == value;
    return static_cast<double>(number.getValue().getSExtValue()) == value;
  }
  return false;
}

Attribute folding::splatElement(Attribute constant) {
  auto elements = dyn_cast_or_null<DenseElementsAttr>(constant);
  return elements && elements.isSplat() ? elements.getSplatValue<Attribute>() : Attribute();
}

Attribute folding::resizeSplat(Attribute constant, Type type) {
  Attribute element = splatElement(constant);
  return element ? Attribute(DenseElementsAttr::get(cast<ShapedType>(type), element)) : Attribute();
}

Attribute folding::elementwise(ArrayRef<Attribute> operands, Type type,
                               function_ref<Attribute(ArrayRef<Attribute>)> apply) {
  auto resultType = cast<ShapedType>(type);
  bool splats = llvm::all_of(operands, [](Attribute operand) { return static_cast<bool>(splatElement(operand)); });
  if (splats)
    return DenseElementsAttr::get(resultType, apply(llvm::map_to_vector(operands, splatElement)));
  if (resultType.getNumElements() > kMaxFoldedElements ||
      !llvm::all_of(operands, [](Attribute operand) { return isa_and_nonnull<DenseElementsAttr>(operand); }))
    return {};
  SmallVector<Attribute> elements;
  for (int64_t i = 0; i < resultType.getNumElements(); ++i)
    elements.push_back(apply(llvm::map_to_vector(
        operands, [&](Attribute operand) { return cast<DenseElementsAttr>(operand).getValues<Attribute>()[i]; })));
  return DenseElementsAttr::get(resultType, elements);
}

Attribute folding::arithmetic(ArrayRef<Attribute> operands, Type type, function_ref<double(double, double)> onFloats,
                              function_ref<APInt(const APInt &, const APInt &)> onInts) {
  return elementwise(operands, type, [&](ArrayRef<Attribute> elements) -> Attribute {
    if (auto lhs = dyn_cast<FloatAttr>(elements.front()))
      return FloatAttr::get(lhs.getType(),
                            onFloats(lhs.getValueAsDouble(), cast<FloatAttr>(elements.back()).getValueAsDouble()));
    auto lhs = cast<IntegerAttr>(elements.front());
    return IntegerAttr::get(lhs.getType(), onInts(lhs.getValue(), cast<IntegerAttr>(elements.back()).getValue()));
  });
}

Attribute folding::moved(Attribute constant, Type type, function_ref<SmallVector<int64_t>(ArrayRef<int64_t>)> from) {
  if (splatElement(constant))
    return resizeSplat(constant, type);
  auto elements = dyn_cast_or_null<DenseElementsAttr>(constant);
  auto resultType = cast<ShapedType>(type);
  if (!elements || resultType.getNumElements() > kMaxFoldedElements)
    return {};
  ArrayRef<int64_t> source = elements.getType().getShape(), shape = resultType.getShape();
  SmallVector<Attribute> result;
  SmallVector<int64_t> index(shape.size(), 0);
  for (int64_t i = 0; i < resultType.getNumElements(); ++i) {
    int64_t rest = i, position = 0;
    for (size_t dim = shape.size(); dim-- > 0; rest /= shape[dim])
      index[dim] = rest % shape[dim];
    for (auto [extent, at] : llvm::zip_equal(source, from(index)))
      position = position * extent + at;
    result.push_back(elements.getValues<Attribute>()[position]);
  }
  return DenseElementsAttr::get(resultType, result);
}
