//===- DerivedCache.cpp - converted copies of parameters ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Whatever is dropped is moved to a list of the caller's first and freed after
// the lock is given back: freeing a storage calls into the device.
//
//===----------------------------------------------------------------------===//

#include "DerivedCache.h"

namespace segue::inline runtime {

/// Returns true if the two mean the same bytes at the same place.
static bool same(const TensorDesc &a, const TensorDesc &b) {
  if (a == b) // as they are spelled: allocates nothing
    return true;
  return a.shape == b.shape && a.element == b.element &&
         canonicalize(a.shape, a.layout) == canonicalize(b.shape, b.layout);
}

void DerivedCache::unlink(Entries::iterator entry, Entries &dropped) {
  auto [begin, end] = byStorage_.equal_range(entry->storageId);
  for (auto it = begin; it != end; ++it)
    if (it->second == entry) {
      byStorage_.erase(it);
      break;
    }
  bytes_ -= entry->bytes();
  dropped.splice(dropped.end(), entries_, entry);
}

Tensor DerivedCache::find(const Tensor &source, const TensorDesc &wanted) {
  Entries dropped;
  std::lock_guard lock(mutex_);
  if (byStorage_.empty())
    return {};
  auto [begin, end] = byStorage_.equal_range(source.storage()->id());
  if (begin == end)
    return {};
  uint64_t version = source.storage()->version();
  Entries::iterator found = entries_.end();
  for (auto it = begin; it != end;) {
    Entries::iterator entry = it->second;
    if (entry->version != version || entry->derived.storage()->failure()) {
      it = byStorage_.erase(it);
      bytes_ -= entry->bytes();
      dropped.splice(dropped.end(), entries_, entry);
      continue;
    }
    if (same(entry->derived.desc(), wanted) && same(entry->given, source.desc()))
      found = entry;
    ++it;
  }
  if (found == entries_.end())
    return {};
  entries_.splice(entries_.begin(), entries_, found);
  return found->derived;
}

template <typename Condition>
uint64_t DerivedCache::evictWhile(Condition needed, std::optional<Space> space, Entries &dropped, uint64_t &evictions) {
  uint64_t freed = 0;
  for (auto it = entries_.end(); it != entries_.begin() && needed(freed);) {
    --it;
    bool inUse = it->derived.storage().use_count() > 1;
    if (inUse || (space && it->derived.storage()->space() != *space))
      continue;
    Entries::iterator victim = it++;
    freed += victim->bytes();
    ++evictions;
    unlink(victim, dropped);
  }
  return freed;
}

void DerivedCache::insert(const Tensor &source, const Tensor &derived, uint64_t maxBytes, uint64_t &evictions) {
  uint64_t bytes = derived.storage()->bytes();
  if (bytes > maxBytes)
    return;
  Entries dropped;
  std::lock_guard lock(mutex_);
  evictWhile([&](uint64_t) { return bytes_ + bytes > maxBytes; }, std::nullopt, dropped, evictions);
  if (bytes_ + bytes > maxBytes)
    return;
  entries_.push_front({source.storage()->id(), source.storage()->version(), source.desc(), derived});
  byStorage_.emplace(source.storage()->id(), entries_.begin());
  bytes_ += bytes;
  source.storage()->setDerived(*this);
}

uint64_t DerivedCache::evict(Space space, uint64_t bytes, uint64_t &evictions) {
  Entries dropped;
  std::lock_guard lock(mutex_);
  return evictWhile([&](uint64_t freed) { return freed < bytes; }, space, dropped, evictions);
}

void DerivedCache::forget(uint64_t storageId) noexcept {
  Entries dropped;
  std::lock_guard lock(mutex_);
  for (auto it = byStorage_.find(storageId); it != byStorage_.end(); it = byStorage_.find(storageId))
    unlink(it->second, dropped);
}

void DerivedCache::clear() {
  Entries dropped;
  std::lock_guard lock(mutex_);
  byStorage_.clear();
  bytes_ = 0;
  dropped.swap(entries_);
}

uint64_t DerivedCache::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

} // namespace segue::inline runtime
