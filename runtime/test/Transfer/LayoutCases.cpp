//===- LayoutCases.cpp - layouts to copy between, and how -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Transfer/LayoutCases.h"
#include "segue/runtime/Layout/RowStorage.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

using namespace segue;
using namespace segue::test;

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

TensorDesc LayoutCase::desc(const Shape &shape) const {
  size_t rank = shape.size(), tiled = std::min(tile.size(), rank);
  Layout layout{.storage = storage, .zeroPoints = zeroPoints};
  layout.tile.assign(tile.end() - std::ptrdiff_t(tiled), tile.end());
  if (isGroupStorage(storage)) {
    // Rows are dense; only they may lie apart.
    if (gap && rank >= 2) {
      layout.tile.clear();
      layout.strides = effectiveStrides(shape, layout);
      layout.strides[0] += gap * groupExtent(storage);
    }
    layout.tile.clear();
    return TensorDesc(shape, element, layout);
  }
  bool isDefault = !rotate && !reverse && !gap && !explicitStrides && !isReadOnly();
  if (isDefault || rank == 0)
    return TensorDesc(shape, element, layout);
  std::vector<size_t> order(rank); // the dimension that steps least comes first
  std::iota(order.rbegin(), order.rend(), 0);
  std::rotate(order.begin(), order.begin() + rotate % int(rank), order.end());
  if (reverse)
    std::ranges::reverse(order);
  layout.strides.resize(rank);
  int64_t step = 1;
  for (uint32_t extent : layout.tile)
    step *= extent;
  step += step > 1 || !layout.tile.empty() ? gap : 0;
  for (size_t dim : order) {
    int64_t tileExtent = dim < rank - tiled ? 1 : layout.tile[dim - (rank - tiled)];
    layout.strides[dim] = step;
    step = step * std::max<int64_t>((shape[dim] + tileExtent - 1) / tileExtent, 1) + gap;
  }
  if (repeatsFirst)
    layout.strides.front() = 0;
  if (repeatsLast)
    layout.strides.back() = 0;
  return TensorDesc(shape, element, layout);
}

