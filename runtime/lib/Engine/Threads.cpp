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
#if defined(__SANITIZE_THREAD__)
#include <thread>
#include <vector>
#endif

using namespace segue;

//===----------------------------------------------------------------------===//
// Regions
//===----------------------------------------------------------------------===//

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not see the barriers of libgomp and would call each
// region a race. Threads of the standard library stand in for the pool, so that
// the races that it does report are ours.
static thread_local bool insideRegion = false;

static bool isInsideRegion() { return insideRegion; }

template <typename Body> static void runRegion(int threads, const Body &body) {
  auto runOne = [&](int thread) {
    insideRegion = true;
    body(thread, threads);
    insideRegion = false;
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread)
    others.emplace_back(runOne, thread);
  runOne(0);
  for (std::thread &other : others)
    other.join();
}
#else
static bool isInsideRegion() { return omp_in_parallel(); }

/// Calls `body(thread, count)` on each of `count` threads: `threads`, or fewer
/// where OpenMP has no more to give.
template <typename Body> static void runRegion(int threads, const Body &body) {
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num(), omp_get_num_threads());
}
#endif

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
  if (threads == 1 || isInsideRegion()) {
    FlushDenormals flush;
    piece(context, 0, range);
    return;
  }
  runRegion(count_, [&](int thread, int given) {
    // If there are fewer threads than asked for, each does more.
    FlushDenormals flush;
    for (int64_t part = thread; part < threads; part += given) {
      int64_t begin = grains * part / threads * grain;
      int64_t end = std::min(grains * (part + 1) / threads * grain, range);
      if (begin < end)
        piece(context, begin, end);
    }
  });
}

void Threads::takeItems(int64_t items, Piece piece, void *context) const {
  if (items <= 0)
    return;
  if (items == 1 || count_ == 1 || isInsideRegion()) {
    FlushDenormals flush;
    for (int64_t item = 0; item < items; ++item)
      piece(context, item, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  runRegion(count_, [&](int thread, int) {
    FlushDenormals flush;
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;)
      piece(context, item, thread);
  });
}
