//===- ThreadsTest.cpp - ranges over the pool -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Threads.h"
#include <atomic>
#include <gtest/gtest.h>
#include <vector>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

using namespace segue;

// Each element once, pieces at multiples of the grain, at any count.
TEST(ThreadsTest, PiecesCoverTheRangeOnce) {
  for (int count : {1, 2, 3, 7})
    for (int64_t range : {0, 1, 2, 7, 64, 100, 1000})
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(range);
        Threads(count).parallelFor(range, grain, [&](int64_t begin, int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_TRUE(end % grain == 0 || end == range);
          for (int64_t i = begin; i < end; ++i)
            ++seen[i];
        });
        for (auto &times : seen)
          ASSERT_EQ(times, 1) << count << " threads, range " << range << ", grain " << grain;
      }
}

TEST(ThreadsTest, EveryItemIsTakenOnce) {
  for (int count : {1, 2, 5}) {
    std::vector<std::atomic<int>> seen(100);
    Threads(count).forEachItem(100, [&](int64_t item, int64_t thread) {
      EXPECT_GE(thread, 0);
      EXPECT_LT(thread, count);
      ++seen[item];
    });
    for (auto &times : seen)
      ASSERT_EQ(times, 1);
  }
}

// A region inside a region runs in place instead of asking for more threads.
TEST(ThreadsTest, NestedRegionsRunSerially) {
  Threads threads(2);
  std::atomic<int64_t> sum{0}, pieces{0};
  threads.parallelFor(4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      threads.parallelFor(100, 1, [&](int64_t first, int64_t last) {
        sum += last - first;
        ++pieces;
      });
  });
  EXPECT_EQ(sum, 400);
  EXPECT_EQ(pieces, 4);
}

TEST(ThreadsTest, CountIsAtLeastOne) {
  EXPECT_GE(Threads().count(), 1);
  EXPECT_EQ(Threads(3).count(), 3);
}

#if defined(__SSE2__)
// Denormals are zero inside, at every thread, and the caller's mode comes back.
TEST(ThreadsTest, FlushesDenormalsInsideOnly) {
  unsigned before = _mm_getcsr();
  for (int count : {1, 2}) {
    std::atomic<int> kept{0};
    Threads(count).parallelFor(8, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        volatile float small = 1e-38f;
        volatile float result = small * 0.1f;
        kept += result != 0;
      }
    });
    EXPECT_EQ(kept, 0) << count << " threads";
    EXPECT_EQ(_mm_getcsr() & 0x8040, before & 0x8040);
  }
  volatile float small = 1e-38f;
  volatile float result = small * 0.1f;
  EXPECT_NE(result, 0);
}
#endif
