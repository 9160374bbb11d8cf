//===- Threads.cpp - ranges over the pool of threads ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each thread begins with pieces of its own, so that it finds in its cache what it wrote
// there, and goes on with those that others have not begun. Inside a piece everything runs
// serially: a second level of threads would only contend with the first.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Threads.h"
#include "OpenMp.h"
#include "ThreadPool.h"
#include <algorithm>
#include <array>
#include <atomic>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

using namespace segue;

#if defined(__SSE2__)
static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;

FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }

FlushDenormals::~FlushDenormals() {
  // Only the two mode bits go back: exception flags raised meanwhile stay.
  unsigned modes = kFlushToZero | kDenormalsAreZero;
  _mm_setcsr((_mm_getcsr() & ~modes) | (saved_ & modes));
}
#else
FlushDenormals::FlushDenormals() : saved_(0) {}
FlushDenormals::~FlushDenormals() = default;
#endif

/// The pieces of a range for each thread, where threads may come late.
static constexpr int64_t kFinePieces = 8;

namespace {
/// Pieces in as many parts as there are threads, up to a number.
class Parts {
public:
  Parts(int64_t pieces, int threads) : count_(std::min(threads, kMost)) {
    for (int i = 0; i < count_; ++i) {
      parts_[i].next.store(pieces * i / count_, std::memory_order_relaxed);
      parts_[i].end = pieces * (i + 1) / count_;
    }
  }

  /// Calls `run(piece)` for pieces of `thread`, then for those of others, until all have begun.
  template <typename Run> void take(int thread, const Run &run) {
    for (int i = 0; i < count_; ++i) {
      Part &part = parts_[(thread + i) % count_];
      int64_t piece;
      while (part.next.load(std::memory_order_relaxed) < part.end &&
             (piece = part.next.fetch_add(1, std::memory_order_relaxed)) < part.end)
        run(piece);
    }
  }

private:
  static constexpr int kMost = 32;
  struct alignas(64) Part {
    std::atomic<int64_t> next;
    int64_t end;
  };
  int count_;
  std::array<Part, kMost> parts_;
};
} // namespace

namespace {
/// Pieces of a range, or items where there is no grain.
struct Region {
  Parts parts;
  int64_t pieces, range, grains, grain;
  void (*piece)(void *context, int64_t first, int64_t second);
  void *context;

  void run(int threads) {
    ThreadPool::ofProcess().run(
        threads,
        [](void *region, int thread) {
          FlushDenormals flush;
          static_cast<Region *>(region)->take(thread);
        },
        this);
  }

private:
  void take(int thread) {
    parts.take(thread, [&](int64_t index) {
      if (grain == 0)
        piece(context, index, thread);
      else
        piece(context, grains * index / pieces * grain, std::min(grains * (index + 1) / pieces * grain, range));
    });
  }
};
} // namespace

Threads::Threads(int count) : count_(count > 0 ? count : std::max(1, omp_get_max_threads())) {}

void Threads::splitRange(int64_t range, int64_t grain, Piece piece, void *context) const {
  if (range <= 0)
    return;
  grain = std::max<int64_t>(grain, 1);
  int64_t grains = (range - 1) / grain + 1;
  int threads = static_cast<int>(std::min<int64_t>(count_, grains));
  if (threads == 1 || ThreadPool::isInsideRegion()) {
    FlushDenormals flush;
    piece(context, 0, range);
    return;
  }
  int64_t pieces = ThreadPool::ofProcess().isSlow() ? std::min<int64_t>(grains, threads * kFinePieces) : threads;
  Region{Parts(pieces, threads), pieces, range, grains, grain, piece, context}.run(threads);
}

void Threads::takeItems(int64_t items, Piece piece, void *context) const {
  if (items <= 0)
    return;
  int threads = static_cast<int>(std::min<int64_t>(count_, items));
  if (threads == 1 || ThreadPool::isInsideRegion()) {
    FlushDenormals flush;
    for (int64_t item = 0; item < items; ++item)
      piece(context, item, 0);
    return;
  }
  Region{Parts(items, threads), items, 0, 0, 0, piece, context}.run(threads);
}
