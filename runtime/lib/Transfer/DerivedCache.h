//===- DerivedCache.h - converted copies of parameters ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A parameter that a program wants in another layout is converted once and
// serves again until it is written (rule R6). The key is the storage of the
// parameter and its version, what part of it the tensor is, and the canonical
// layout that is wanted. A copy is in use while anybody else holds its storage;
// such a copy is never evicted.
//
// A cached copy refers to its device, and the device owns the cache: that ring
// is cut when the storage that the copy was made from is freed, which it tells
// by `forget`.
//
// Any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TRANSFER_DERIVEDCACHE_H
#define SEGUE_LIB_TRANSFER_DERIVEDCACHE_H

#include "segue/runtime/Tensor/Tensor.h"
#include <list>
#include <mutex>
#include <unordered_map>

namespace segue::inline runtime {

class DerivedCache final : public DerivedCopies {
public:
  /// Returns the copy of `source` laid as `wanted`, or a null tensor. Drops copies of older
  /// versions of it on the way.
  Tensor find(const Tensor &source, const TensorDesc &wanted);

  /// Keeps `derived` if, after evicting what is not in use, no more than
  /// `maxBytes` are kept; otherwise keeps nothing more. Adds what it evicted
  /// to `evictions`.
  void insert(const Tensor &source, const Tensor &derived, uint64_t maxBytes, uint64_t &evictions);

  /// Evicts copies in `space` that are not in use, least recently used first,
  /// until `bytes` are given back. Returns the bytes given back.
  uint64_t evict(Space space, uint64_t bytes, uint64_t &evictions);

  void forget(uint64_t storageId) noexcept override;
  void clear();
  uint64_t bytes() const;

private:
  struct Entry {
    uint64_t storageId, version;
    TensorDesc given;
    Tensor derived;
    uint64_t bytes() const { return derived.storage()->bytes(); }
  };
  /// The entries, the most recently used first.
  using Entries = std::list<Entry>;

  void unlink(Entries::iterator entry, Entries &dropped);
  template <typename Condition>
  uint64_t evictWhile(Condition needed, std::optional<Space> space, Entries &dropped, uint64_t &evictions);

  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> byStorage_;
  uint64_t bytes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_TRANSFER_DERIVEDCACHE_H
