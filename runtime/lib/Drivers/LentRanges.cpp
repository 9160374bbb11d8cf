//===- LentRanges.cpp - memory of others, by its addresses ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LentRanges.h"
#include <mutex>

namespace segue::inline runtime {

void LentRanges::lend(const void *data, uint64_t bytes) {
  auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  ranges_.emplace(begin + bytes, begin);
}

void LentRanges::takeBack(const void *data, uint64_t bytes) noexcept {
  auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  auto [first, last] = ranges_.equal_range(begin + bytes);
  for (auto range = first; range != last; ++range)
    if (range->second == begin) {
      ranges_.erase(range);
      return;
    }
}

bool LentRanges::holds(const void *address) const {
  auto at = reinterpret_cast<uintptr_t>(address);
  std::shared_lock lock(mutex_);
  for (auto range = ranges_.upper_bound(at); range != ranges_.end(); ++range)
    if (range->second <= at)
      return true;
  return false;
}

} // namespace segue::inline runtime