std::vector<LayoutCase> segue::test::layoutCases() {
  using E = ElementType;
  constexpr StorageType int8 = StorageType::Int8Row, e4m3 = StorageType::Fp8E4M3Row, e5m2 = StorageType::Fp8E5M2Row;
  constexpr StorageType int4By32 = StorageType::Int4Group32, int4By64 = StorageType::Int4Group64;
  return {
      // Strides.
      {.name = "dense"},
      {.name = "dense, written", .explicitStrides = true},
      {.name = "reversed", .reverse = true},
      {.name = "rotated", .rotate = 1},
      {.name = "rotated and reversed", .rotate = 2, .reverse = true},
      {.name = "padded", .gap = 3},
      {.name = "padded and reversed", .reverse = true, .gap = 5},
      {.name = "first repeated", .repeatsFirst = true},
      {.name = "last repeated", .rotate = 1, .repeatsLast = true},
      // Element types.
      {.name = "bf16", .element = E::bf16},
      {.name = "bf16 reversed", .element = E::bf16, .reverse = true},
      {.name = "bf16 padded", .element = E::bf16, .gap = 1},
      {.name = "f16", .element = E::f16},
      {.name = "f16 rotated", .element = E::f16, .rotate = 1},
      {.name = "i64", .element = E::i64},
      {.name = "i64 reversed", .element = E::i64, .reverse = true},
      {.name = "i32", .element = E::i32},
      {.name = "i32 padded and rotated", .element = E::i32, .rotate = 1, .gap = 2},
      {.name = "i8", .element = E::i8},
      {.name = "i8 reversed", .element = E::i8, .reverse = true},
      {.name = "i1", .element = E::i1},
      {.name = "i1 last repeated", .element = E::i1, .repeatsLast = true},
      // Tiles.
      {.name = "tile 4", .tile = {4}},
      {.name = "tile 2x2", .tile = {2, 2}},
      {.name = "tile 4x8", .tile = {4, 8}},
      {.name = "tile 32x32", .tile = {32, 32}},
      {.name = "tile 1x4", .tile = {1, 4}},
      {.name = "tile 5x1", .tile = {5, 1}},
      {.name = "tile 3x5", .tile = {3, 5}},
      {.name = "tile 2x3x2", .tile = {2, 3, 2}},
      {.name = "tile 2 in all dimensions", .tile = {2, 2, 2, 2, 2}},
      {.name = "tile 4x8, tiles column by column", .tile = {4, 8}, .reverse = true},
      {.name = "tile 4x4, tiles apart", .tile = {4, 4}, .gap = 7},
      {.name = "tile 16x16 bf16", .element = E::bf16, .tile = {16, 16}},
      {.name = "tile 32x32 bf16", .element = E::bf16, .tile = {32, 32}},
      {.name = "tile 8x8 f16 rotated", .element = E::f16, .tile = {8, 8}, .rotate = 1},
      {.name = "tile 4x2 i64", .element = E::i64, .tile = {4, 2}},
      {.name = "tile 6x4 i32", .element = E::i32, .tile = {6, 4}},
      {.name = "tile 16x4 i8", .element = E::i8, .tile = {16, 4}},
      {.name = "tile 8 i1", .element = E::i1, .tile = {8}},
      // Rows.
      {.name = "int8_row", .storage = int8},
      {.name = "int8_row bf16", .element = E::bf16, .storage = int8},
      {.name = "int8_row i32", .element = E::i32, .storage = int8},
      {.name = "int8_row, zero points", .storage = int8, .zeroPoints = true},
      {.name = "int8_row reversed", .storage = int8, .reverse = true},
      {.name = "int8_row padded bf16, zero points", .element = E::bf16, .storage = int8, .zeroPoints = true, .gap = 3},
      {.name = "int8_row tile 4x8", .storage = int8, .tile = {4, 8}},
      {.name = "int8_row tile 3x5, zero points", .storage = int8, .zeroPoints = true, .tile = {3, 5}},
      {.name = "int8_row tile 2 in all dimensions", .storage = int8, .tile = {2, 2, 2, 2, 2}, .reverse = true},
      {.name = "int8_row last repeated", .storage = int8, .rotate = 1, .repeatsLast = true},
      {.name = "int8_row first repeated, zero points", .storage = int8, .zeroPoints = true, .repeatsFirst = true},
      {.name = "fp8_e4m3_row", .storage = e4m3},
      {.name = "fp8_e4m3_row f16 rotated", .element = E::f16, .storage = e4m3, .rotate = 1},
      {.name = "fp8_e4m3_row tile 32x32, zero points", .storage = e4m3, .zeroPoints = true, .tile = {32, 32}},
      {.name = "fp8_e5m2_row", .storage = e5m2},
      {.name = "fp8_e5m2_row i8, zero points", .element = E::i8, .storage = e5m2, .zeroPoints = true},
      {.name = "fp8_e5m2_row tile 4x4 apart", .storage = e5m2, .tile = {4, 4}, .gap = 7},
      // Groups.
      {.name = "int4_group32", .storage = int4By32},
      {.name = "int4_group32 f16, rows apart", .element = E::f16, .storage = int4By32, .gap = 1},
      {.name = "int4_group64", .storage = int4By64},
      {.name = "int4_group64 bf16, rows apart", .element = E::bf16, .storage = int4By64, .gap = 2},
      {.name = "int4_group64 i32", .element = E::i32, .storage = int4By64},
  };
}

std::vector<Shape> segue::test::layoutShapes() {
  return {{},       {1},       {7},          {130},        {1, 5},          {9, 1}, {6, 8},
          {33, 70}, {3, 4, 5}, {1, 7, 1, 3}, {2, 3, 4, 5}, {2, 1, 3, 2, 5}, {0, 4}, {3, 0, 2}};
}

//===----------------------------------------------------------------------===//
// Contents
//===----------------------------------------------------------------------===//

