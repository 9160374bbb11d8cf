//===- CountNonFinite.cpp - NaN and Inf of a tensor -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One pass over runs of elements that lie side by side. Where strides leave gaps, whose bytes are nobody's, each row
// is a run; padding of tiles is zero and is looked at like the rest.
//
//===----------------------------------------------------------------------===//

#include "CountNonFinite.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"

namespace segue::inline runtime {

/// The bytes that one thread looks at before it asks for more.
static constexpr int64_t unitBytes = 64 << 10;

std::shared_ptr<const NonFiniteCount> countNonFinite(const Tensor &value, Fence &done) {
  const TensorDesc &desc = value.desc();
  auto count = std::make_shared<NonFiniteCount>();
  NonFiniteRows rows{.element = desc.element};
  uint64_t span = desc.spanBytes();
  if (!desc.layout.tile.empty() || span == desc.elementCount() * byteSize(desc.element)) {
    rows.elements = int64_t(span / byteSize(desc.element));
    rows.perUnit = unitBytes / int64_t(byteSize(desc.element));
    rows.units = (rows.elements + rows.perUnit - 1) / rows.perUnit;
  } else {
    rows.extents = desc.shape;
    rows.strides = desc.strides();
    rows.perUnit = rows.extents.back();
    rows.innerStride = rows.strides.back();
    rows.extents.back() = 1;
    rows.units = int64_t(desc.elementCount()) / std::max<int64_t>(rows.perUnit, 1);
  }
  Storage &storage = *value.storage();
  Device &device = *storage.device();
  Work work;
  work.label = "count nan and inf";
  work.cost.memoryBytes = span;
  work.run = [&device, rows = std::move(rows), count, data = value.bytes()] {
    device.engine().countNonFinite(rows, data, *count);
  };
  if (const auto &outcome = storage.outcomeIfAny())
    work.mayBegin = [outcome] { return !outcome->error(); };
  done = Fence(Queue::Compute, device.enqueue(Queue::Compute, storage.writes(), std::move(work)));
  storage.addRead(done);
  return count;
}

} // namespace segue::inline runtime
