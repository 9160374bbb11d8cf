//===- WeightMoves.cpp - what comes and what leaves -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Memory that an eviction without save-back gives up serves the next load at
// once: on the device both happen in the order in which they are queued. An
// eviction with save-back may fail, so that its memory counts as free when it
// has ended.
//
//===----------------------------------------------------------------------===//

#include "WeightBlocks.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Leaving
//===----------------------------------------------------------------------===//

bool WeightStagehand::canLeave(const Block &block, bool evenFromWindow) const {
  if (block.state != BlockState::GpuReady || block.uses > 0 || block.kept > 0 || block.isPlannedResident ||
      block.saveBackFailed)
    return false;
  if (inStep_ ? !evenFromWindow && distance(block) <= window()
              : block.lastUsedStep > step_ - config_.evictionCooldownSteps)
    return false;
  return !guest_ || block.model == *guest_ || std::ranges::none_of(reservations_, [&](const Reservation *each) {
    return each->rank == ResidencyRank::Primary && each->model == block.model;
  });
}

/// Of those needed no sooner than `minDistance`, the one whose next use is
/// farthest for its bytes.
WeightStagehand::Block *WeightStagehand::bestToLeave(int64_t minDistance, bool evenFromWindow) {
  Block *best = nullptr;
  int64_t bestScore = 0;
  for (Block &block : blocks_) {
    if (!canLeave(block, evenFromWindow) || distance(block) < minDistance)
      continue;
    int64_t score = distance(block) * block.bytes;
    if (!best || score > bestScore) {
      best = &block;
      bestScore = score;
    }
  }
  return best;
}

void WeightStagehand::startEviction(Block &block, WeightActions &actions) {
  bool saveBack = block.changedBytes > 0;
  move(block, saveBack ? BlockState::Evicting : BlockState::GpuFreeing);
  vramBytes_ -= block.bytes;
  occupied_ -= !saveBack;
  ++counts_->evictions;
  actions.push_back({.kind = WeightAction::Kind::Evict, .block = block.id, .saveBack = saveBack});
}

/// Inclusive above, strict below.
void WeightStagehand::relievePressure(WeightActions &actions) {
  int64_t high = highBytes(), low = limits_.lowBytes - (limits_.highBytes - high);
  if (vramBytes_ < high)
    return;
  while (vramBytes_ >= low)
    if (Block *block = bestToLeave(0, /*evenFromWindow=*/false))
      startEviction(*block, actions);
    else
      return;
}

WeightActions WeightStagehand::makeRoom(int64_t bytes) {
  buildOrder();
  WeightActions actions;
  while (bytes > 0) {
    Block *block = bestToLeave(0, /*evenFromWindow=*/false);
    if (!block)
      block = bestToLeave(0, /*evenFromWindow=*/true);
    if (!block)
      break;
    bytes -= block->bytes;
    startEviction(*block, actions);
  }
  return actions;
}

WeightActions WeightStagehand::drop(std::string_view id) {
  Block &block = find(id);
  int64_t changed = std::exchange(block.changedBytes, 0);
  WeightActions actions;
  try {
    startEviction(block, actions);
  } catch (...) {
    block.changedBytes = changed;
    throw;
  }
  return actions;
}

WeightActions WeightStagehand::evicted(std::string_view id) {
  Block &block = find(id);
  bool savedBack = block.state == BlockState::Evicting;
  move(block, BlockState::Unloaded);
  if (savedBack) {
    --occupied_;
    counts_->saveBackBytes += block.changedBytes;
    counts_->d2hBytes += block.changedBytes;
    block.changedBytes = 0;
  }
  WeightActions actions;
  goOn(actions);
  return actions;
}

