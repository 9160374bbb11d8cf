//===- CopyPlan.cpp - one strided view into another -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Dimensions are ordered by the target's strides, so that writes are as
// straight as can be, and merged where both sides allow. What remains is an
// odometer over rows and one of 49 row loops, chosen by the element types. If
// the source is straight along another dimension than the target, rows are cut
// and taken in square blocks, so that each cache line is fetched once.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Threads.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace segue::inline runtime {

/// Copies with more dimensions than this after merging are refused.
static constexpr size_t maxDims = 16;
/// Extent of a square block of a transposing copy.
static constexpr int64_t blockExtent = 32;
/// Below this, one thread is faster, bytes.
static constexpr uint64_t parallelBytes = 256 << 10;

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

namespace {
// The C++ type that holds an element, and one that computes with its value.
template <ElementType> struct Element;
template <> struct Element<ElementType::f32> {
  using Stored = float;
  static float load(float value) { return value; }
};
template <> struct Element<ElementType::bf16> {
  using Stored = uint16_t;
  static float load(uint16_t bits) { return bf16ToFloat(bits); }
};
template <> struct Element<ElementType::f16> {
  using Stored = uint16_t;
  static float load(uint16_t bits) { return f16ToFloat(bits); }
};
template <> struct Element<ElementType::i64> {
  using Stored = int64_t;
  static int64_t load(int64_t value) { return value; }
};
template <> struct Element<ElementType::i32> {
  using Stored = int32_t;
  static int32_t load(int32_t value) { return value; }
};
template <> struct Element<ElementType::i8> {
  using Stored = int8_t;
  static int8_t load(int8_t value) { return value; }
};
template <> struct Element<ElementType::i1> {
  using Stored = uint8_t;
  static int8_t load(uint8_t value) { return value != 0; }
};
} // namespace

/// Drops the fraction and saturates; NaN becomes 0.
template <typename Integer> static Integer floatToInteger(float value) {
  constexpr float lowest = float(std::numeric_limits<Integer>::min()); // a power of two: exact
  if (std::isnan(value))
    return 0;
  if (value < lowest)
    return std::numeric_limits<Integer>::min();
  if (value >= -lowest)
    return std::numeric_limits<Integer>::max();
  return Integer(value);
}

template <ElementType from, ElementType to>
static typename Element<to>::Stored convert(typename Element<from>::Stored stored) {
  auto value = Element<from>::load(stored);
  if constexpr (to == ElementType::i1)
    return value != 0;
  else if constexpr (to == ElementType::f32)
    return float(value);
  else if constexpr (to == ElementType::bf16)
    return floatToBf16(float(value));
  else if constexpr (to == ElementType::f16)
    return floatToF16(float(value));
  else if constexpr (std::is_same_v<decltype(value), float>)
    return floatToInteger<typename Element<to>::Stored>(value);
  else
    return typename Element<to>::Stored(value);
}

