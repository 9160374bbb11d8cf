//===- Layout.h - where a tensor lives and how it lies ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A layout maps an index to bytes. Every dimension adds its own term:
//
//   address(i0, ..., in) = offset + elementBytes * sum over k of term_k(ik)
//   term_k(i) = i * strides[k]                                       not tiled
//   term_k(i) = (i / tile) * strides[k] + (i % tile) * inTile        tiled
//
// where inTile is the row-major step inside a tile: the stride of a tiled
// dimension goes from one tile to the next. [4,6] in tiles [2,4], dense:
//
//   strides [16,8]      column  0  1  2  3 | 4  5  p  p     p: padding, zero
//                       row 0   0  1  2  3 | 8  9 10 11
//                       row 1   4  5  6  7 |12 13 14 15
//                       row 2  16 17 18 19 |24 ...
//
// A row storage holds one byte per element laid so; then, from the next
// multiple of 64 bytes on, an f32 scale per row; then, with `zeroPoints`, an
// f32 zero point per row. A row is one index of dimension 0; a tensor of rank
// 0 or 1 is one row.
//
// A group storage holds two elements per byte, the one of the even index in the
// low half. The elements of a row lie row-major and without tiles, each row
// padded with zeros to whole groups of 32 or 64; `strides[0]`, a multiple of the
// group, may pad it further. From the next multiple of 64 bytes on follows a
// bf16 scale per group: those of the first groups of all rows, then those of the
// second, and so on, as SquareQ slabs have them.
//
// All arithmetic on layouts of the runtime is in this file and its source;
// nothing else multiplies strides of untrusted shapes. Pure functions: any
// thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LAYOUT_LAYOUT_H
#define SEGUE_RUNTIME_LAYOUT_LAYOUT_H

#include "segue/runtime/Layout/ElementType.h"
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// A Space names the memory that bytes live in. Values are those of schemas/types.fbs, but
/// for Disk, which programs know nothing of: a file below memory, whose mapping the host
/// can read, and where what has no room in memory lives (Device::homeSpace).
enum class Space : int8_t { Host = 0, HostPinned = 1, DeviceDram = 2, DeviceL1 = 3, Disk = 4 };
inline constexpr uint8_t spaceCount = 5;

/// The ways in which an element is stored, with the values of schemas/types.fbs. Row
/// storages hold one byte per element and an f32 scale per row, group storages four bits
/// per element and a bf16 scale per group of a row.
enum class StorageType : int8_t {
  Element = 0,
  Int8Row = 1,
  Fp8E4M3Row = 2,
  Fp8E5M2Row = 3,
  Int4Group32 = 4,
  Int4Group64 = 5,
};

std::string_view name(Space space);
std::string_view name(StorageType storage);

/// Returns true if codes and scales are stored in place of elements.
constexpr bool isQuantized(StorageType storage) { return storage != StorageType::Element; }

/// Returns true for one byte per element and a scale per row.
constexpr bool isRowStorage(StorageType storage) {
  return storage >= StorageType::Int8Row && storage <= StorageType::Fp8E5M2Row;
}

/// Returns how many elements of a row share a scale in a group storage; 0 for others.
constexpr int64_t groupExtent(StorageType storage) {
  return storage == StorageType::Int4Group32 ? 32 : storage == StorageType::Int4Group64 ? 64 : 0;
}

/// Returns true for two elements per byte and a scale per group.
constexpr bool isGroupStorage(StorageType storage) { return groupExtent(storage) != 0; }

/// Returns the bytes of one element as stored, without its share of a row's scale. Not for
/// group storages, in which two elements share a byte.
constexpr uint64_t storedByteSize(ElementType element, StorageType storage) {
  return isRowStorage(storage) ? 1 : byteSize(element);
}

using Shape = std::vector<int64_t>;

/// The default alignment of tensors, bytes.
inline constexpr uint32_t defaultAlignment = 64;

struct Layout {
  Space space = Space::DeviceDram;
  /// The elements to step per dimension; for a tiled dimension, from tile to tile. Empty
  /// means dense: row-major, over the tiles of a tiled tensor, and with rows of whole
  /// groups in a group storage.
  std::vector<int64_t> strides;
  /// The extent of a tile per trailing dimension; elements in it are row-major. Empty: not tiled.
  std::vector<uint32_t> tile;
  StorageType storage = StorageType::Element;
  /// Bytes from the start of the storage to the first element; a multiple of `alignment`.
  uint64_t offset = 0;
  /// The alignment of the first byte, in bytes; a power of two.
  uint32_t alignment = defaultAlignment;
  /// With true, an f32 zero point per row follows the scales; for row storages only.
  bool zeroPoints = false;

  bool operator==(const Layout &) const = default;
};

/// Returns `base + bytes <= size` without overflow: the one
/// check of ranges whose numbers come from a file or a caller.
constexpr bool rangeFits(uint64_t base, uint64_t bytes, uint64_t size) { return base <= size && bytes <= size - base; }