template <typename T> static T load(const std::vector<std::byte> &bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <typename T> static void store(std::vector<std::byte> &bytes, uint64_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

std::vector<std::byte> segue::test::makeContents(const TensorDesc &desc, uint32_t seed, bool nonFinite) {
  std::mt19937 random(seed);
  LayoutParts parts = desc.parts();
  std::vector<std::byte> bytes(parts.bytes);
  StorageType storage = desc.layout.storage;
  auto makeFloat = [&]() -> float {
    switch (random() % (nonFinite ? 40 : 32)) {
    case 0:
      return std::bit_cast<float>(uint32_t(random() & 0x807fffffu)); // denormal or zero
    case 1:
      return -0.0f;
    case 2:
      return float(int(random() % 7) - 3) + 0.5f;
    case 3: // any number below 2^34
      return std::bit_cast<float>(uint32_t((random() & 0x807fffffu) | (random() % 161) << 23));
    case 32:
      return INFINITY;
    case 33:
      return -INFINITY;
    case 34:
      return std::bit_cast<float>(uint32_t(random() | 0x7fc00000u)); // a quiet NaN
    default:
      return float(int32_t(random())) * 0x1p-28f;
    }
  };
  if (isGroupStorage(storage)) {
    for (uint64_t at = 0; at < parts.elements; ++at)
      store(bytes, at, uint8_t(random()));
    for (uint64_t at = parts.scales; at < parts.bytes; at += 2)
      store(bytes, at, floatToBf16(nonFinite && random() % 30 == 0 ? INFINITY : float(random() % 1000 + 1) * 0x1p-9f));
    return bytes;
  }
  uint64_t stored = storedByteSize(desc.element, storage);
  for (uint64_t at = 0; at + stored <= parts.elements; at += stored) {
    if (isRowStorage(storage)) {
      auto code = uint8_t(random());
      while (!nonFinite && !std::isfinite(codeToFloat(code, storage)))
        code = uint8_t(random());
      store(bytes, at, code);
      continue;
    }
    switch (desc.element) {
    case ElementType::f32:
      store(bytes, at, makeFloat());
      break;
    case ElementType::f64:
      store(bytes, at, double(makeFloat()) * (1 + double(random()) * 0x1p-64));
      break;
    case ElementType::bf16:
      store(bytes, at, floatToBf16(makeFloat()));
      break;
    case ElementType::f16: {
      uint16_t bits = floatToF16(makeFloat() * 0.01f);
      bool isFinite = (bits & 0x7c00u) != 0x7c00u;
      store(bytes, at, isFinite || nonFinite ? bits : uint16_t(0x3c00));
      break;
    }
    case ElementType::i64:
      store(bytes, at, int64_t(uint64_t(random()) << 32 | random()) >> random() % 64);
      break;
    case ElementType::i32:
      store(bytes, at, int32_t(random()) >> random() % 32);
      break;
    case ElementType::i8:
      store(bytes, at, int8_t(random()));
      break;
    case ElementType::i1:
      store(bytes, at, uint8_t(random() % 2));
      break;
    }
  }
  if (isRowStorage(storage))
    for (int64_t row = 0; row < parts.rows; ++row) {
      store(bytes, parts.scales + uint64_t(row) * 4, float(random() % 1000 + 1) * 0x1p-9f);
      // Among 16 tensors some have zero points in all rows, some in none.
      float zeroPoint = seed % 4 == 0 || (seed % 4 == 1 && row % 2) ? -0.0f : float(int(random() % 9) - 4);
      if (desc.layout.zeroPoints)
        store(bytes, parts.zeroPoints + uint64_t(row) * 4, zeroPoint);
    }
  return bytes;
}

//===----------------------------------------------------------------------===//
// Reference
//===----------------------------------------------------------------------===//

int64_t segue::test::addressOf(const TensorDesc &desc, const std::vector<int64_t> &index) {
  size_t rank = desc.shape.size(), untiled = rank - desc.layout.tile.size();
  // The element in its tile, row-major.
  int64_t address = 0, tileElements = 1;
  for (size_t dim = rank; dim-- > untiled;) {
    address += index[dim] % desc.layout.tile[dim - untiled] * tileElements;
    tileElements *= desc.layout.tile[dim - untiled];
  }
  // The tile, at the given strides or in a dense row-major grid.
  int64_t gridStep = tileElements;
  for (size_t dim = rank; dim-- > 0;) {
    int64_t tile = dim < untiled ? 1 : desc.layout.tile[dim - untiled];
    if (int64_t group = groupExtent(desc.layout.storage); group && dim == 0 && rank >= 2)
      gridStep = (gridStep + group - 1) / group * group;
    address += index[dim] / tile * (desc.layout.strides.empty() ? gridStep : desc.layout.strides[dim]);
    gridStep *= (desc.shape[dim] + tile - 1) / tile;
  }
  return address;
}

/// Calls fn for every index below `extents`.
template <typename Fn> static void forEachIndex(const Shape &extents, const Fn &fn) {
  if (std::ranges::find(extents, 0) != extents.end())
    return;
  std::vector<int64_t> index(extents.size());
  while (true) {
    fn(index);
    size_t dim = extents.size();
    while (dim-- > 0 && ++index[dim] == extents[dim])
      index[dim] = 0;
    if (dim == size_t(-1))
      return;
  }
}

namespace {
/// A value on its way: integers stay integers.
struct ElementValue {
  bool isInteger = false;
  int64_t integer = 0;
  double number = 0;

  float toFloat() const { return isInteger ? float(integer) : float(number); }
};
} // namespace

static ElementValue readElement(const std::vector<std::byte> &bytes, uint64_t at, ElementType type) {
  switch (type) {
  case ElementType::f32:
    return {.number = load<float>(bytes, at)};
  case ElementType::f64:
    return {.number = load<double>(bytes, at)};
  case ElementType::bf16:
    return {.number = bf16ToFloat(load<uint16_t>(bytes, at))};
  case ElementType::f16:
    return {.number = f16ToFloat(load<uint16_t>(bytes, at))};
  case ElementType::i64:
    return {true, load<int64_t>(bytes, at)};
  case ElementType::i32:
    return {true, load<int32_t>(bytes, at)};
  case ElementType::i8:
    return {true, load<int8_t>(bytes, at)};
  case ElementType::i1:
    return {true, load<uint8_t>(bytes, at) != 0};
  }
  return {};
}

template <typename Integer> static Integer toInteger(const ElementValue &value) {
  if (value.isInteger)
    return Integer(value.integer);
  if (std::isnan(value.number))
    return 0;
  // The limits as doubles: the upper one of i64 rounds up to 2^63.
  double number = std::trunc(value.number);
  if (number >= double(std::numeric_limits<Integer>::max()))
    return std::numeric_limits<Integer>::max();
  if (number <= double(std::numeric_limits<Integer>::min()))
    return std::numeric_limits<Integer>::min();
  return Integer(number);
}

static void writeElement(std::vector<std::byte> &bytes, uint64_t at, ElementType type, const ElementValue &value) {
  switch (type) {
  case ElementType::f32:
    return store(bytes, at, value.toFloat());
  case ElementType::f64:
    return store(bytes, at, value.isInteger ? double(value.integer) : value.number);
  case ElementType::bf16:
    return store(bytes, at, floatToBf16(value.toFloat()));
  case ElementType::f16:
    return store(bytes, at, floatToF16(value.toFloat()));
  case ElementType::i64:
    return store(bytes, at, toInteger<int64_t>(value));
  case ElementType::i32:
    return store(bytes, at, toInteger<int32_t>(value));
  case ElementType::i8:
    return store(bytes, at, toInteger<int8_t>(value));
  case ElementType::i1:
    return store(bytes, at, uint8_t(value.isInteger ? value.integer != 0 : value.number != 0));
  }
}

namespace {
/// The packed side of a copy: where a code lies, in half bytes, and its scale.
struct GroupPlaces {
  explicit GroupPlaces(const TensorDesc &desc) : desc(desc), group(groupExtent(desc.layout.storage)) {
    if (group == 0 || desc.elementCount() == 0)
      return;
    rows = desc.shape.size() < 2 ? 1 : desc.shape[0];
    columns = int64_t(desc.elementCount()) / rows;
    rowStep = desc.shape.size() >= 2 && !desc.layout.strides.empty() ? desc.layout.strides[0]
                                                                     : (columns + group - 1) / group * group;
    scales = uint64_t((rows * rowStep / 2 + 63) / 64 * 64);
  }

  uint64_t scaleAt(int64_t row, int64_t of) const { return scales + 2 * uint64_t(of * rows + row); }
  uint64_t scaleOf(int64_t place) const { return scaleAt(place / rowStep, place % rowStep / group); }
  int code(const std::vector<std::byte> &bytes, int64_t place) const {
    int nibble = int(bytes[uint64_t(place / 2)]) >> (place % 2 * 4) & 15;
    return nibble < 8 ? nibble : nibble - 16;
  }

  const TensorDesc &desc;
  int64_t group, rows = 0, columns = 0, rowStep = 0;
  uint64_t scales = 0;
};
} // namespace

/// Into group storage. `read` gives the values.
template <typename Read>
static void referenceGroups(const TensorDesc &source, const std::vector<std::byte> &bytes, const TensorDesc &target,
                            std::vector<std::byte> &result, const Read &read, int64_t &firstNonFinite) {
  GroupPlaces from(source), to(target);
  std::fill(result.begin(), result.begin() + std::ptrdiff_t(to.scales), std::byte(0));
  std::vector<std::vector<float>> values(size_t(to.rows), std::vector<float>(size_t(to.rowStep)));
  bool moves = source.layout.storage == target.layout.storage;
  auto put = [&](int64_t place, int code) { result[uint64_t(place / 2)] |= std::byte((code & 15) << (place % 2 * 4)); };
  forEachIndex(source.shape, [&](const std::vector<int64_t> &index) {
    int64_t place = addressOf(target, index);
    if (moves)
      put(place, from.code(bytes, addressOf(source, index)));
    else
      values[size_t(place / to.rowStep)][size_t(place % to.rowStep)] = read(index).toFloat();
  });
  for (int64_t row = 0; row < to.rows; ++row)
    for (int64_t group = 0; group < to.rowStep / to.group; ++group) {
      bool isUsed = group * to.group < to.columns;
      if (moves) {
        store(result, to.scaleAt(row, group),
              isUsed ? load<uint16_t>(bytes, from.scaleAt(row, group)) : floatToBf16(1.0f));
        continue;
      }
      float *of = &values[size_t(row)][size_t(group * to.group)], largest = 0;
      for (float &value : std::span(of, size_t(to.group))) {
        if (!std::isfinite(value) && firstNonFinite < 0)
          firstNonFinite = row;
        value = std::isfinite(value) ? value : 0;
        largest = std::max(largest, std::abs(value));
      }
      float scale = bf16ToFloat(floatToBf16(largest / 7));
      scale = std::isnormal(scale) ? scale : 1;
      store(result, to.scaleAt(row, group), floatToBf16(scale));
      for (int64_t i = 0; i < to.group; ++i)
        put(row * to.rowStep + group * to.group + i, int(std::nearbyint(std::clamp(of[i] / scale, -8.0f, 7.0f))));
    }
}

std::vector<std::byte> segue::test::referenceCopy(const TensorDesc &source, const std::vector<std::byte> &bytes,
                                                  const TensorDesc &target, std::vector<std::byte> result,
                                                  int64_t &firstNonFinite) {
  firstNonFinite = -1;
  if (source.elementCount() == 0)
    return result;
  LayoutParts from = source.parts(), to = target.parts();
  StorageType sourceStorage = source.layout.storage, targetStorage = target.layout.storage;
  bool sourceRows = isRowStorage(sourceStorage), targetRows = isRowStorage(targetStorage);
  GroupPlaces sourceGroups(source);
  bool isSourceCoded = sourceRows || sourceGroups.group;
  uint64_t sourceSize = storedByteSize(source.element, sourceStorage);
  uint64_t targetSize = storedByteSize(target.element, targetStorage);
  auto rowOf = [&](const std::vector<int64_t> &index) { return index.size() < 2 ? 0 : uint64_t(index[0]); };
  auto sourceScale = [&](uint64_t row) { return load<float>(bytes, from.scales + row * 4); };
  auto sourceZero = [&](uint64_t row) {
    return source.layout.zeroPoints ? load<float>(bytes, from.zeroPoints + row * 4) : 0.0f;
  };
  auto read = [&](const std::vector<int64_t> &index) -> ElementValue {
    if (sourceGroups.group) {
      int64_t place = addressOf(source, index);
      float scale = bf16ToFloat(load<uint16_t>(bytes, sourceGroups.scaleOf(place)));
      return {.number = float(sourceGroups.code(bytes, place)) * scale};
    }
    uint64_t at = uint64_t(addressOf(source, index)) * sourceSize, row = rowOf(index);
    if (!sourceRows)
      return readElement(bytes, at, source.element);
    return {.number = (codeToFloat(load<uint8_t>(bytes, at), sourceStorage) - sourceZero(row)) * sourceScale(row)};
  };

  if (isGroupStorage(targetStorage)) {
    referenceGroups(source, bytes, target, result, read, firstNonFinite);
    return result;
  }

  // Padding, and the gap before the scales.
  Shape padded = target.shape;
  for (size_t i = 0, untiled = padded.size() - target.layout.tile.size(); i < target.layout.tile.size(); ++i) {
    int64_t tile = target.layout.tile[i];
    padded[untiled + i] = (padded[untiled + i] + tile - 1) / tile * tile;
  }
  forEachIndex(padded, [&](const std::vector<int64_t> &index) {
    uint64_t at = uint64_t(addressOf(target, index)) * targetSize;
    std::fill_n(result.begin() + std::ptrdiff_t(at), targetSize, std::byte(0));
  });
  if (targetRows)
    std::fill(result.begin() + std::ptrdiff_t(to.elements), result.begin() + std::ptrdiff_t(to.scales), std::byte(0));

  // Scales of the target, and which rows keep their codes.
  auto rows = uint64_t(to.rows);
  std::vector<uint8_t> keeps(rows);
  std::vector<float> scales(rows);
  if (targetRows) {
    std::vector<float> largest(rows);
    std::vector<uint8_t> hasNonFinite(rows);
    forEachIndex(source.shape, [&](const std::vector<int64_t> &index) {
      float magnitude = std::abs(read(index).toFloat());
      if (std::isfinite(magnitude))
        largest[rowOf(index)] = std::max(largest[rowOf(index)], magnitude);
      else
        hasNonFinite[rowOf(index)] = 1;
    });
    for (uint64_t row = 0; row < rows; ++row) {
      keeps[row] = sourceStorage == targetStorage && (target.layout.zeroPoints || sourceZero(row) == 0);
      scales[row] = keeps[row] ? sourceScale(row) : std::max(largest[row] / largestCode(targetStorage), 1e-8f);
      if (!keeps[row] && hasNonFinite[row] && firstNonFinite < 0)
        firstNonFinite = int64_t(row);
      store(result, to.scales + row * 4, scales[row]);
      if (target.layout.zeroPoints)
        store(result, to.zeroPoints + row * 4, keeps[row] ? sourceZero(row) : 0.0f);
    }
  }

  forEachIndex(source.shape, [&](const std::vector<int64_t> &index) {
    uint64_t at = uint64_t(addressOf(target, index)) * targetSize, row = rowOf(index);
    if (targetRows && keeps[row]) {
      result[at] = bytes[uint64_t(addressOf(source, index))];
    } else if (targetRows) {
      float inverse = 1.0f / scales[row];
      store(result, at, floatToCode(read(index).toFloat() * inverse, targetStorage));
    } else if (!isSourceCoded && source.element == target.element) {
      std::copy_n(bytes.begin() + addressOf(source, index) * int64_t(sourceSize), sourceSize,
                  result.begin() + std::ptrdiff_t(at));
    } else {
      ElementValue value = read(index);
      if (isSourceCoded && !isFloat(target.element) && target.element != ElementType::i1)
        value.number = std::nearbyint(value.number);
      writeElement(result, at, target.element, value);
    }
  });
  return result;
}
