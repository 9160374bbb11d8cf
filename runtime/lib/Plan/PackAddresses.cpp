//===- PackAddresses.cpp - addresses for the blocks of all steps ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Blocks of the steps before the one that repeats live on a line of time; those of
// that step come again in every step after, so that the time of one that is alive
// when the step ends goes on at its beginning. A block that lives longer than a step
// needs as many places as generations of it live at once, which serve in turn.
//
// Each block gets the tightest gap between those placed before it that live at the
// same time. Which comes first decides how well that goes: by size, by size and
// duration, by duration; then the one that lies highest is placed earlier, and all
// again.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/AllocationTrace.h"
#include <algorithm>
#include <numeric>
#include <tuple>

namespace segue::inline runtime {

namespace {
/// A block that is to be placed.
struct PackedBlock {
  uint64_t bytes, begin, end;
  uint32_t alignment;
  /// The index into StepAllocations::blocks.
  uint32_t block;
  /// True if it comes again in every step; if it has several places, the number of this one.
  bool repeats = false;
  uint32_t place = 0;

  uint64_t duration() const { return end == StepAllocations::never ? end : end - begin; }
};

class Packing {
public:
  Packing(const StepAllocations &steps, uint32_t repeated, std::span<const AddressRange> free);

  /// Returns the bytes of the least packing that was found, or nothing.
  std::optional<uint64_t> pack(uint64_t goalBytes);
  AddressPlan plan() const;

private:
  using Order = std::vector<uint32_t>;

  bool overlap(const PackedBlock &a, const PackedBlock &b) const;
  /// Finds out which items live at the same time, which every order asks about each pair.
  void findNeighbours();
  bool areNeighbours(uint32_t a, uint32_t b) const {
    if (neighbours_.empty())
      return overlap(items_[a], items_[b]);
    return neighbours_[a * words_ + b / 64] >> (b % 64) & 1;
  }
  /// Places all in this order; the bytes of the ranges, nothing if one has no place.
  std::optional<uint64_t> place(const Order &order);
  /// Finds a place for an item. `taken` is ascending.
  std::optional<uint64_t> placeOne(const PackedBlock &item, std::span<const AddressRange> taken) const;
  std::vector<AddressRange> ranges(const std::vector<uint64_t> &offsets) const;

