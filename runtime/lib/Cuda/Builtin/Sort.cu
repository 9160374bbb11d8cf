//===- Sort.cu - places of elements in their sorted rows ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// segue.argsort (SegueLibraryOps.td). Each element looks for its own place, in a run of its
// row by comparing with all others of the run, then among two sorted runs by a binary search
// in the other one: no thread waits for another, and an order of keys and places is the same
// however it is found. What is sorted are places, in 32 bits; keys are read where they lie.
//
//===----------------------------------------------------------------------===//

#include "Gpu.h"

#include "../../Engine/SortKeys.h"
#include "BuiltinArgs.h"

using namespace segue;
using namespace segue::cuda;

namespace {
/// An element of a row, in its order: by key, then by place.
struct Ordered {
  uint64_t key;
  int64_t place;

  GPU_MEMBER bool goesBefore(const Ordered &other) const {
    return key != other.key ? key < other.key : place < other.place;
  }
};

GPU_FUNCTION Ordered elementAt(const SortArgs &args, int64_t row, int64_t place) {
  int64_t at = row * args.length + place;
  uint64_t key;
  switch (byteSize(args.element)) {
  case 8:
    key = sortKey(args.element, static_cast<const uint64_t *>(args.x)[at]);
    break;
  case 4:
    key = sortKey(args.element, static_cast<const uint32_t *>(args.x)[at]);
    break;
  case 2:
    key = sortKey(args.element, static_cast<const uint16_t *>(args.x)[at]);
    break;
  default:
    key = sortKey(args.element, static_cast<const uint8_t *>(args.x)[at]);
  }
  return {key ^ sortKeyFlip(args.element, args.descending), place};
}

GPU_FUNCTION Ordered sortedAt(const SortArgs &args, int64_t row, int64_t at) {
  return elementAt(args, row, args.from[row * args.length + at]);
}

/// Writes which element stands at `at`: into the result, once the whole row is sorted.
GPU_FUNCTION void store(const SortArgs &args, int64_t row, int64_t at, int64_t place) {
  if (!args.isLast)
    static_cast<int32_t *>(args.to)[row * args.length + at] = int32_t(place);
  else if (at >= args.first && at < args.first + args.count)
    static_cast<int64_t *>(args.to)[row * args.count + at - args.first] = place;
}

GPU_FUNCTION int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
} // namespace

// Each run of the row by itself.
GPU_KERNEL(sortRuns, SortArgs) {
  for (int64_t item = gpu::firstIndex(); item < args.rows * args.length; item += gpu::indexStep()) {
    int64_t row = item / args.length, place = item % args.length, begin = place / args.run * args.run;
    Ordered own = elementAt(args, row, place);
    int64_t at = begin, end = lesser(begin + args.run, args.length);
    for (int64_t other = begin; other < end; ++other)
      at += elementAt(args, row, other).goesBefore(own);
    store(args, row, at, place);
  }
}

// Two runs, each of which is sorted, become one.
GPU_KERNEL(mergeRuns, SortArgs) {
  for (int64_t item = gpu::firstIndex(); item < args.rows * args.length; item += gpu::indexStep()) {
    int64_t row = item / args.length, at = item % args.length, begin = at / (2 * args.run) * (2 * args.run);
    int64_t middle = lesser(begin + args.run, args.length), end = lesser(middle + args.run, args.length);
    Ordered own = sortedAt(args, row, at);
    // The elements of the other run that go before this one end at `low`.
    int64_t low = at < middle ? middle : begin, high = at < middle ? end : middle;
    while (low < high) {
      int64_t probe = low + (high - low) / 2;
      if (sortedAt(args, row, probe).goesBefore(own))
        low = probe + 1;
      else
        high = probe;
    }
    store(args, row, at + low - middle, own.place);
  }
}
