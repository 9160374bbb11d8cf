//===- Layout.cpp - arithmetic of layouts ---------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Layout/Layout.h"
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
  case Space::Disk:
    return "disk";
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
  case StorageType::Int4Group32:
    return "int4_group32";
  case StorageType::Int4Group64:
    return "int4_group64";
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

/// The tile of dimension `dim`, 1 where it is not tiled.
static int64_t tileOf(size_t rank, std::span<const uint32_t> tile, size_t dim) {
  size_t untiled = rank - tile.size();
  return dim < untiled ? 1 : int64_t(tile[dim - untiled]);
}

static int64_t tilesOf(int64_t extent, int64_t tile) { return extent / tile + (extent % tile != 0); }

static uint64_t elementsPerTile(std::span<const uint32_t> tile) {
  uint64_t elements = 1; // wraps only for tiles that checkedParts refuses
  for (uint32_t extent : tile)
    elements *= extent;
  return elements;
}

std::vector<int64_t> denseStrides(std::span<const int64_t> shape) { return denseStrides(shape, {}); }

std::vector<int64_t> denseStrides(std::span<const int64_t> shape, std::span<const uint32_t> tile) {
  std::vector<int64_t> strides(shape.size());
  uint64_t stride = elementsPerTile(tile);
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = int64_t(stride);
    // Wraps for shapes without elements whose other extents are huge; nothing
    // is ever reached by those strides.
    stride *= uint64_t(std::max<int64_t>(tilesOf(shape[dim], tileOf(shape.size(), tile, dim)), 1));
  }
  return strides;
}

/// The strides that a layout stands for without any.
static std::vector<int64_t> defaultStrides(std::span<const int64_t> shape, const Layout &layout) {
  std::vector<int64_t> strides = denseStrides(shape, layout.tile);
  if (auto group = uint64_t(groupExtent(layout.storage)); group && shape.size() >= 2)
    strides[0] = int64_t((uint64_t(strides[0]) + group - 1) / group * group);
  return strides;
}

std::vector<int64_t> effectiveStrides(std::span<const int64_t> shape, const Layout &layout) {
  return layout.strides.empty() ? defaultStrides(shape, layout) : layout.strides;
}

Shape paddedExtents(std::span<const int64_t> shape, const Layout &layout) {
  Shape padded(shape.begin(), shape.end());
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    // Wraps only where checkedParts refuses, or nothing has an element.
    int64_t tile = tileOf(shape.size(), layout.tile, dim);
    padded[dim] = int64_t(uint64_t(tilesOf(shape[dim], tile)) * uint64_t(tile));
  }
  return padded;
}

std::vector<DimPlacement> placeDims(std::span<const int64_t> shape, const Layout &layout) {
  std::vector<int64_t> strides = effectiveStrides(shape, layout);
  std::vector<DimPlacement> dims(shape.size());
  size_t untiled = shape.size() - layout.tile.size();
  uint64_t inTile = 1; // wraps only for tiles that checkedParts refuses
  for (size_t dim = shape.size(); dim-- > 0;) {
    dims[dim] = {.extent = shape[dim], .stride = strides[dim]};
    if (dim < untiled)
      continue;
    dims[dim].tile = layout.tile[dim - untiled];
    dims[dim].inTile = int64_t(inTile);
    inTile *= uint64_t(dims[dim].tile);
  }
  return dims;
}

int64_t elementOffset(std::span<const int64_t> shape, const Layout &layout, std::span<const int64_t> index) {
  int64_t offset = 0;
  std::vector<DimPlacement> dims = placeDims(shape, layout);
  for (size_t dim = 0; dim < dims.size(); ++dim)
    offset += dims[dim].at(index[dim]);
  return offset;
}

static bool hasNoElements(std::span<const int64_t> shape) { return std::ranges::find(shape, 0) != shape.end(); }

int64_t rowCount(std::span<const int64_t> shape) {
  if (hasNoElements(shape))
    return 0;
  return shape.size() < 2 ? 1 : shape[0];
}

