//===- LoopWatermarks.cpp - what a loop's steps have to spare -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LoopWatermarks.h"
#include <algorithm>
#include <span>

namespace segue::inline runtime {

/// A process that makes ever new programs forgets the orders of the old ones.
static constexpr size_t mostOrders = 64;

LoopWatermarks::Order *LoopWatermarks::expected() {
  auto found = programs_.empty() ? orders_.end() : orders_.find(programs_.front());
  return found == orders_.end() ? nullptr : &found->second;
}

void LoopWatermarks::beginStep() {
  programs_.clear();
  follows_ = true;
  hasRestored_ = false;
  leastUsed_ = UINT64_MAX;
  largest_ = 0;
}

std::optional<uint64_t> LoopWatermarks::onSubmit(Key program) {
  size_t place = programs_.size();
  programs_.push_back(program);
  const Order *order = expected();
  follows_ &= order && place < order->programs.size() && order->programs[place] == program;
  uint64_t high = follows_ ? order->high : everythingLeaves;
  if (high == high_)
    return std::nullopt;
  return high_ = high;
}

void LoopWatermarks::onSave(uint64_t usedBytes, uint64_t bytes) {
  leastUsed_ = std::min(leastUsed_, usedBytes);
  largest_ = std::max(largest_, bytes);
}

void LoopWatermarks::onRestore(uint64_t usedBytes) {
  leastUsed_ = std::min(leastUsed_, usedBytes);
  hasRestored_ = true;
}

void LoopWatermarks::endStep(uint64_t peakBytes) {
  if (!hasRestored_) // what a backward takes is not known
    return;
  if (orders_.size() >= mostOrders && !orders_.contains(programs_.front()))
    orders_.clear();
  Order &order = orders_[programs_.front()];
  bool isPart = programs_.size() < order.programs.size() &&
                std::ranges::equal(programs_, std::span(order.programs).first(programs_.size()));
  if (order.isGivenUp || isPart)
    return;
  if (order.programs != programs_) {
    order.programs = programs_;
    order.high = everythingLeaves;
    return;
  }
  // The last that stays may pass the watermark, and free memory may lie in pieces.
  uint64_t margin = std::max(largest_, budgetBytes_ / 16);
  if (uint64_t taken = peakBytes + margin; order.high == everythingLeaves && taken < budgetBytes_)
    order.high = leastUsed_ + (budgetBytes_ - taken);
}

void LoopWatermarks::abortStep(bool isOutOfMemory) {
  Order *order = expected();
  if (!isOutOfMemory || !order || high_ == everythingLeaves)
    return;
  order->isGivenUp = true;
  order->high = everythingLeaves;
}

} // namespace segue::inline runtime
