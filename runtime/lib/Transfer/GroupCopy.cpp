//===- GroupCopy.cpp - copies from and to group storage -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GroupCopy.h"
#include "segue/runtime/Layout/GroupStorage.h"
#include <algorithm>
#include <bit>
#include <cstring>

namespace segue::inline runtime {

/// The number 1 as bf16: the scale of a group of zeros.
static constexpr uint16_t unitScale = 0x3f80;

GroupCopy::Side::Side(const TensorDesc &desc)
    : element(desc.element), storage(desc.layout.storage), zeroPoints(desc.layout.zeroPoints), parts(desc.parts()),
      bytes(int64_t(storedByteSize(desc.element, desc.layout.storage))), dims(placeDims(desc.shape, desc.layout)) {
  if (dims.size() >= 2) {
    row = dims.front();
    dims.erase(dims.begin());
  }
  std::erase_if(dims, [](const DimPlacement &dim) { return dim.extent == 1; });
  // Dimensions that follow each other are one.
  for (size_t dim = dims.size(); dim-- > 1;) {
    DimPlacement &outer = dims[dim - 1], &inner = dims[dim];
    if (outer.tile != 1 || inner.tile != 1 || outer.stride != inner.extent * inner.stride)
      continue;
    outer.extent *= inner.extent;
    outer.stride = inner.stride;
    dims.erase(dims.begin() + ptrdiff_t(dim));
  }
  if (dims.empty())
    dims.push_back({.extent = 1, .stride = 1});
}

GroupCopy::GroupCopy(const TensorDesc &source, const TensorDesc &target, const ElementKernels &kernels,
                     const BlockKernels &blocks)
    : source_(source), target_(target), kernels_(&kernels), blocks_(&blocks) {
  rows_ = rowCount(source.shape);
  columns_ = int64_t(source.elementCount()) / rows_;
  bool toGroups = isGroupStorage(target_.storage);
  group_ = groupExtent(toGroups ? target_.storage : source_.storage);
  groups_ = toGroups ? target_.parts.groups : (columns_ + group_ - 1) / group_;
  moves_ = source_.storage == target_.storage;
  // Rows need their scale before the first code.
  byRow_ = moves_ || isRowStorage(target_.storage);
}

/// Calls fn(offset, step, done, count) for the elements [first, first + count)
/// of a row, in runs that step alike: `offset` and `step` in elements, `done`
/// elements came before.
template <typename Fn> void GroupCopy::forEachRun(const Side &side, int64_t row, int64_t first, int64_t count, Fn fn) {
  const DimPlacement &last = side.dims.back();
  int64_t step = last.tile == 1 ? last.stride : last.inTile;
  for (int64_t done = 0; done < count;) {
    int64_t offset = side.row.at(row), rest = first + done;
    int64_t index = rest % last.extent;
    rest /= last.extent;
    for (size_t dim = side.dims.size() - 1; dim-- > 0; rest /= side.dims[dim].extent)
      offset += side.dims[dim].at(rest % side.dims[dim].extent);
    int64_t run = last.tile == 1 ? last.extent - index : std::min(last.tile - index % last.tile, last.extent - index);
    run = std::min(run, count - done);
    fn(offset + last.at(index), step, done, run);
    done += run;
  }
}

/// Reads at most largestGroup elements of a row as f32.
void GroupCopy::read(const std::byte *source, int64_t row, int64_t first, int64_t count, float *values) const {
  const LayoutParts &parts = source_.parts;
  if (int64_t group = groupExtent(source_.storage)) {
    const std::byte *codes = source + (row * parts.groups * group + first) / 2;
    for (int64_t done = 0; done < count; done += group) {
      uint16_t scale;
      std::memcpy(&scale, source + parts.scales + 2 * ((first + done) / group * parts.rows + row), sizeof scale);
      kernels_->decodeInt4(std::min(group, count - done), reinterpret_cast<const uint8_t *>(codes + done / 2),
                           bf16ToFloat(scale), values + done);
    }
    return;
  }
  alignas(64) std::byte gathered[largestGroup * 8];
  int64_t bytes = source_.bytes;
  forEachRun(source_, row, first, count, [&](int64_t offset, int64_t step, int64_t done, int64_t run) {
    blocks_->move[std::countr_zero(uint64_t(bytes))](run, source + offset * bytes, step * bytes, gathered + done * bytes, bytes);
  });
  if (isRowStorage(source_.storage)) {
    float scale, zeroPoint = 0;
    std::memcpy(&scale, source + parts.scales + 4 * row, sizeof scale);
    if (source_.zeroPoints)
      std::memcpy(&zeroPoint, source + parts.zeroPoints + 4 * row, sizeof zeroPoint);
    kernels_->decode[size_t(source_.storage) - 1](count, reinterpret_cast<const uint8_t *>(gathered), scale, zeroPoint,
                                                  values);
  } else if (auto *toFloat = kernels_->toFloat[size_t(source_.element)]) {
    toFloat(count, gathered, values);
  } else {
    std::memcpy(values, gathered, size_t(count) * sizeof(float));
  }
}

void GroupCopy::scatter(std::byte *target, int64_t row, int64_t first, int64_t count, const std::byte *elements) const {
  int64_t bytes = target_.bytes;
  forEachRun(target_, row, first, count, [&](int64_t offset, int64_t step, int64_t done, int64_t run) {
    blocks_->move[std::countr_zero(uint64_t(bytes))](run, elements + done * bytes, bytes, target + offset * bytes, step * bytes);
  });
}

/// Rounds once, to integers to the nearest.
void GroupCopy::writeElements(std::byte *target, int64_t row, int64_t first, int64_t count, const float *values) const {
  alignas(64) std::byte rounded[largestGroup * 8];
  auto *round = (isFloat(target_.element) ? kernels_->fromFloat : kernels_->roundFloat)[size_t(target_.element)];
  if (round)
    round(count, values, rounded);
  scatter(target, row, first, count, round ? rounded : reinterpret_cast<const std::byte *>(values));
}

void GroupCopy::writeCodes(std::byte *target, int64_t row, int64_t first, int64_t count, const float *values,
                           float scale) const {
  alignas(64) uint8_t codes[largestGroup];
  kernels_->encode[size_t(target_.storage) - 1](count, values, scale, codes);
  scatter(target, row, first, count, reinterpret_cast<const std::byte *>(codes));
}

/// A row of a target in row storage.
int64_t GroupCopy::writeRow(const std::byte *source, std::byte *target, int64_t row) const {
  alignas(64) float values[largestGroup];
  auto forEachPiece = [&](auto fn) {
    for (int64_t first = 0; first < columns_; first += group_) {
      int64_t count = std::min(group_, columns_ - first);
      read(source, row, first, count, values);
      fn(first, count);
    }
  };
  constexpr uint32_t infinity = 0x7f800000u;
  uint32_t largest = 0;
  forEachPiece([&](int64_t, int64_t count) { largest = std::max(largest, kernels_->largest(count, values)); });
  int64_t nonFinite = largest >= infinity ? row : -1;
  if (nonFinite >= 0) {
    largest = 0;
    forEachPiece([&](int64_t, int64_t count) { largest = std::max(largest, kernels_->largestFinite(count, values)); });
  }
  float scale = rowScale(std::bit_cast<float>(largest), target_.storage), zeroPoint = 0;
  std::memcpy(target + target_.parts.scales + 4 * row, &scale, sizeof scale);
  if (target_.zeroPoints)
    std::memcpy(target + target_.parts.zeroPoints + 4 * row, &zeroPoint, sizeof zeroPoint);
  forEachPiece([&](int64_t first, int64_t count) { writeCodes(target, row, first, count, values, scale); });
  return nonFinite;
}

/// A group of a target in group storage.
int64_t GroupCopy::writeGroup(const std::byte *source, std::byte *target, int64_t row, int64_t group) const {
  alignas(64) float values[largestGroup] = {};
  int64_t first = group * group_, count = std::clamp<int64_t>(columns_ - first, 0, group_);
  if (count > 0)
    read(source, row, first, count, values);
  const LayoutParts &parts = target_.parts;
  GroupScale result =
      quantizeGroup({values, size_t(group_)}, target + (row * parts.groups * group_ + first) / 2, ScaleSearch::AbsMax);
  std::memcpy(target + parts.scales + 2 * (group * parts.rows + row), &result.scale, sizeof result.scale);
  return result.firstNonFinite >= 0 ? row : -1;
}

/// Moves codes and scales as they are; padding becomes zeros.
void GroupCopy::moveRow(const std::byte *source, std::byte *target, int64_t row) const {
  const LayoutParts &from = source_.parts, &to = target_.parts;
  const std::byte *codes = source + row * from.groups * group_ / 2;
  std::byte *moved = target + row * to.groups * group_ / 2;
  std::memcpy(moved, codes, size_t(columns_ / 2));
  std::memset(moved + columns_ / 2, 0, size_t(to.groups * group_ / 2 - columns_ / 2));
  if (columns_ % 2)
    moved[columns_ / 2] = codes[columns_ / 2] & std::byte(15);
  int64_t used = (columns_ + group_ - 1) / group_;
  for (int64_t group = 0; group < to.groups; ++group) {
    std::byte *scale = target + to.scales + 2 * (group * to.rows + row);
    if (group < used)
      std::memcpy(scale, source + from.scales + 2 * (group * from.rows + row), sizeof unitScale);
    else
      std::memcpy(scale, &unitScale, sizeof unitScale);
  }
}

int64_t GroupCopy::run(const std::byte *source, std::byte *target, int64_t begin, int64_t end) const {
  int64_t nonFinite = -1;
  for (int64_t item = begin; item < end; ++item) {
    int64_t found = -1;
    if (moves_) {
      moveRow(source, target, item);
    } else if (byRow_) {
      found = writeRow(source, target, item);
    } else if (isGroupStorage(target_.storage)) {
      found = writeGroup(source, target, item / groups_, item % groups_);
    } else {
      alignas(64) float values[largestGroup];
      int64_t first = item % groups_ * group_, count = std::min(group_, columns_ - first);
      read(source, item / groups_, first, count, values);
      writeElements(target, item / groups_, first, count, values);
    }
    if (nonFinite < 0)
      nonFinite = found;
  }
  return nonFinite;
}

} // namespace segue::inline runtime
