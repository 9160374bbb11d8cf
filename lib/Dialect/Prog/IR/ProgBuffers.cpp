//===- ProgBuffers.cpp - sizes and types of buffers -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "llvm/Support/CheckedArithmetic.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue;

Space prog::spaceOf(MemRefType type) {
  auto space = dyn_cast_if_present<SpaceAttr>(type.getMemorySpace());
  return space ? space.getValue() : Space::DeviceDram;
}

Attribute prog::spaceAttr(MLIRContext *context, Space space) {
  return space == Space::DeviceDram ? Attribute() : SpaceAttr::get(context, space);
}

std::optional<SmallVector<int64_t>> prog::stridesOf(MemRefType type) {
  SmallVector<int64_t> strides;
  int64_t offset = 0;
  if (failed(type.getStridesAndOffset(strides, offset)) || offset != 0)
    return std::nullopt;
  for (int64_t stride : strides)
    if (ShapedType::isDynamic(stride) || stride < 0)
      return std::nullopt;
  return strides;
}

SmallVector<int64_t> prog::denseStrides(ArrayRef<int64_t> shape) { return LayoutAttr::getDenseStrides(shape, {}); }

MemRefType prog::viewType(ArrayRef<int64_t> shape, Type element, ArrayRef<int64_t> strides, Attribute space) {
  if (strides == ArrayRef<int64_t>(denseStrides(shape)))
    return MemRefType::get(shape, element, MemRefLayoutAttrInterface(), space);
  return MemRefType::get(shape, element, StridedLayoutAttr::get(element.getContext(), 0, strides), space);
}

std::optional<uint64_t> prog::viewBytes(MemRefType type) {
  std::optional<uint64_t> element = elementBytes(type.getElementType());
  std::optional<SmallVector<int64_t>> strides = stridesOf(type);
  if (!element || !strides)
    return std::nullopt;
  int64_t last = 0;
  for (auto [extent, stride] : llvm::zip_equal(type.getShape(), *strides)) {
    if (extent == 0)
      return 0;
    std::optional<int64_t> reach = llvm::checkedMulAdd(extent - 1, stride, last);
    if (!reach)
      return std::nullopt;
    last = *reach;
  }
  std::optional<int64_t> bytes = llvm::checkedMul(last, static_cast<int64_t>(*element));
  if (!bytes || *bytes > std::numeric_limits<int64_t>::max() - 8)
    return std::nullopt;
  return static_cast<uint64_t>(*bytes) + *element;
}

MemRefType prog::bytesType(MLIRContext *context, uint64_t n, Attribute space) {
  return MemRefType::get({static_cast<int64_t>(n)}, IntegerType::get(context, 8), MemRefLayoutAttrInterface(), space);
}

MemRefType prog::bufferType(RankedTensorType type) {
  MLIRContext *context = type.getContext();
  std::optional<uint64_t> element = elementBytes(type.getElementType());
  if (!element || !type.hasStaticShape())
    return {};
  auto layout = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
  if (type.getEncoding() && !layout)
    return {};
  if (!layout)
    return viewType(type.getShape(), type.getElementType(), denseStrides(type.getShape()), {});
  if (!layout.getStrides().empty() && layout.getStrides().size() != static_cast<size_t>(type.getRank()))
    return {};
  Attribute space = spaceAttr(context, layout.getSpace());
  if (layout.isStrided())
    return viewType(type.getShape(), type.getElementType(), layout.getStridesFor(type.getShape()), space);
  std::optional<uint64_t> bytes = layout.getBytes(type.getShape(), type.getElementType());
  return bytes ? bytesType(context, *bytes, space) : MemRefType();
}