/// One row. The straight case is apart so that the compiler vectorises it.
template <ElementType from, ElementType to>
static void copyRow(const std::byte *source, int64_t sourceStep, std::byte *target, int64_t targetStep, int64_t count) {
  using From = typename Element<from>::Stored;
  using To = typename Element<to>::Stored;
  if (sourceStep == sizeof(From) && targetStep == sizeof(To)) {
    if constexpr (from == to && from != ElementType::i1) {
      std::memcpy(target, source, size_t(count) * sizeof(From));
    } else {
      auto *read = reinterpret_cast<const From *>(source);
      auto *write = reinterpret_cast<To *>(target);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        write[i] = convert<from, to>(read[i]);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    auto stored = *reinterpret_cast<const From *>(source);
    *reinterpret_cast<To *>(target) = from == to && from != ElementType::i1 ? To(stored) : convert<from, to>(stored);
    source += sourceStep;
    target += targetStep;
  }
}

using RowKernel = void (*)(const std::byte *, int64_t, std::byte *, int64_t, int64_t);

template <ElementType from> static RowKernel findKernelFrom(ElementType to) {
  switch (to) {
  case ElementType::f32:
    return copyRow<from, ElementType::f32>;
  case ElementType::bf16:
    return copyRow<from, ElementType::bf16>;
  case ElementType::f16:
    return copyRow<from, ElementType::f16>;
  case ElementType::i64:
    return copyRow<from, ElementType::i64>;
  case ElementType::i32:
    return copyRow<from, ElementType::i32>;
  case ElementType::i8:
    return copyRow<from, ElementType::i8>;
  case ElementType::i1:
    return copyRow<from, ElementType::i1>;
  }
  return nullptr;
}

static RowKernel findKernel(ElementType from, ElementType to) {
  switch (from) {
  case ElementType::f32:
    return findKernelFrom<ElementType::f32>(to);
  case ElementType::bf16:
    return findKernelFrom<ElementType::bf16>(to);
  case ElementType::f16:
    return findKernelFrom<ElementType::f16>(to);
  case ElementType::i64:
    return findKernelFrom<ElementType::i64>(to);
  case ElementType::i32:
    return findKernelFrom<ElementType::i32>(to);
  case ElementType::i8:
    return findKernelFrom<ElementType::i8>(to);
  case ElementType::i1:
    return findKernelFrom<ElementType::i1>(to);
  }
  return nullptr;
}

//===----------------------------------------------------------------------===//
// Plan
//===----------------------------------------------------------------------===//

CopyPlan::CopyPlan(std::span<const int64_t> shape, const Side &source, const Side &target) {
  kernel_ = findKernel(source.element, target.element);
  auto sourceBytes = int64_t(byteSize(source.element)), targetBytes = int64_t(byteSize(target.element));
  bytes_ = *checkedElementCount(shape) * uint64_t(targetBytes);
  if (bytes_ == 0) {
    rows_ = 0;
    return;
  }

  std::vector<Dim> dims;
  for (size_t dim = 0; dim < shape.size(); ++dim)
    if (shape[dim] != 1)
      dims.push_back({shape[dim], source.strides[dim] * sourceBytes, target.strides[dim] * targetBytes});
  std::ranges::stable_sort(dims, [](const Dim &a, const Dim &b) { return a.targetStep > b.targetStep; });
  for (const Dim &dim : dims) {
    bool merges = !outer_.empty() && outer_.back().targetStep == dim.extent * dim.targetStep &&
                  outer_.back().sourceStep == dim.extent * dim.sourceStep;
    if (merges)
      outer_.back() = {outer_.back().extent * dim.extent, dim.sourceStep, dim.targetStep};
    else
      outer_.push_back(dim);
  }
  if (outer_.empty())
    outer_.push_back({1, sourceBytes, targetBytes});
  if (outer_.size() > maxDims)
    throw Error(ErrorCode::Unsupported, "a copy of " + std::to_string(outer_.size()) +
                                            " dimensions that cannot be merged; at most " + std::to_string(maxDims) +
                                            " are supported");
  inner_ = outer_.back();
  outer_.pop_back();

  // A transpose: some outer dimension is straighter in the source.
  auto straightest = std::ranges::min_element(outer_, [](const Dim &a, const Dim &b) {
    return std::max<int64_t>(a.sourceStep, 1) < std::max<int64_t>(b.sourceStep, 1);
  });
  if (straightest != outer_.end() && straightest->sourceStep > 0 && straightest->sourceStep < inner_.sourceStep &&
      straightest->extent > 1 && inner_.extent > 1) {
    std::rotate(straightest, straightest + 1, outer_.end());
    blocked_ = true;
  }
  for (const Dim &dim : outer_)
    rows_ *= dim.extent;
}

void CopyPlan::run(const void *source, void *target, int threads) const {
  if (rows_ == 0)
    return;
  auto *from = static_cast<const std::byte *>(source);
  auto *to = static_cast<std::byte *>(target);
  bool parallel = threads > 1 && bytes_ >= parallelBytes;

  // A single row is cut along itself.
  if (outer_.empty()) {
    auto piece = [&](int64_t begin, int64_t end) {
      kernel_(from + begin * inner_.sourceStep, inner_.sourceStep, to + begin * inner_.targetStep, inner_.targetStep,
              end - begin);
    };
    if (parallel)
      Threads(threads).parallelFor(inner_.extent, 4096, piece);
    else
      piece(0, inner_.extent);
    return;
  }

  // Walks items [begin, end): an item is a row, or, in a transpose, a band of
  // up to blockExtent rows along the last outer dimension.
  const Dim &last = outer_.back();
  int64_t bandRows = blocked_ ? blockExtent : 1;
  int64_t bands = (last.extent + bandRows - 1) / bandRows;
  int64_t items = rows_ / last.extent * bands;
  auto walk = [&](int64_t begin, int64_t end) {
    int64_t index[maxDims] = {};
    int64_t sourceOffset = 0, targetOffset = 0;
    int64_t rest = begin / bands, band = begin % bands;
    for (size_t dim = outer_.size() - 1; dim-- > 0;) {
      index[dim] = rest % outer_[dim].extent;
      rest /= outer_[dim].extent;
      sourceOffset += index[dim] * outer_[dim].sourceStep;
      targetOffset += index[dim] * outer_[dim].targetStep;
    }
    for (int64_t item = begin; item < end; ++item) {
      int64_t firstRow = band * bandRows, lastRow = std::min(firstRow + bandRows, last.extent);
      int64_t columns = blocked_ ? blockExtent : inner_.extent;
      for (int64_t column = 0; column < inner_.extent; column += columns) {
        int64_t count = std::min(columns, inner_.extent - column);
        for (int64_t row = firstRow; row < lastRow; ++row)
          kernel_(from + sourceOffset + row * last.sourceStep + column * inner_.sourceStep, inner_.sourceStep,
                  to + targetOffset + row * last.targetStep + column * inner_.targetStep, inner_.targetStep, count);
      }
      if (++band < bands)
        continue;
      band = 0;
      for (size_t dim = outer_.size() - 1; dim-- > 0;) {
        sourceOffset += outer_[dim].sourceStep;
        targetOffset += outer_[dim].targetStep;
        if (++index[dim] < outer_[dim].extent)
          break;
        sourceOffset -= index[dim] * outer_[dim].sourceStep;
        targetOffset -= index[dim] * outer_[dim].targetStep;
        index[dim] = 0;
      }
    }
  };
  if (parallel)
    Threads(threads).parallelFor(items, 1, walk);
  else
    walk(0, items);
}

} // namespace segue::inline runtime
