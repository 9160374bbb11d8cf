//===- HostBufferBook.h - where spilled bytes would lie ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The policy's view of host memory: how many slabs of each size class are free,
// how much lies outside of the pool, and how many buffers of each natural class
// were held at once, which says how the pool should grow. Numbers only; a
// PinnedPool of the same classes holds the memory.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_HOSTBUFFERBOOK_H
#define SEGUE_RUNTIME_SERVICES_HOSTBUFFERBOOK_H

#include <cstdint>
#include <optional>
#include <vector>

namespace segue::inline runtime {

/// The memory of the host that holds the bytes of one record.
struct HostBuffer {
  /// The class of the slab; nothing for unpinned memory.
  std::optional<uint32_t> poolClass;
  /// The smallest class that holds the bytes; nothing for more than the largest holds.
  std::optional<uint32_t> naturalClass;
  int64_t bytes = 0;
};

class HostBufferBook {
public:
  HostBufferBook(std::vector<int64_t> classBytes, std::vector<int64_t> slabs, int64_t unpinnedMaxBytes);

  /// Takes a slab of the natural class if it has a free one, else of the next larger that
  /// has, else unpinned memory up to its limit; returns nothing if that is used up.
  std::optional<HostBuffer> take(int64_t bytes);
  void give(const HostBuffer &buffer);

  size_t classes() const { return classes_.size(); }
  int64_t classBytes(size_t index) const { return classes_[index].bytes; }
  int64_t slabs(size_t index) const { return classes_[index].slabs; }
  int64_t freeSlabs(size_t index) const { return classes_[index].free; }
  int64_t poolBytes() const;
  int64_t unpinnedPeakBytes() const { return unpinnedPeak_; }

  struct Growth {
    uint32_t poolClass;
    int64_t slabs;
  };
  /// Adds the slabs that the peaks would have wanted, class by class in ascending order, as
  /// long as the pool stays within `maxBytes`, and returns them.
  std::vector<Growth> grow(int64_t maxBytes);
  void add(uint32_t poolClass, int64_t slabs);
  /// Begins the peaks anew, from what is held now.
  void startPeaks();
  /// Takes away `count` of the slabs that were added, for which there was no memory.
  void shrink(uint32_t poolClass, int64_t count);

private:
  struct Class {
    int64_t bytes, slabs, free;
    /// The number of buffers of this natural class that are held now, wherever they lie, and its peak.
    int64_t held = 0, peakHeld = 0;
  };
  std::vector<Class> classes_;
  int64_t unpinnedMax_, unpinned_ = 0, unpinnedPeak_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_HOSTBUFFERBOOK_H
