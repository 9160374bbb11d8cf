//===- Threads.cpp - ranges over the shared OpenMP pool -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A region asks OpenMP for the same number of threads each time, so that the
// pool is never resized. Inside a piece everything runs serially: a second
// level of threads would only contend with the first.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Threads.h"
#include <algorithm>
#include <atomic>
#include <omp.h>
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

Threads::Threads(int count) : count_(count > 0 ? count : std::max(1, omp_get_max_threads())) {}

void Threads::splitRange(int64_t range, int64_t grain, Piece piece, void *context) const {
  if (range <= 0)
    return;
  grain = std::max<int64_t>(grain, 1);
  int64_t grains = (range - 1) / grain + 1;
  int threads = static_cast<int>(std::min<int64_t>(count_, grains));
  if (threads == 1 || omp_in_parallel()) {
    FlushDenormals flush;
    piece(context, 0, range);
    return;
  }
#pragma omp parallel num_threads(count_)
  {
    // OpenMP may give fewer threads than asked for: then each does more.
    FlushDenormals flush;
    for (int64_t part = omp_get_thread_num(); part < threads; part += omp_get_num_threads()) {
      int64_t begin = grains * part / threads * grain;
      int64_t end = std::min(grains * (part + 1) / threads * grain, range);
      if (begin < end)
        piece(context, begin, end);
    }
  }
}

void Threads::takeItems(int64_t items, Piece piece, void *context) const {
  if (items <= 0)
    return;
  if (items == 1 || count_ == 1 || omp_in_parallel()) {
    FlushDenormals flush;
    for (int64_t item = 0; item < items; ++item)
      piece(context, item, 0);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(count_)
  {
    FlushDenormals flush;
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;)
      piece(context, item, omp_get_thread_num());
  }
}
