//===- Relayout.cpp - any layout to any layout on a GPU -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Relayout.h"
#include "../Drivers/KernelLaunch.h"
#include <algorithm>
#include <bit>
#include <vector>

namespace segue::inline runtime::cuda {

/// The bytes of an element that an access may take at once, by where the first one lies.
static uint8_t wordBytes(const void *first, uint8_t elementBytes) {
  uint64_t aligned = uint64_t(1) << std::countr_zero(reinterpret_cast<uintptr_t>(first) | 8);
  return aligned >= elementBytes ? elementBytes : 1;
}

static RelayoutForm formOf(const TensorDesc &source, const TensorDesc &target) {
  StorageType from = source.layout.storage, to = target.layout.storage;
  if (isRowStorage(to)) {
    bool losesZeroPoints = source.layout.zeroPoints && !target.layout.zeroPoints;
    return from == to && !losesZeroPoints ? RelayoutForm::Move : RelayoutForm::Quantize;
  }
  if (from != StorageType::Element)
    return RelayoutForm::ThroughFloat;
  if (source.element == target.element)
    return RelayoutForm::Move;
  if (!isFloat(source.element) && !isFloat(target.element))
    return RelayoutForm::ThroughInt64;
  return source.element == ElementType::f64 || target.element == ElementType::f64 ? RelayoutForm::ThroughDouble
                                                                                  : RelayoutForm::ThroughFloat;
}

/// Dimensions that follow each other in all that a kernel knows of them become one.
static void merge(std::vector<RelayoutDim> &dims) {
  auto isPlain = [](const RelayoutDim &dim) {
    return dim.source.tile == 1 && dim.target.tile == 1 && dim.column != 0;
  };
  for (size_t i = dims.size(); i-- > 1;) {
    RelayoutDim &outer = dims[i - 1];
    const RelayoutDim &inner = dims[i];
    bool merges = isPlain(outer) && isPlain(inner) && outer.source.stride == inner.extent * inner.source.stride &&
                  outer.target.stride == inner.extent * inner.target.stride &&
                  outer.column == inner.extent * inner.column;
    if (!merges)
      continue;
    outer = {outer.extent * inner.extent, outer.padded * inner.padded, inner.source, inner.target, inner.column};
    dims.erase(dims.begin() + ptrdiff_t(i));
  }
}

static void placeArgs(RelayoutArgs &args, const TensorDesc &source, const TensorDesc &target, bool usesRows) {
  std::vector<DimPlacement> from = placeDims(source.shape, source.layout), to = placeDims(target.shape, target.layout);
  // Group storage has no places of its own: its rows lie one behind another.
  bool toElements = !isGroupStorage(target.layout.storage);
  std::vector<RelayoutDim> dims;
  bool hasRowDim = usesRows && from.size() >= 2;
  int64_t column = 1;
  for (size_t i = from.size(); i-- > 0;) {
    bool isRows = hasRowDim && i == 0;
    RelayoutDim dim{from[i].extent, toElements ? to[i].paddedExtent() : to[i].extent,
                    {from[i].tile, from[i].inTile, from[i].stride},
                    {to[i].tile, to[i].inTile, to[i].stride}, isRows ? 0 : column};
    if (dim.padded > 1)
      dims.insert(dims.begin(), dim);
    column *= isRows ? 1 : dim.extent;
  }
  std::ranges::stable_sort(dims, std::ranges::greater(), [](const RelayoutDim &dim) { return dim.target.stride; });
  merge(dims);
  if (dims.size() > RelayoutArgs::mostDims)
    throw Error(ErrorCode::InvalidArgument,
                "a relayout of " + std::to_string(dims.size()) + " dimensions: " + target.str());
  args.dims = int32_t(dims.size());
  args.rowDim = -1;
  args.total = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    args.dim[i] = dims[i];
    args.total *= dims[i].padded;
    if (dims[i].column == 0)
      args.rowDim = int32_t(i);
  }
  args.columns = column;
}

static void requireFinite(const volatile uint64_t *words) {
  if (uint64_t row = *words; row != UINT64_MAX)
    throw nonFiniteRow(int64_t(row));
}