WeightActions WeightStagehand::saveBackFailed(std::string_view id) {
  Block &block = find(id);
  if (block.state != BlockState::Evicting)
    throw Error(ErrorCode::StateTransition, "weight stagehand: block \"" + block.id + "\" is " +
                                                std::string(nameOf(block.state)) +
                                                ": no copy back is under way that could fail");
  move(block, BlockState::GpuReady);
  block.saveBackFailed = true;
  vramBytes_ += block.bytes;
  --counts_->evictions;
  WeightActions actions;
  goOn(actions);
  if (!pending_.empty() && !isAnythingUnderWay() && actions.empty())
    failForRoom(*pending_.front());
  return actions;
}

void WeightStagehand::savedBack(std::string_view id) {
  Block &block = find(id);
  counts_->saveBackBytes += block.changedBytes;
  counts_->d2hBytes += block.changedBytes;
  block.changedBytes = 0;
}

bool WeightStagehand::isAnythingUnderWay() const {
  return inflight_ > 0 || std::ranges::any_of(blocks_, [](const Block &block) {
           return block.state == BlockState::Evicting || block.state == BlockState::GpuFreeing;
         });
}

std::string WeightStagehand::describe() const {
  std::string holders;
  for (const Block &each : blocks_)
    if (each.state != BlockState::Unloaded)
      holders += (holders.empty() ? "" : ", ") + each.id + " (" + std::to_string(each.bytes) + " bytes" +
                 (each.state != BlockState::GpuReady    ? ", " + std::string(nameOf(each.state))
                  : each.uses                           ? ", in use"
                  : each.kept || each.isPlannedResident ? ", kept resident"
                  : each.saveBackFailed                 ? ", its save-back failed"
                                                        : "") +
                 ")";
  return holders.empty() ? "nobody" : holders;
}

void WeightStagehand::failForRoom(const Block &block) const {
  throw Error(ErrorCode::DeviceOom, "weight stagehand: no room for block \"" + block.id + "\" (" +
                                        std::to_string(block.bytes) + " bytes): " + std::to_string(ringSlots_) +
                                        " slots, held by " + describe());
}

//===----------------------------------------------------------------------===//
// Coming
//===----------------------------------------------------------------------===//

void WeightStagehand::releaseSlabs(Block &block) {
  if (slabs_.holds(block.id))
    slabs_.release(block.id); // who waited is in pending_ and is served from there
}

/// Starts the load of a block if there are slabs and room for it. One that is
/// needed now may wait for both, and what stands in its way leaves; one that is
/// loaded ahead drives out only what is needed later.
bool WeightStagehand::tryLoad(Block &block, Priority priority, bool isNeeded, WeightActions &actions) {
  if (block.state != BlockState::Unloaded)
    return false;
  if (block.staged && !slabs_.holds(block.id)) {
    if (slabs_.waits(block.id) || !slabs_.acquire(block.id, block.bytes, /*mayWait=*/isNeeded))
      return false;
  }
  if (ringSlots_ > 0 && occupied_ >= ringSlots_) {
    int64_t minDistance = isNeeded ? 0 : distance(block) + 1;
    Block *leaving = bestToLeave(minDistance, /*evenFromWindow=*/false);
    if (!leaving && isNeeded)
      leaving = bestToLeave(minDistance, /*evenFromWindow=*/true);
    if (leaving)
      startEviction(*leaving, actions);
    if (occupied_ >= ringSlots_) {
      if (!isNeeded || !isAnythingUnderWay())
        releaseSlabs(block);
      return false;
    }
  }
  move(block, BlockState::HostStaged);
  move(block, BlockState::Prefetching);
  ++occupied_;
  ++inflight_;
  vramBytes_ += block.bytes;
  ++counts_->loads;
  actions.push_back({.kind = WeightAction::Kind::Load, .block = block.id, .priority = priority});
  return true;
}

void WeightStagehand::servePending(WeightActions &actions) {
  while (!pending_.empty()) {
    Block &block = *pending_.front();
    // One whose save-back failed is there still.
    if (block.state != BlockState::GpuReady && !tryLoad(block, Priority::Required, /*isNeeded=*/true, actions))
      return;
    block.isPending = false;
    pending_.pop_front();
  }
}

