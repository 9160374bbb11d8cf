//===- Scratch.h - memory that plans use while they run ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One area per thread, shared by all plans of an engine. A plan asks for what
// it needs when it is made; a run holds the lock from its first use of an area
// to its last.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_SCRATCH_H
#define SEGUE_RUNTIME_LIB_ENGINE_SCRATCH_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace segue::inline runtime {

class Scratch {
public:
  explicit Scratch(int threads) : areas_(threads) {}

  /// Makes each area at least `bytes` large; what they held is lost.
  void reserve(uint64_t bytes) {
    std::lock_guard guard(mutex_);
    if (bytes <= bytes_)
      return;
    for (Area &area : areas_) {
      area.reset();
      area.reset(static_cast<std::byte *>(::operator new(bytes, kAlignment)));
    }
    bytes_ = bytes;
  }

  /// Makes the areas the caller's until the lock goes away.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }

  /// Returns the area of a thread, aligned to 64 bytes; the lock must be held.
  std::byte *area(int64_t thread) const { return areas_[thread].get(); }

  uint64_t totalBytes() const { return bytes_ * areas_.size(); }

private:
  static constexpr std::align_val_t kAlignment{64};
  struct Release {
    void operator()(std::byte *area) const { ::operator delete(area, kAlignment); }
  };
  using Area = std::unique_ptr<std::byte, Release>;

  mutable std::mutex mutex_;
  std::vector<Area> areas_;
  uint64_t bytes_ = 0;
};

/// Cuts one area into arrays of f32. Called twice with the same sizes: by the
/// plan, without memory, to learn how many bytes it needs, and by a run.
class ScratchCutter {
public:
  explicit ScratchCutter(std::byte *area = nullptr) : area_(area) {}

  /// Returns `count` floats at a cache line, followed by room for one stray vector.
  float *floats(int64_t count) {
    std::byte *at = area_ ? area_ + bytes_ : nullptr;
    bytes_ += (static_cast<uint64_t>(count) * sizeof(float) + 2 * kLine - 1) / kLine * kLine;
    return reinterpret_cast<float *>(at);
  }

  uint64_t bytes() const { return bytes_; }

private:
  static constexpr uint64_t kLine = 64;
  std::byte *area_;
  uint64_t bytes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_SCRATCH_H
