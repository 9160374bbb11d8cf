//===- CountNonFinite.cpp - NaN and Inf of a tensor -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A launch like those of generated kernels, whose units are runs of elements that
// lie side by side. Where strides leave gaps, whose bytes are nobody's, each row
// is a run; padding of tiles is zero and is looked at like the rest.
//
//===----------------------------------------------------------------------===//

#include "CountNonFinite.h"
#include "ElementKernels.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

namespace {
/// What one launch looks at.
struct Rows {
  ElementType element;
  /// Elements per unit; the last may be shorter where `strides` is empty.
  int64_t perUnit = 0, elements = 0;
  /// Of the outer dimensions, with their extents; and of the innermost.
  std::vector<int64_t> extents, strides;
  int64_t innerStride = 1;
  NonFiniteCount *count = nullptr;
};
} // namespace

/// Bytes that one thread looks at before it asks for more.
static constexpr int64_t unitBytes = 64 << 10;

/// One thread looks at fewer bytes before others are awake (segue-bench-nonfinite).
static constexpr uint64_t parallelBytes = 2 << 20;

/// Of unit `index`, in elements from the first.
static int64_t offsetOf(const Rows &rows, int64_t index) {
  int64_t offset = 0;
  for (size_t dim = rows.extents.size(); dim-- > 0;) {
    offset += index % rows.extents[dim] * rows.strides[dim];
    index /= rows.extents[dim];
  }
  return offset;
}

static int64_t countUnits(void *const *args, int64_t begin, int64_t end) {
  const auto *first = static_cast<const std::byte *>(args[0]);
  const auto &rows = *static_cast<const Rows *>(args[1]);
  auto look = elementKernels().countNonFinite[size_t(rows.element)];
  int64_t bytes = int64_t(byteSize(rows.element)), counts[2] = {0, 0};
  for (int64_t unit = begin; unit < end; ++unit) {
    if (rows.extents.empty()) {
      int64_t from = unit * rows.perUnit;
      look(std::min(rows.perUnit, rows.elements - from), first + from * bytes, counts);
      continue;
    }
    const std::byte *row = first + offsetOf(rows, unit) * bytes;
    if (rows.innerStride == 1) {
      look(rows.perUnit, row, counts);
      continue;
    }
    for (int64_t i = 0; i < rows.perUnit; ++i)
      look(1, row + i * rows.innerStride * bytes, counts);
  }
  if (counts[0])
    rows.count->nans.fetch_add(counts[0], std::memory_order_relaxed);
  if (counts[1])
    rows.count->infs.fetch_add(counts[1], std::memory_order_relaxed);
  return 0;
}

std::shared_ptr<const NonFiniteCount> countNonFinite(const Tensor &value, Fence &done) {
  const TensorDesc &desc = value.desc();
  auto count = std::make_shared<NonFiniteCount>();
  Rows rows{.element = desc.element};
  uint64_t span = desc.spanBytes();
  int64_t units = 0;
  if (!desc.layout.tile.empty() || span == desc.elementCount() * byteSize(desc.element)) {
    rows.elements = int64_t(span / byteSize(desc.element));
    rows.perUnit = unitBytes / int64_t(byteSize(desc.element));
    units = (rows.elements + rows.perUnit - 1) / rows.perUnit;
  } else {
    rows.extents = desc.shape;
    rows.strides = desc.strides();
    rows.perUnit = rows.extents.back();
    rows.innerStride = rows.strides.back();
    rows.extents.back() = 1;
    units = int64_t(desc.elementCount()) / std::max<int64_t>(rows.perUnit, 1);
  }
  rows.count = count.get();
  Storage &storage = *value.storage();
  Device &device = *storage.device();
  int threads = span < parallelBytes ? 1 : device.threads();
  auto run = [&device, rows = std::move(rows), count, data = value.bytes(), units, threads,
              outcome = storage.outcomeIfAny()] {
    if (outcome && outcome->error())
      return;
    void *args[] = {data, const_cast<Rows *>(&rows)};
    device.launch(countUnits, args, units, 1, threads);
  };
  WorkCost cost{.linkBytes = 0, .memoryBytes = span, .flops = 0};
  done = Fence(Queue::Compute,
               device.enqueue(Queue::Compute, storage.writes(), Work{std::move(run), cost, "count nan and inf"}));
  storage.addRead(done);
  return count;
}

} // namespace segue::inline runtime
