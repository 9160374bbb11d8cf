//===- IdTable.h - entries by their id --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Live reservations and tokens: few at a time, many over a step. Entries lie
// side by side, an open-addressed index finds them, and nothing is allocated
// once the tables have grown to their usual size. The order of entries says
// nothing; users that need one keep a sequence number.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_IDTABLE_H
#define SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_IDTABLE_H

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace segue::inline runtime {

/// A table of entries by their number: `Entry` has a member `uint64_t id`. Pointers to
/// entries hold until the next insertion or removal.
template <typename Entry> class IdTable {
public:
  std::span<Entry> entries() { return entries_; }
  std::span<const Entry> entries() const { return entries_; }

  Entry *find(uint64_t id) {
    size_t bucket = bucketOf(id);
    return bucket == absent ? nullptr : &entries_[index_[bucket] - 1];
  }
  const Entry *find(uint64_t id) const { return const_cast<IdTable *>(this)->find(id); }

  /// Adds an entry, whose id must not be in the table.
  Entry &insert(Entry entry) {
    if (2 * (entries_.size() + 1) > index_.size())
      grow();
    entries_.push_back(std::move(entry));
    place(entries_.size() - 1);
    return entries_.back();
  }

  /// Removes an entry; the id must be in the table.
  void erase(uint64_t id) {
    size_t hole = bucketOf(id);
    size_t position = index_[hole] - 1;
    unplace(hole);
    if (position + 1 != entries_.size()) {
      // The last entry moves into the gap.
      index_[bucketOf(entries_.back().id)] = uint32_t(position + 1);
      entries_[position] = std::move(entries_.back());
    }
    entries_.pop_back();
  }

private:
  static constexpr size_t absent = SIZE_MAX;

  size_t homeOf(uint64_t id) const { return size_t((id * 0x9E3779B97F4A7C15u) >> 32) & (index_.size() - 1); }

  size_t bucketOf(uint64_t id) const {
    if (index_.empty())
      return absent;
    for (size_t bucket = homeOf(id); index_[bucket]; bucket = (bucket + 1) & (index_.size() - 1))
      if (entries_[index_[bucket] - 1].id == id)
        return bucket;
    return absent;
  }

  void place(size_t position) {
    size_t bucket = homeOf(entries_[position].id);
    while (index_[bucket])
      bucket = (bucket + 1) & (index_.size() - 1);
    index_[bucket] = uint32_t(position + 1);
  }

  /// Empties a bucket and closes the gap that it leaves in the probe sequence.
  void unplace(size_t hole) {
    size_t mask = index_.size() - 1;
    for (size_t bucket = (hole + 1) & mask; index_[bucket]; bucket = (bucket + 1) & mask) {
      size_t home = homeOf(entries_[index_[bucket] - 1].id);
      if (((bucket - home) & mask) >= ((bucket - hole) & mask)) {
        index_[hole] = index_[bucket];
        hole = bucket;
      }
    }
    index_[hole] = 0;
  }

  void grow() {
    index_.assign(index_.empty() ? 16 : 2 * index_.size(), 0);
    for (size_t position = 0; position < entries_.size(); ++position)
      place(position);
  }

  std::vector<Entry> entries_;
  /// The buckets, a power of two: 1 + position of an entry, 0 where there is none.
  std::vector<uint32_t> index_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_IDTABLE_H