/// Returns the bytes of the elements, padding of tiles included.
static std::optional<uint64_t> checkedElementBytes(std::span<const int64_t> shape, const Layout &layout,
                                                   uint64_t bytesPerElement) {
  std::optional<uint64_t> tileElements = 1, elements = 1;
  for (uint32_t extent : layout.tile)
    tileElements = tileElements ? checkedMultiply(*tileElements, extent) : std::nullopt;
  if (!tileElements)
    return std::nullopt;
  // The dense strides wrap if the padded extents do, so check these first.
  std::vector<int64_t> grid(shape.size());
  elements = tileElements;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    grid[dim] = tilesOf(shape[dim], tileOf(shape.size(), layout.tile, dim));
    elements = elements ? checkedMultiply(*elements, uint64_t(grid[dim])) : std::nullopt;
  }
  if (layout.strides.empty())
    return elements ? checkedMultiply(*elements, bytesPerElement) : std::nullopt;
  auto lastTile = checkedSpanBytes(grid, layout.strides, 1);
  auto sum = lastTile ? checkedAdd(*lastTile, *tileElements - 1) : std::nullopt;
  return sum ? checkedMultiply(*sum, bytesPerElement) : std::nullopt;
}

/// The bytes of which the offset of scales is a multiple.
static constexpr uint64_t scaleAlignment = 64;

std::string findGroupProblem(std::span<const int64_t> shape, const Layout &layout) {
  int64_t group = groupExtent(layout.storage);
  if (group == 0 || hasNoElements(shape))
    return {};
  std::string storage(name(layout.storage));
  if (!layout.tile.empty())
    return storage + " storage has no tiles";
  if (layout.strides.empty())
    return {};
  std::vector<int64_t> dense = denseStrides(shape);
  size_t first = shape.size() < 2 ? 0 : 1;
  for (size_t dim = first; dim < shape.size(); ++dim)
    if (shape[dim] != 1 && layout.strides[dim] != dense[dim])
      return "rows in " + storage + " storage are dense, but stride " + std::to_string(dim) + " is " +
             std::to_string(layout.strides[dim]);
  if (first == 1 && (layout.strides[0] < dense[0] || layout.strides[0] % group != 0))
    return "rows in " + storage + " storage are whole groups of " + std::to_string(group) + ", but stride 0 is " +
           std::to_string(layout.strides[0]) + " for rows of " + std::to_string(dense[0]);
  return {};
}

/// Returns the parts of a group storage whose tile and strides are right; `elements` are not 0.
static std::optional<LayoutParts> checkedGroupParts(std::span<const int64_t> shape, const Layout &layout,
                                                    uint64_t elements) {
  LayoutParts parts{.rows = rowCount(shape)};
  auto group = uint64_t(groupExtent(layout.storage));
  uint64_t row = elements / uint64_t(parts.rows);
  if (shape.size() >= 2 && !layout.strides.empty())
    row = uint64_t(layout.strides[0]);
  auto padded = checkedAdd(row, group - 1);
  auto groups = padded ? checkedMultiply(*padded / group, uint64_t(parts.rows)) : std::nullopt;
  auto codes = groups ? checkedMultiply(*groups, group / 2) : std::nullopt;
  auto scales = codes ? checkedAdd(*codes, scaleAlignment - 1) : std::nullopt;
  // Twice the groups are fewer bytes than the codes.
  auto bytes = scales ? checkedAdd(*scales / scaleAlignment * scaleAlignment, *groups * 2) : std::nullopt;
  if (!bytes)
    return std::nullopt;
  parts.groups = int64_t(*padded / group);
  parts.elements = *codes;
  parts.scales = *scales / scaleAlignment * scaleAlignment;
  parts.bytes = *bytes;
  return parts;
}

std::optional<LayoutParts> checkedParts(std::span<const int64_t> shape, ElementType element, const Layout &layout) {
  auto count = checkedElementCount(shape);
  if (!count || std::ranges::any_of(layout.strides, [](int64_t stride) { return stride < 0; }))
    return std::nullopt;
  if (*count == 0)
    return LayoutParts{};
  if (isGroupStorage(layout.storage))
    return checkedGroupParts(shape, layout, *count);
  auto elements = checkedElementBytes(shape, layout, storedByteSize(element, layout.storage));
  if (!elements)
    return std::nullopt;
  LayoutParts parts{.elements = *elements, .rows = rowCount(shape), .bytes = *elements};
  if (!isRowStorage(layout.storage))
    return parts;
  auto aligned = checkedAdd(*elements, scaleAlignment - 1);
  auto rowBytes = checkedMultiply(uint64_t(parts.rows), sizeof(float));
  if (!aligned || !rowBytes)
    return std::nullopt;
  parts.scales = *aligned / scaleAlignment * scaleAlignment;
  auto end = checkedAdd(parts.scales, *rowBytes);
  parts.zeroPoints = end.value_or(0);
  if (end && layout.zeroPoints)
    end = checkedAdd(*end, *rowBytes);
  if (!end)
    return std::nullopt;
  parts.bytes = *end;
  return parts;
}