/// Return a * b and a + b, or nothing if the result passes 2^63 - 1.
std::optional<uint64_t> checkedMultiply(uint64_t a, uint64_t b);
std::optional<uint64_t> checkedAdd(uint64_t a, uint64_t b);

/// Returns the product of the extents (1 for a scalar); nothing
/// if an extent is negative or the product passes 2^63 - 1.
std::optional<uint64_t> checkedElementCount(std::span<const int64_t> shape);

/// Returns the bytes from the first to behind the last element of a strided view; 0 if it
/// has no element; nothing if a number is negative or the sum overflows.
std::optional<uint64_t> checkedSpanBytes(std::span<const int64_t> shape, std::span<const int64_t> strides,
                                         uint64_t bytesPerElement);

/// Returns the row-major strides of `shape`, in elements.
std::vector<int64_t> denseStrides(std::span<const int64_t> shape);

/// Returns strides of `shape` in tiles without a gap: row-major over the untiled dimensions
/// and the grid of tiles. With an empty `tile`, returns the row-major strides.
std::vector<int64_t> denseStrides(std::span<const int64_t> shape, std::span<const uint32_t> tile);

/// Returns `layout.strides`, or the dense ones where it is empty.
std::vector<int64_t> effectiveStrides(std::span<const int64_t> shape, const Layout &layout);

/// Returns the extents padded up to whole tiles.
Shape paddedExtents(std::span<const int64_t> shape, const Layout &layout);

/// A DimPlacement says what one dimension adds to an address, in elements (see the file's head).
struct DimPlacement {
  int64_t extent = 1;
  /// Extent and step inside a tile; 1 and 0 where the dimension is not tiled.
  int64_t tile = 1, inTile = 0;
  int64_t stride = 0;

  int64_t tiles() const { return extent / tile + (extent % tile != 0); }
  int64_t paddedExtent() const { return tiles() * tile; }
  int64_t at(int64_t index) const { return index / tile * stride + index % tile * inTile; }
};

/// Returns one placement per dimension. The layout must be valid for the shape.
std::vector<DimPlacement> placeDims(std::span<const int64_t> shape, const Layout &layout);

/// Returns the distance of the element at `index` from the first one, in elements.
int64_t elementOffset(std::span<const int64_t> shape, const Layout &layout, std::span<const int64_t> index);

/// Returns the number of rows of a row storage: the extent of dimension 0, or 1 for rank 0
/// and 1; 0 for a tensor without elements.
int64_t rowCount(std::span<const int64_t> shape);

/// The parts of a tensor, in bytes from its first element.
struct LayoutParts {
  /// Bytes from the first element to behind the last one, with
  /// the padding of tiles; a group storage counts whole rows.
  uint64_t elements = 0;
  int64_t rows = 0;
  /// The number of groups in a row; 0 but for group storages.
  int64_t groups = 0;
  /// The offsets at which scales and zero points start; meaningless where there are none.
  uint64_t scales = 0, zeroPoints = 0;
  /// The bytes of all parts together.
  uint64_t bytes = 0;
};

/// Returns a sentence that says what is wrong with tile and strides of a group
/// storage. Returns an empty text if nothing is, and for other storages.
std::string findGroupProblem(std::span<const int64_t> shape, const Layout &layout);

/// Returns nothing if a number is negative or a sum passes 2^63 - 1. The
/// rest of the layout must be valid. A tensor without elements has no bytes.
std::optional<LayoutParts> checkedParts(std::span<const int64_t> shape, ElementType element, const Layout &layout);

/// Returns true if the elements lie row-major without a gap. Strides of
/// dimensions of extent 1 do not matter; a tensor without elements is dense.
bool isDense(std::span<const int64_t> shape, std::span<const int64_t> strides);

/// Returns true if no two indices lie at the same place, by the sufficient
/// rule that sorted by stride, each dimension steps over all smaller ones.
bool isInjective(std::span<const int64_t> shape, std::span<const int64_t> strides);

/// Returns whether no two indices of a layout with tiles lie at the same place; padding counts as written.
bool isInjective(std::span<const int64_t> shape, const Layout &layout);

/// Returns the canonical form of the same placement: strides of dimensions of
/// extent 1 or of one tile as if dense, dense strides left out, everything but
/// space, offset and alignment left out for a tensor without elements. A tile
/// that changes no address is left out: one of ones, and more generally a
/// leading extent that divides its dimension and whose tiles follow each other.
Layout canonicalize(std::span<const int64_t> shape, const Layout &layout);

/// Decides elision: may a tensor of `shape` laid as `given` stand where
/// `wanted` is declared? Compares canonical forms; a greater alignment
/// satisfies a smaller one, not the reverse; `offset` says where the
/// tensor starts in its storage and does not take part. On a device of
/// `unified` memory, host, host_pinned and device_dram are one space.
bool satisfies(std::span<const int64_t> shape, const Layout &given, const Layout &wanted, bool unified);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LAYOUT_LAYOUT_H