void relayoutOnDevice(BuiltinKernels &kernels, const CopyPlan &plan, const std::byte *source, std::byte *target) {
  const TensorDesc &from = plan.source(), &to = plan.target();
  if (from.elementCount() == 0)
    return;
  const Api &api = kernels.context().api();
  auto address = [](const void *at) { return reinterpret_cast<CUdeviceptr>(at); };
  auto copy = [&](void *to, const void *from, uint64_t bytes) {
    kernels.streams().give([&](CUstream stream) {
      kernels.context().check(api.onDevice(address(to), address(from), bytes, stream), "cuMemcpyDtoDAsync",
                              ErrorCode::TransferFailed);
    });
  };
  auto zero = [&](void *at, uint64_t bytes) {
    kernels.streams().give([&](CUstream stream) {
      kernels.context().check(api.fill8(address(at), 0, bytes, stream), "cuMemsetD8Async");
    });
  };
  if (plan.isContiguous())
    return copy(target, source, plan.bytesWritten());

  StorageType fromStorage = from.layout.storage, toStorage = to.layout.storage;
  LayoutParts fromParts = from.parts(), toParts = to.parts();
  RelayoutArgs args = {};
  args.source = source;
  args.sourceScales = fromStorage != StorageType::Element ? source + fromParts.scales : nullptr;
  args.sourceZeroPoints =
      from.layout.zeroPoints ? reinterpret_cast<const float *>(source + fromParts.zeroPoints) : nullptr;
  args.target = target;
  args.targetScales = isQuantized(toStorage) ? target + toParts.scales : nullptr;
  args.targetZeroPoints = to.layout.zeroPoints ? reinterpret_cast<float *>(target + toParts.zeroPoints) : nullptr;
  args.rows = rowCount(from.shape);
  args.sourceGroups = fromParts.groups;
  args.targetGroups = toParts.groups;
  args.sourceBytes = uint8_t(storedByteSize(from.element, fromStorage));
  args.targetBytes = uint8_t(storedByteSize(to.element, toStorage));
  args.sourceWord = wordBytes(source, args.sourceBytes);
  args.targetWord = wordBytes(target, args.targetBytes);
  args.sourceElement = from.element;
  args.targetElement = to.element;
  args.sourceStorage = fromStorage;
  args.targetStorage = toStorage;
  args.form = formOf(from, to);
  placeArgs(args, from, to, fromStorage != StorageType::Element || toStorage != StorageType::Element);

  if (isQuantized(toStorage) && toParts.scales > toParts.elements)
    zero(target + toParts.elements, toParts.scales - toParts.elements);
  // The faults of a row that cannot be quantised.
  std::unique_ptr<WordsOfLaunch> launched;
  bool quantizes = isGroupStorage(toStorage) ? fromStorage != toStorage : args.form == RelayoutForm::Quantize;
  if (quantizes) {
    launched = std::make_unique<WordsOfLaunch>(kernels.words(), requireFinite);
    args.fault = launched->words;
  }
  if (isGroupStorage(toStorage)) {
    if (quantizes)
      kernels.launch(Builtin::quantizeGroups, args, args.rows * args.targetGroups, 8); // a warp each
    else
      kernels.launch(Builtin::moveGroups, args,
                     args.rows * (args.targetGroups * groupExtent(toStorage) / 2 + args.targetGroups));
  } else {
    if (quantizes) {
      kernels.launch(Builtin::findRowScales, args, args.rows, 1);
    } else if (isRowStorage(toStorage)) {
      auto bytes = uint64_t(args.rows) * sizeof(float);
      copy(args.targetScales, args.sourceScales, bytes);
      if (args.targetZeroPoints && args.sourceZeroPoints)
        copy(args.targetZeroPoints, args.sourceZeroPoints, bytes);
      else if (args.targetZeroPoints)
        zero(args.targetZeroPoints, bytes);
    }
    kernels.launch(Builtin::copyElements, args, args.total);
  }
  if (launched)
    WordsOfLaunch::finish(kernels.streams(), std::move(launched));
}

} // namespace segue::inline runtime::cuda
