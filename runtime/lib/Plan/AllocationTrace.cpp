//===- AllocationTrace.cpp - what steps take of a device's memory ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/AllocationTrace.h"
#include <algorithm>

namespace segue::inline runtime {

void AllocationTrace::begin() {
  seen_ = {};
  owners_.clear();
  numbers_.clear();
  now_ = 0;
  isOn_ = true;
  for (auto &[data, live] : live_) {
    live.block = noBlock;
    seen_.bytesBefore += alignedUp(live.bytes) + std::max<uint64_t>(live.alignment, addressGrain) - addressGrain;
  }
}

bool AllocationTrace::repeats() {
  seen_.times.push_back(now_);
  bool isSo = seen_.repeats().has_value();
  seen_.times.pop_back();
  return isSo;
}

StepAllocations AllocationTrace::end() {
  isOn_ = false;
  seen_.times.push_back(now_);
  for (OwnerId number : numbers_)
    seen_.owners.push_back(memory_.owner(number));
  return std::move(seen_);
}

void AllocationTrace::onTaken(const void *data, uint64_t bytes, uint32_t alignment, OwnerId owner) {
  highest_ = std::max(highest_, reinterpret_cast<uintptr_t>(data) + bytes);
  bool isOfStep = isOn_ && !seen_.times.empty();
  live_[data] = {bytes, alignment, isOfStep ? seen_.blocks.size() : noBlock};
  if (!isOfStep)
    return;
  auto [known, isNew] = owners_.try_emplace(owner, uint32_t(numbers_.size()));
  if (isNew)
    numbers_.push_back(owner);
  seen_.blocks.push_back({.owner = known->second,
                          .step = uint32_t(seen_.times.size() - 1),
                          .alignment = alignment,
                          .bytes = bytes,
                          .begin = now_++});
}

void AllocationTrace::onGiven(const void *data) {
  auto found = live_.find(data);
  if (found == live_.end())
    return;
  if (isOn_ && found->second.block != noBlock)
    seen_.blocks[found->second.block].end = now_++;
  live_.erase(found);
}

std::optional<uint32_t> StepAllocations::repeats() const {
  auto blocksOf = [&](uint32_t step) {
    auto range = std::ranges::equal_range(blocks, step, {}, &Block::step);
    return std::span(range.begin(), range.end());
  };
  for (uint32_t step = 1; step + 1 < steps(); ++step) {
    uint64_t length = times[step + 1] - times[step];
    if (times[step + 2] - times[step + 1] != length)
      continue;
    // It is not known how long a block of the second step lives beyond the trace.
    bool isSame = std::ranges::equal(blocksOf(step), blocksOf(step + 1), [&](const Block &a, const Block &b) {
      return a.owner == b.owner && a.bytes == b.bytes && a.alignment == b.alignment && a.begin + length == b.begin &&
             a.end != never && (b.end == never || a.end + length == b.end);
    });
    if (isSame)
      return step;
  }
  return std::nullopt;
}

} // namespace segue::inline runtime
