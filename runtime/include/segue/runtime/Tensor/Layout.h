//===- Layout.h - where a tensor lives and how it lies ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A layout maps an index to bytes: the element with index i0, ..., in lies at
// `offset + elementBytes * sum(ik * strides[k])`. All arithmetic on layouts of
// the runtime is in this file and its source; nothing else multiplies strides
// of untrusted shapes. Pure functions: any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_LAYOUT_H
#define SEGUE_RUNTIME_TENSOR_LAYOUT_H

#include "segue/runtime/Tensor/ElementType.h"
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// Where bytes live; the values of schemas/types.fbs.
enum class Space : int8_t { Host = 0, HostPinned = 1, DeviceDram = 2, DeviceL1 = 3 };

/// How an element is stored; the values of schemas/types.fbs. Row storages
/// hold one byte per element and an f32 scale per row.
enum class StorageType : int8_t { Element = 0, Int8Row = 1, Fp8E4M3Row = 2, Fp8E5M2Row = 3 };

std::string_view name(Space space);
std::string_view name(StorageType storage);

using Shape = std::vector<int64_t>;

/// The default alignment of tensors, bytes.
inline constexpr uint32_t defaultAlignment = 64;

struct Layout {
  Space space = Space::DeviceDram;
  /// Elements to step per dimension. Empty: dense row-major.
  std::vector<int64_t> strides;
  /// Tile extent per trailing dimension. Empty: not tiled.
  std::vector<uint32_t> tile;
  StorageType storage = StorageType::Element;
  /// Of the first element in its storage, bytes; a multiple of `alignment`.
  uint64_t offset = 0;
  /// Of the first byte, bytes; a power of two.
  uint32_t alignment = defaultAlignment;

  bool operator==(const Layout &) const = default;
};

/// `base + bytes <= size` without overflow: the one check of ranges whose
/// numbers come from a file or a caller.
constexpr bool rangeFits(uint64_t base, uint64_t bytes, uint64_t size) { return base <= size && bytes <= size - base; }

/// a * b and a + b; nothing if the result passes 2^63 - 1.
std::optional<uint64_t> checkedMultiply(uint64_t a, uint64_t b);
std::optional<uint64_t> checkedAdd(uint64_t a, uint64_t b);

/// Product of the extents (1 for a scalar); nothing if an extent is negative
/// or the product passes 2^63 - 1.
std::optional<uint64_t> checkedElementCount(std::span<const int64_t> shape);

/// Bytes from the first to behind the last element of a strided view; 0 if it
/// has no element; nothing if a number is negative or the sum overflows.
std::optional<uint64_t> checkedSpanBytes(std::span<const int64_t> shape, std::span<const int64_t> strides,
                                         uint64_t bytesPerElement);

/// Row-major strides of `shape`, in elements.
std::vector<int64_t> denseStrides(std::span<const int64_t> shape);

/// `strides`, or the dense ones where it is empty.
std::vector<int64_t> effectiveStrides(std::span<const int64_t> shape, const Layout &layout);

/// True if the elements lie row-major without a gap. Strides of dimensions of
/// extent 1 do not matter; a tensor without elements is dense.
bool isDense(std::span<const int64_t> shape, std::span<const int64_t> strides);

/// True if no two indices lie at the same place, by the sufficient rule that
/// sorted by stride, each dimension steps over all smaller ones.
bool isInjective(std::span<const int64_t> shape, std::span<const int64_t> strides);

/// The canonical form of the same placement: extent-1 strides as if dense,
/// dense strides left out, a tile of ones left out, everything but the space
/// left out for a tensor without elements.
Layout canonicalize(std::span<const int64_t> shape, const Layout &layout);

/// The equality that decides elision: may a tensor of `shape` laid as `given`
/// stand where `wanted` is declared? Compares canonical forms; a greater
/// alignment satisfies a smaller one, not the reverse; `offset` says where the
/// tensor starts in its storage and does not take part. On a device of
/// `unified` memory, host, host_pinned and device_dram are one space.
bool satisfies(std::span<const int64_t> shape, const Layout &given, const Layout &wanted, bool unified);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TENSOR_LAYOUT_H
