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

/// Where the bytes of one record lie on the host.
struct HostBuffer {
  /// A slab of this class; nothing: unpinned memory.
  std::optional<uint32_t> poolClass;
  /// The smallest class that holds the bytes; nothing above the largest.
  std::optional<uint32_t> naturalClass;
  int64_t bytes = 0;
};

class HostBufferBook {
public:
  HostBufferBook(std::vector<int64_t> classBytes, std::vector<int64_t> slabs, int64_t unpinnedMaxBytes);

  /// The natural class if it has a free slab, else the next larger that has,
  /// else unpinned memory up to its limit, else nothing.
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
  /// Slabs that the peaks would have wanted, class by class
  /// in ascending order, as long as the pool stays within `maxBytes`. Adds
  /// them.
  std::vector<Growth> grow(int64_t maxBytes);
  void add(uint32_t poolClass, int64_t slabs);
  /// The peaks are those since this call.
  void startPeaks();
  /// There was no memory for `count` of the slabs that were added.
  void shrink(uint32_t poolClass, int64_t count);

private:
  struct Class {
    int64_t bytes, slabs, free;
    /// Buffers of this natural class, wherever they lie.
    int64_t held = 0, peakHeld = 0;
  };
  std::vector<Class> classes_;
  int64_t unpinnedMax_, unpinned_ = 0, unpinnedPeak_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_HOSTBUFFERBOOK_H
