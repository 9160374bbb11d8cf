//===- Layout.cpp - arithmetic of layouts ---------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/Layout.h"
#include <algorithm>
#include <numeric>

namespace segue::inline runtime {

std::string_view name(Space space) {
  switch (space) {
  case Space::Host:
    return "host";
  case Space::HostPinned:
    return "host_pinned";
  case Space::DeviceDram:
    return "device_dram";
  case Space::DeviceL1:
    return "device_l1";
  }
  return "?";
}

std::string_view name(StorageType storage) {
  switch (storage) {
  case StorageType::Element:
    return "element";
  case StorageType::Int8Row:
    return "int8_row";
  case StorageType::Fp8E4M3Row:
    return "fp8_e4m3_row";
  case StorageType::Fp8E5M2Row:
    return "fp8_e5m2_row";
  }
  return "?";
}

static constexpr uint64_t largestSize = uint64_t(INT64_MAX);

std::optional<uint64_t> checkedMultiply(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > largestSize)
    return std::nullopt;
  return product;
}

std::optional<uint64_t> checkedAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum) || sum > largestSize)
    return std::nullopt;
  return sum;
}

std::optional<uint64_t> checkedElementCount(std::span<const int64_t> shape) {
  if (std::ranges::any_of(shape, [](int64_t extent) { return extent < 0; }))
    return std::nullopt;
  if (std::ranges::any_of(shape, [](int64_t extent) { return extent == 0; }))
    return 0;
  uint64_t count = 1;
  for (int64_t extent : shape) {
    auto product = checkedMultiply(count, uint64_t(extent));
    if (!product)
      return std::nullopt;
    count = *product;
  }
  return count;
}

std::optional<uint64_t> checkedSpanBytes(std::span<const int64_t> shape, std::span<const int64_t> strides,
                                         uint64_t bytesPerElement) {
  auto count = checkedElementCount(shape);
  if (!count || shape.size() != strides.size())
    return std::nullopt;
  if (std::ranges::any_of(strides, [](int64_t stride) { return stride < 0; }))
    return std::nullopt;
  if (*count == 0)
    return 0;
  uint64_t last = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    auto step = checkedMultiply(uint64_t(shape[dim] - 1), uint64_t(strides[dim]));
    auto sum = step ? checkedAdd(last, *step) : std::nullopt;
    if (!sum)
      return std::nullopt;
    last = *sum;
  }
  auto elements = checkedAdd(last, 1);
  return elements ? checkedMultiply(*elements, bytesPerElement) : std::nullopt;
}

std::vector<int64_t> denseStrides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  uint64_t stride = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = int64_t(stride);
    // Wraps for shapes without elements whose other extents are huge; nothing
    // is ever reached by those strides.
    stride *= uint64_t(std::max<int64_t>(shape[dim], 1));
  }
  return strides;
}

std::vector<int64_t> effectiveStrides(std::span<const int64_t> shape, const Layout &layout) {
  return layout.strides.empty() ? denseStrides(shape) : layout.strides;
}

bool isDense(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  if (std::ranges::find(shape, 0) != shape.end())
    return true;
  int64_t expected = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] != 1 && strides[dim] != expected)
      return false;
    expected *= shape[dim];
  }
  return true;
}

bool isInjective(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  if (std::ranges::find(shape, 0) != shape.end())
    return true;
  std::vector<size_t> order;
  for (size_t dim = 0; dim < shape.size(); ++dim)
    if (shape[dim] > 1)
      order.push_back(dim);
  std::ranges::sort(order, [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  uint64_t reach = 0; // offset of the last element over the smaller dimensions
  for (size_t dim : order) {
    if (uint64_t(strides[dim]) <= reach)
      return false;
    reach += uint64_t(strides[dim]) * uint64_t(shape[dim] - 1);
  }
  return true;
}

Layout canonicalize(std::span<const int64_t> shape, const Layout &layout) {
  Layout canonical = layout;
  if (std::ranges::find(shape, 0) != shape.end()) {
    canonical = Layout{.space = layout.space, .offset = layout.offset, .alignment = layout.alignment};
    return canonical;
  }
  if (std::ranges::all_of(canonical.tile, [](uint32_t extent) { return extent == 1; }))
    canonical.tile.clear();
  if (canonical.strides.empty())
    return canonical;
  if (isDense(shape, canonical.strides)) {
    canonical.strides.clear();
    return canonical;
  }
  for (size_t dim = shape.size(); dim-- > 0;)
    if (shape[dim] == 1)
      canonical.strides[dim] = dim + 1 < shape.size() ? canonical.strides[dim + 1] * shape[dim + 1] : 1;
  return canonical;
}

static Space sharedSpace(Space space, bool unified) {
  return unified && space != Space::DeviceL1 ? Space::DeviceDram : space;
}

bool satisfies(std::span<const int64_t> shape, const Layout &given, const Layout &wanted, bool unified) {
  if (sharedSpace(given.space, unified) != sharedSpace(wanted.space, unified))
    return false;
  if (std::ranges::find(shape, 0) != shape.end())
    return true;
  if (given.alignment < wanted.alignment)
    return false;
  Layout a = canonicalize(shape, given), b = canonicalize(shape, wanted);
  return a.strides == b.strides && a.tile == b.tile && a.storage == b.storage;
}

} // namespace segue::inline runtime