  const StepAllocations &steps_;
  uint32_t repeated_;
  /// The time at which the step that repeats begins, and its length.
  uint64_t begin_, length_;
  /// Places of those that live longest.
  uint32_t period_ = 1;
  static constexpr uint64_t unlimited = uint64_t(1) << 61;
  std::vector<AddressRange> free_;
  /// The place where the last free range really ends.
  uint64_t limit_ = 0;
  std::vector<PackedBlock> items_;
  /// A row of `words_` words for each item, with a bit for each that lives at the same time. Empty for too many items.
  std::vector<uint64_t> neighbours_;
  size_t words_ = 0;
  /// The offset of each item in the order that was tried last, and in the best.
  std::vector<uint64_t> offsets_, best_;
};
} // namespace

/// The number of comparisons of two blocks beyond which no other order is tried.
static constexpr uint64_t mostComparisons = 200'000'000;
/// The number of items up to which it is kept who are neighbours: 8 MiB.
static constexpr size_t mostNeighbours = 8192;

Packing::Packing(const StepAllocations &steps, uint32_t repeated, std::span<const AddressRange> free)
    : steps_(steps), repeated_(repeated), begin_(steps.times[repeated]),
      length_(steps.times[repeated + 1] - steps.times[repeated]) {
  // Choices are the same wherever a range begins.
  for (const AddressRange &range : free)
    if (uint64_t begin = alignedUp(range.begin); begin < range.end())
      free_.push_back({begin, range.end() - begin});
  // The last range ends nowhere while blocks are placed: what lies behind its real end is found out afterwards.
  if (!free_.empty()) {
    limit_ = free_.back().end();
    free_.back().bytes = unlimited - free_.back().begin;
  }
  for (uint32_t i = 0; i < steps.blocks.size(); ++i) {
    const StepAllocations::Block &block = steps.blocks[i];
    if (block.step > repeated)
      break;
    PackedBlock item{block.bytes, block.begin, block.end, block.alignment, i, block.step == repeated};
    uint32_t places = item.repeats && length_ ? uint32_t((item.duration() + length_ - 1) / length_) : 1;
    period_ = std::max(period_, places);
  }
  for (uint32_t i = 0; i < steps.blocks.size() && steps.blocks[i].step <= repeated; ++i) {
    const StepAllocations::Block &block = steps.blocks[i];
    PackedBlock item{block.bytes, block.begin, block.end, block.alignment, i, block.step == repeated};
    uint32_t places = item.repeats && item.duration() > length_ ? period_ : 1;
    for (item.place = 0; item.place < places; ++item.place)
      items_.push_back(item);
  }
  offsets_.resize(items_.size());
  findNeighbours();
}

void Packing::findNeighbours() {
  if (items_.size() > mostNeighbours)
    return;
  words_ = (items_.size() + 63) / 64;
  neighbours_.resize(items_.size() * words_);
  auto note = [&](size_t a, size_t b) { neighbours_[a * words_ + b / 64] |= uint64_t(1) << (b % 64); };
  for (size_t a = 0; a < items_.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (overlap(items_[a], items_[b])) {
        note(a, b);
        note(b, a);
      }
}

/// Returns true if both are alive at some time.
bool Packing::overlap(const PackedBlock &a, const PackedBlock &b) const {
  if (!a.repeats && !b.repeats)
    return a.begin < b.end && b.begin < a.end;
  if (a.repeats && b.repeats) {
    if (a.duration() > length_ || b.duration() > length_)
      return true;
    // Generations of both, one step apart at most.
    uint64_t gap = a.begin < b.begin ? b.begin - a.begin : length_ - (a.begin - b.begin);
    uint64_t back = length_ - gap;
    return (a.begin == b.begin) || gap < a.duration() || back < b.duration();
  }
  const PackedBlock &once = a.repeats ? b : a, &again = a.repeats ? a : b;
  if (once.end == StepAllocations::never)
    return true;
  // Blocks of several places come later, each in its turn.
  return once.end > again.begin + again.place * length_;
}

std::optional<uint64_t> Packing::placeOne(const PackedBlock &item, std::span<const AddressRange> taken) const {
  auto aligned = [&](uint64_t offset) { return (offset + item.alignment - 1) / item.alignment * item.alignment; };
  std::optional<uint64_t> best, behind;
  uint64_t bestGap = StepAllocations::never;
  size_t next = 0;
  for (const AddressRange &range : free_) {
    uint64_t at = range.begin;
    while (next < taken.size() && taken[next].begin < range.end()) {
      uint64_t offset = aligned(at), end = std::min(taken[next].begin, range.end());
      if (offset + item.bytes <= end && end - at < bestGap) {
        best = offset;
        bestGap = end - at;
      }
      at = std::max(at, taken[next].end());
      if (taken[next].end() > range.end())
        break;
      ++next;
    }
    if (uint64_t offset = aligned(at); !behind && offset + item.bytes <= range.end())
      behind = offset;
  }
  return best ? best : behind;
}

/// Returns, for each free range, the part from its beginning that blocks lie in.
std::vector<AddressRange> Packing::ranges(const std::vector<uint64_t> &offsets) const {
  std::vector<AddressRange> used;
  for (const AddressRange &range : free_)
    used.push_back({range.begin, 0});
  for (size_t i = 0; i < items_.size(); ++i) {
    AddressRange &range = *std::prev(std::ranges::upper_bound(used, offsets[i], {}, &AddressRange::begin));
    range.bytes = std::max(range.bytes, offsets[i] + items_[i].bytes - range.begin);
  }
  std::erase_if(used, [](const AddressRange &range) { return !range.bytes; });
  return used;
}

std::optional<uint64_t> Packing::place(const Order &order) {
  struct Placed {
    AddressRange range;
    uint32_t item;
  };
  std::vector<Placed> placed; // by where they lie
  std::vector<AddressRange> taken;
  placed.reserve(order.size());
  taken.reserve(order.size());
  for (uint32_t index : order) {
    const PackedBlock &item = items_[index];
    taken.clear();
    for (const Placed &other : placed)
      if (areNeighbours(index, other.item))
        taken.push_back(other.range);
    std::optional<uint64_t> offset = placeOne(item, taken);
    if (!offset)
      return std::nullopt;
    offsets_[index] = *offset;
    auto behind = std::ranges::upper_bound(placed, *offset, {}, [](const Placed &other) { return other.range.begin; });
    placed.insert(behind, {{*offset, item.bytes}, index});
  }
  uint64_t bytes = 0;
  for (const AddressRange &range : ranges(offsets_))
    bytes += range.bytes;
  return bytes;
}

std::optional<uint64_t> Packing::pack(uint64_t goalBytes) {
  std::optional<uint64_t> least;
  uint64_t tries = std::max<uint64_t>(4, mostComparisons / std::max<uint64_t>(1, items_.size() * items_.size()));
  auto attempt = [&](const Order &order) {
    --tries;
    std::optional<uint64_t> bytes = place(order);
    uint64_t end = 0;
    for (size_t i = 0; i < items_.size(); ++i)
      end = std::max(end, offsets_[i] + items_[i].bytes);
    if (bytes && end <= limit_ && (!least || *bytes < *least)) {
      least = bytes;
      best_ = offsets_;
    }
    return bytes;
  };
  auto isDone = [&] { return tries == 0 || (least && *least <= goalBytes); };
  auto sorted = [&](auto key) {
    Order order(items_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](uint32_t i) { return key(items_[i]); });
    return order;
  };
  Order orders[] = {
      sorted([](const PackedBlock &item) { return std::tuple(double(item.bytes), double(item.duration())); }),
      sorted([](const PackedBlock &item) { return std::tuple(double(item.bytes) * double(item.duration()), 0.0); }),
      sorted([](const PackedBlock &item) { return std::tuple(double(item.duration()), double(item.bytes)); }),
  };
  for (const Order &order : orders) {
    if (isDone())
      return least;
    attempt(order);
  }
  // The block that lies highest is placed earlier.
  for (Order &order : orders)
    for (uint64_t more = std::min<uint64_t>(tries / 3 + 1, 24); more-- > 0 && !isDone();) {
      attempt(order);
      uint32_t highest = *std::ranges::max_element(order, {}, [&](uint32_t i) { return offsets_[i] + items_[i].bytes; });
      auto at = std::ranges::find(order, highest);
      std::rotate(order.begin(), at, at + 1);
    }
  return least;
}

AddressPlan Packing::plan() const {
  AddressPlan plan;
  plan.period = period_;
  plan.steps = repeated_ + period_;
  for (const MemoryOwner &owner : steps_.owners)
    plan.lines.push_back({owner, std::vector<std::vector<AddressPlan::Block>>(plan.steps)});
  for (size_t i = 0; i < items_.size(); ++i) {
    const StepAllocations::Block &block = steps_.blocks[items_[i].block];
    AddressPlan::Line &line = plan.lines[block.owner];
    AddressPlan::Block placed{best_[i], block.bytes};
    bool hasPlaces = items_[i].repeats && items_[i].duration() > length_;
    if (!items_[i].repeats)
      line.steps[block.step].push_back(placed);
    else if (hasPlaces)
      line.steps[repeated_ + items_[i].place].push_back(placed);
    else
      for (uint32_t turn = 0; turn < period_; ++turn)
        line.steps[repeated_ + turn].push_back(placed);
  }
  plan.ranges = ranges(best_);
  return plan;
}

std::optional<AddressPlan> packAddresses(const StepAllocations &steps, std::span<const AddressRange> free,
                                         uint64_t goalBytes) {
  std::optional<uint32_t> repeated = steps.repeats();
  if (!repeated)
    return std::nullopt;
  if (free.empty())
    return std::nullopt;
  Packing packing(steps, *repeated, free);
  return packing.pack(goalBytes) ? std::optional(packing.plan()) : std::nullopt;
}

} // namespace segue::inline runtime
