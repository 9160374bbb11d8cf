//===- HostBufferBook.cpp - where spilled bytes would lie -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/HostBufferBook.h"
#include <algorithm>

namespace segue::inline runtime {

HostBufferBook::HostBufferBook(std::vector<int64_t> classBytes, std::vector<int64_t> slabs, int64_t unpinnedMaxBytes)
    : unpinnedMax_(unpinnedMaxBytes) {
  for (size_t i = 0; i < classBytes.size(); ++i)
    classes_.push_back({classBytes[i], slabs[i], slabs[i]});
}

std::optional<HostBuffer> HostBufferBook::take(int64_t bytes) {
  HostBuffer buffer{.bytes = bytes};
  for (uint32_t i = 0; i < classes_.size() && !buffer.poolClass; ++i) {
    if (bytes > classes_[i].bytes)
      continue;
    if (!buffer.naturalClass)
      buffer.naturalClass = i;
    if (classes_[i].free > 0)
      buffer.poolClass = i;
  }
  if (buffer.poolClass) {
    --classes_[*buffer.poolClass].free;
  } else {
    if (bytes > unpinnedMax_ - unpinned_)
      return std::nullopt;
    unpinned_ += bytes;
    unpinnedPeak_ = std::max(unpinnedPeak_, unpinned_);
  }
  if (buffer.naturalClass) {
    Class &natural = classes_[*buffer.naturalClass];
    natural.peakHeld = std::max(natural.peakHeld, ++natural.held);
  }
  return buffer;
}

void HostBufferBook::give(const HostBuffer &buffer) {
  if (buffer.poolClass)
    ++classes_[*buffer.poolClass].free;
  else
    unpinned_ -= buffer.bytes;
  if (buffer.naturalClass)
    --classes_[*buffer.naturalClass].held;
}

int64_t HostBufferBook::poolBytes() const {
  int64_t total = 0;
  for (const Class &each : classes_)
    total += each.bytes * each.slabs;
  return total;
}

std::vector<HostBufferBook::Growth> HostBufferBook::grow(int64_t maxBytes) {
  std::vector<Growth> growth;
  int64_t total = poolBytes();
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    Class &each = classes_[i];
    int64_t count = std::min(each.peakHeld - each.slabs, std::max<int64_t>(maxBytes - total, 0) / each.bytes);
    if (count <= 0)
      continue;
    add(i, count);
    total += count * each.bytes;
    growth.push_back({i, count});
  }
  return growth;
}

void HostBufferBook::add(uint32_t poolClass, int64_t slabs) {
  classes_[poolClass].slabs += slabs;
  classes_[poolClass].free += slabs;
}

void HostBufferBook::startPeaks() {
  for (Class &each : classes_)
    each.peakHeld = each.held;
  unpinnedPeak_ = unpinned_;
}

void HostBufferBook::shrink(uint32_t poolClass, int64_t count) { add(poolClass, -count); }

} // namespace segue::inline runtime
