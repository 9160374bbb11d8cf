//===- ArenaPacking.cpp - places intervals in an arena --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Offline dynamic storage allocation by greedy first fit. Placed lifetimes are
// indexed by slices of time, so that the cost of one placement is the number
// of those alive with it, not of all.
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Prog/Transforms/ArenaPacking.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Sequence.h"
#include "llvm/Support/MathExtras.h"
#include <map>

using namespace segue::prog;

uint64_t segue::prog::lowerBound(llvm::ArrayRef<Lifetime> lifetimes, uint64_t alignment) {
  std::map<uint32_t, int64_t> changes;
  for (const Lifetime &life : lifetimes) {
    auto bytes = static_cast<int64_t>(llvm::alignTo(life.bytes, alignment));
    changes[life.first] += bytes;
    changes[life.last + 1] -= bytes;
  }
  int64_t live = 0, peak = 0;
  for (auto [time, change] : changes)
    peak = std::max(peak, live += change);
  return static_cast<uint64_t>(peak);
}

namespace {
/// Finds what is placed by slices of time.
class TimeIndex {
public:
  explicit TimeIndex(size_t count) : seen(count, 0) {}

  void insert(unsigned i, const Lifetime &life) {
    if (slices.size() <= life.last / kSlice)
      slices.resize(life.last / kSlice + 1);
    for (uint32_t slice = life.first / kSlice; slice <= life.last / kSlice; ++slice)
      slices[slice].push_back(i);
  }

  /// Calls `visit` once for each inserted lifetime that may overlap `life`.
  template <typename Visit> void forEachNear(const Lifetime &life, Visit visit) {
    ++stamp;
    for (uint32_t slice = life.first / kSlice; slice <= life.last / kSlice && slice < slices.size(); ++slice)
      for (unsigned i : slices[slice])
        if (std::exchange(seen[i], stamp) != stamp)
          visit(i);
  }

private:
  static constexpr uint32_t kSlice = 16; // commands
  llvm::SmallVector<llvm::SmallVector<unsigned, 4>> slices;
  llvm::SmallVector<unsigned> seen;
  unsigned stamp = 0;
};
} // namespace

static Packing packInOrder(llvm::ArrayRef<Lifetime> lifetimes, llvm::ArrayRef<unsigned> order, uint64_t alignment) {
  Packing result;
  result.offsets.resize(lifetimes.size());
  TimeIndex index(lifetimes.size());
  struct Range {
    uint64_t begin, end;
  };
  llvm::SmallVector<Range> taken;
  for (unsigned i : order) {
    const Lifetime &life = lifetimes[i];
    taken.clear();
    index.forEachNear(life, [&](unsigned other) {
      const Lifetime &o = lifetimes[other];
      if (o.first <= life.last && life.first <= o.last)
        taken.push_back({result.offsets[other], result.offsets[other] + llvm::alignTo(o.bytes, alignment)});
    });
    llvm::sort(taken, [](const Range &a, const Range &b) { return a.begin < b.begin; });
    uint64_t bytes = llvm::alignTo(life.bytes, alignment), offset = 0;
    for (const Range &range : taken) {
      if (range.begin >= offset + bytes)
        break;
      offset = std::max(offset, range.end);
    }
    result.offsets[i] = offset;
    result.bytes = std::max(result.bytes, offset + bytes);
    index.insert(i, life);
  }
  return result;
}

Packing segue::prog::pack(llvm::ArrayRef<Lifetime> lifetimes, uint64_t alignment) {
  uint64_t bound = lowerBound(lifetimes, alignment);
  auto order = llvm::to_vector(llvm::seq<unsigned>(0, lifetimes.size()));
  auto area = [&](unsigned i) {
    return static_cast<double>(lifetimes[i].bytes) * (1.0 + lifetimes[i].last - lifetimes[i].first);
  };
  std::optional<Packing> best;
  auto attempt = [&](auto less) {
    if (best && best->bytes == bound)
      return;
    llvm::sort(order, [&](unsigned a, unsigned b) { return less(a, b) || (!less(b, a) && a < b); });
    Packing packing = packInOrder(lifetimes, order, alignment);
    if (!best || packing.bytes < best->bytes)
      best = std::move(packing);
  };
  attempt([&](unsigned a, unsigned b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  attempt([&](unsigned a, unsigned b) { return area(a) > area(b); });
  attempt([&](unsigned a, unsigned b) { return lifetimes[a].first < lifetimes[b].first; });
  return *best;
}