void WeightStagehand::prefetch(WeightActions &actions) {
  if (!inStep_ || cycle_.empty())
    return;
  int64_t limit = std::min(config_.maxInflightTransfers, hints_.maxInflightH2d);
  int64_t ahead = std::min(window(), int64_t(cycle_.size()));
  for (int64_t d = 1; d <= ahead; ++d) {
    Block &block = *cycle_[size_t(cursor_ + d) % cycle_.size()];
    if (block.state != BlockState::Unloaded || block.isPending)
      continue;
    if (vramBytes_ >= highBytes() || inflight_ >= limit || !pending_.empty() ||
        !tryLoad(block, priorityOfLoad(d), /*isNeeded=*/false, actions))
      return;
  }
}

/// A copy has ended: what waited for it, then what could not start beside it.
void WeightStagehand::goOn(WeightActions &actions) {
  servePending(actions);
  prefetch(actions);
}

WeightActions WeightStagehand::loaded(std::string_view id, const LoadTimes &times) {
  Block &block = find(id);
  move(block, BlockState::GpuReady);
  block.failedOnce = false;
  --inflight_;
  counts_->h2dBytes += block.bytes;
  counts_->copyMs += times.copyMs;
  counts_->fileReadMs += times.fileReadMs;
  if (times.copyMs > 0)
    block.loadMs = times.copyMs;
  releaseSlabs(block);
  WeightActions actions;
  goOn(actions);
  return actions;
}

LoadFailure WeightStagehand::loadFailed(std::string_view id) {
  Block &block = find(id);
  LoadFailure failure;
  if (block.state == BlockState::Prefetching && !block.failedOnce) {
    block.failedOnce = true;
    failure.retry = true;
    return failure;
  }
  dropLoad(block, failure.actions);
  return failure;
}

WeightActions WeightStagehand::loadDenied(std::string_view id) {
  WeightActions actions;
  dropLoad(find(id), actions);
  ++counts_->deniedSpeculative;
  return actions;
}

void WeightStagehand::dropLoad(Block &block, WeightActions &actions) {
  if (block.state != BlockState::Prefetching)
    throw Error(ErrorCode::StateTransition, "weight stagehand: block \"" + block.id + "\" cannot go from " +
                                                std::string(nameOf(block.state)) +
                                                " to UNLOADED: no load of it is under way");
  move(block, BlockState::Unloaded);
  --inflight_;
  --occupied_;
  --counts_->loads;
  block.failedOnce = false;
  vramBytes_ -= block.bytes;
  releaseSlabs(block);
  servePending(actions);
}

//===----------------------------------------------------------------------===//
// Planned
//===----------------------------------------------------------------------===//

/// Between steps: a new plan where times have changed by more than a tenth.
void WeightStagehand::replan() {
  if (config_.policy != WeightStagehandConfig::Policy::Planned || cycle_.empty())
    return;
  std::vector<PlannedWeight> weights;
  int64_t slot = 0, streamed = 0;
  for (const Block &block : blocks_) {
    if (!block.positions.empty() && block.computeMs <= 0 && block.loadMs <= 0)
      return; // not all are known yet
    weights.push_back({block.bytes, block.computeMs, block.loadMs});
    slot = std::max(slot, block.bytes);
    streamed += block.state == BlockState::GpuReady ? block.bytes : 0;
  }
  if (plan_ && !hasDrifted(*plan_, weights))
    return;
  // What others have allocated is not ours to plan with.
  int64_t cap = ringSlots_ > 0 ? ringSlots_ * slot : limits_.highBytes - (vramBytes_ - streamed);
  std::vector<uint32_t> order;
  for (const Block *block : cycle_)
    order.push_back(block->index);
  plan_ = planWeights(order, std::move(weights), cap, std::min<int64_t>(config_.prefetchWindowBlocks, 1));
  for (Block &block : blocks_)
    block.isPlannedResident = std::ranges::binary_search(plan_->resident, block.index);
}

} // namespace segue::inline runtime
