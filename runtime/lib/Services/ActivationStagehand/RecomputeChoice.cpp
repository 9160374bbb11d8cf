//===- RecomputeChoice.cpp - recompute or spill, by cost ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/RecomputeChoice.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

double spillSeconds(int64_t bytes, const LinkRates &link, double idleBefore, double idleAfter) {
  return std::max(0.0, double(bytes) / link.d2hBytesPerSecond - idleBefore) +
         std::max(0.0, double(bytes) / link.h2dBytesPerSecond - idleAfter);
}

/// Returns indices, the least value first; of equals the one that comes first.
static std::vector<size_t> inOrder(const std::vector<double> &values) {
  std::vector<std::pair<double, size_t>> keys;
  for (double value : values)
    keys.push_back({value, keys.size()});
  std::sort(keys.begin(), keys.end());
  std::vector<size_t> order;
  for (const auto &[value, index] : keys)
    order.push_back(index);
  return order;
}

/// Returns the seconds that each tensor on the link adds to the step: copies out in the order
/// of saves, each as early as it can be; copies back as late as they can be.
static std::vector<double> spillCosts(std::span<const SavedCost> saved, const LinkRates &link,
                                      std::span<const Residence> residence, std::span<const size_t> byNeed) {
  std::vector<double> before(saved.size()), costs(saved.size());
  double free = 0;
  for (size_t i = 0; i < saved.size(); ++i)
    if (residence[i] == Residence::Spill) {
      double begin = std::max(free, saved[i].savedAt);
      before[i] = std::max(0.0, saved[i].turn - begin);
      free = begin + double(saved[i].bytes) / link.d2hBytesPerSecond;
    }
  double next = saved.empty() ? 0 : saved[byNeed.back()].neededAt;
  for (size_t k = byNeed.size(); k-- > 0;) {
    size_t i = byNeed[k];
    if (residence[i] != Residence::Spill)
      continue;
    double end = std::min(next, saved[i].neededAt);
    costs[i] = spillSeconds(saved[i].bytes, link, before[i], std::max(0.0, end - saved[i].turn));
    next = end - double(saved[i].bytes) / link.h2dBytesPerSecond;
  }
  return costs;
}

namespace {
/// A step of such a choice: what is on the device when.
class Course {
public:
  Course(std::span<const SavedCost> saved, std::span<const Residence> residence, const DeviceRoom &room)
      : saved_(saved), residence_(residence), room_(room), isThere_(saved.size()) {}

  bool fits(std::span<const size_t> byNeed) {
    findStaying();
    for (size_t k = 0; k < byNeed.size(); ++k) {
      size_t i = byNeed[k];
      if (k == 0 || saved_[i].turn != saved_[byNeed[k - 1]].turn)
        turn(saved_[i].turn);
      held_ = saved_[i].heldAtNeed;
      bring(i);
      aheadBytes_ -= saved_[i].bytes; // among what is held from here on
      see(saved_[i].heldAfter, 0);
    }
    return fits_;
  }

private:
  /// Finds the tensors that no watermark makes leave.
  void findStaying() {
    bool isPressured = false;
    int64_t stay = 0;
    for (size_t i = 0; i < saved_.size(); ++i) {
      if (i > 0 && saved_[i].turn != saved_[i - 1].turn)
        isPressured = false, stay = 0;
      if (residence_[i] == Residence::Recompute)
        continue;
      int64_t used = saved_[i].heldAtSave + stay;
      isPressured = isPressured ? used >= room_.lowBytes : used >= room_.highBytes;
      if (!isPressured) {
        isThere_[i] = true;
        stay += saved_[i].bytes;
      }
    }
  }

  /// Turns to backward, which begins with what has stayed of its forward.
  void turn(double when) {
    for (size_t i = 0; i < saved_.size(); ++i)
      if (saved_[i].turn == when && isThere_[i])
        aheadBytes_ += saved_[i].bytes;
  }

  void see(int64_t held, int64_t more) { fits_ &= held + aheadBytes_ + more <= room_.budgetBytes; }

  void arrive(size_t i) {
    isThere_[i] = true;
    aheadBytes_ += saved_[i].bytes;
  }

  void bring(size_t i) {
    if (isThere_[i])
      return;
    if (residence_[i] != Residence::Recompute) {
      see(held_, saved_[i].bytes);
      return arrive(i);
    }
    for (size_t source : saved_[i].sources)
      bring(source);
    see(held_, saved_[i].runBytes);
    arrive(i);
    for (size_t other : saved_[i].together)
      if (residence_[other] == Residence::Recompute && !isThere_[other])
        arrive(other);
  }

  std::span<const SavedCost> saved_;
  std::span<const Residence> residence_;
  const DeviceRoom &room_;
  int64_t held_ = 0, aheadBytes_ = 0;
  bool fits_ = true;
  std::vector<bool> isThere_;
};
} // namespace

std::vector<Residence> chooseResidence(std::span<const SavedCost> saved, const LinkRates &link, int64_t excessBytes,
                                       const DeviceRoom &room) {
  std::vector<Residence> residence(saved.size(), Residence::Spill);
  std::vector<double> needs;
  for (const SavedCost &each : saved)
    needs.push_back(each.neededAt);
  std::vector<size_t> order = inOrder(needs);

  std::vector<double> costs;
  std::vector<bool> hasNoRoom(saved.size());
  while (true) {
    costs = spillCosts(saved, link, residence, order);
    size_t best = saved.size();
    double gain = 0;
    for (size_t i = 0; i < saved.size(); ++i)
      if (residence[i] == Residence::Spill && saved[i].recomputeSeconds && !hasNoRoom[i] &&
          costs[i] - *saved[i].recomputeSeconds > gain) {
        best = i;
        gain = costs[i] - *saved[i].recomputeSeconds;
      }
    if (best == saved.size())
      break;
    residence[best] = Residence::Recompute;
    if (Course(saved, residence, room).fits(order))
      continue;
    hasNoRoom[best] = true;
    residence[best] = Residence::Spill;
  }
  for (size_t i = 0; i < saved.size(); ++i) {
    if (residence[i] == Residence::Recompute)
      costs[i] = *saved[i].recomputeSeconds;
    costs[i] /= double(std::max<int64_t>(saved[i].bytes, 1));
  }

  // Of equals the one that is saved first is chosen: it frees memory for longest.
  std::vector<Residence> all = residence;
  for (size_t i : inOrder(costs)) {
    if (excessBytes <= 0)
      residence[i] = Residence::Keep;
    excessBytes -= saved[i].bytes;
  }
  return Course(saved, residence, room).fits(order) ? residence : all;
}

} // namespace segue::inline runtime