bool isDense(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  if (hasNoElements(shape))
    return true;
  uint64_t expected = 1; // wraps only for shapes of more elements than any tensor has
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] != 1 && strides[dim] != int64_t(expected))
      return false;
    expected *= uint64_t(shape[dim]);
  }
  return true;
}

bool isInjective(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  return isInjective(shape, Layout{.strides = {strides.begin(), strides.end()}});
}

bool isInjective(std::span<const int64_t> shape, const Layout &layout) {
  if (hasNoElements(shape))
    return true;
  std::vector<DimPlacement> dims = placeDims(shape, layout);
  std::erase_if(dims, [](const DimPlacement &dim) { return dim.tiles() == 1; });
  std::ranges::sort(dims, {}, &DimPlacement::stride);
  // A tile is a run of its own; `reach` is the offset of the last element over
  // the smaller dimensions.
  uint64_t reach = elementsPerTile(layout.tile) - 1;
  for (const DimPlacement &dim : dims) {
    if (uint64_t(dim.stride) <= reach)
      return false;
    reach += uint64_t(dim.stride) * uint64_t(dim.tiles() - 1);
  }
  return true;
}

/// Leaves out leading tile extents that change no address. Those of 1 step as
/// an untiled dimension does; others must divide their dimension, so that no
/// padding is lost, and their tiles must follow each other.
static void dropTrivialTiles(std::span<const int64_t> shape, Layout &layout) {
  while (!layout.tile.empty()) {
    size_t dim = shape.size() - layout.tile.size();
    int64_t tile = layout.tile[0];
    if (tile != 1) {
      auto inTile = int64_t(elementsPerTile(std::span(layout.tile).subspan(1)));
      bool follows = shape[dim] == tile || effectiveStrides(shape, layout)[dim] == int64_t(uint64_t(tile) * uint64_t(inTile));
      if (shape[dim] % tile != 0 || !follows)
        return;
      layout.strides = effectiveStrides(shape, layout);
      layout.strides[dim] = inTile;
    }
    layout.tile.erase(layout.tile.begin());
  }
}

Layout canonicalize(std::span<const int64_t> shape, const Layout &layout) {
  if (hasNoElements(shape))
    return Layout{.space = layout.space, .offset = layout.offset, .alignment = layout.alignment};
  Layout canonical = layout;
  canonical.zeroPoints = layout.zeroPoints && isRowStorage(layout.storage);
  if (isGroupStorage(layout.storage)) {
    // The stride of rows also says how many scales there are; the others are
    // known.
    std::vector<int64_t> strides = defaultStrides(shape, layout);
    canonical.strides.clear();
    if (shape.size() >= 2 && !layout.strides.empty() && layout.strides[0] != strides[0]) {
      strides[0] = layout.strides[0];
      canonical.strides = std::move(strides);
    }
    return canonical;
  }
  dropTrivialTiles(shape, canonical);
  if (canonical.strides.empty())
    return canonical;
  // Dimensions of one tile (untiled: of extent 1) step as if dense.
  int64_t next = int64_t(elementsPerTile(canonical.tile));
  for (size_t dim = shape.size(); dim-- > 0;) {
    int64_t tiles = tilesOf(shape[dim], tileOf(shape.size(), canonical.tile, dim));
    if (tiles == 1)
      canonical.strides[dim] = next;
    // A stride that no address shows may be too large to go on from.
    next = int64_t(checkedMultiply(uint64_t(canonical.strides[dim]), uint64_t(tiles)).value_or(0));
  }
  if (canonical.strides == denseStrides(shape, canonical.tile))
    canonical.strides.clear();
  return canonical;
}

static Space sharedSpace(Space space, bool unified) {
  return unified && space != Space::DeviceL1 ? Space::DeviceDram : space;
}

bool satisfies(std::span<const int64_t> shape, const Layout &given, const Layout &wanted, bool unified) {
  if (sharedSpace(given.space, unified) != sharedSpace(wanted.space, unified))
    return false;
  if (hasNoElements(shape))
    return true;
  if (given.alignment < wanted.alignment)
    return false;
  Layout a = canonicalize(shape, given), b = canonicalize(shape, wanted);
  return a.strides == b.strides && a.tile == b.tile && a.storage == b.storage && a.zeroPoints == b.zeroPoints;
}

} // namespace segue::inline runtime
