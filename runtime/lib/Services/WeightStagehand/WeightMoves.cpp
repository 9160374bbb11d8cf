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

/// Returns true if nobody holds the block, whatever is planned.
bool WeightStagehand::mayLeave(const Block &block) const {
  if (block.uses > 0 || block.kept > 0 || block.saveBackFailed)
    return false;
  return !guest_ || block.model == *guest_ || std::ranges::none_of(reservations_, [&](const Reservation *each) {
    return each->rank == ResidencyRank::Primary && each->model == block.model;
  });
}

bool WeightStagehand::canLeave(const Block &block, Reach reach) const {
  if (block.state != BlockState::GpuReady || (reach != Reach::Plan && block.isPlannedResident))
    return false;
  if (inStep_ ? reach == Reach::Usual && distance(block) <= window()
              : block.lastUsedStep > step_ - config_.evictionCooldownSteps)
    return false;
  return mayLeave(block);
}

/// Returns the block to give up: needed no sooner than `minDistance`, and farthest from its next use
/// for its bytes.
WeightStagehand::Block *WeightStagehand::bestToLeave(int64_t minDistance, Reach reach) {
  Block *best = nullptr;
  int64_t bestScore = 0;
  for (Block &block : blocks_) {
    if (!canLeave(block, reach) || distance(block) < minDistance)
      continue;
    int64_t score = distance(block) * block.bytes;
    if (!best || score > bestScore) {
      best = &block;
      bestScore = score;
    }
  }
  return best;
}

WeightStagehand::Block *WeightStagehand::bestToLeave(int64_t minDistance, std::initializer_list<Reach> order) {
  for (Reach reach : order)
    if (Block *block = bestToLeave(minDistance, reach))
      return block;
  return nullptr;
}

void WeightStagehand::giveSlot(WeightActions &actions) {
  leastSlots_ = std::min(leastSlots_, --ring_.slots);
  vramBytes_ -= ring_.slotBytes;
  actions.push_back({.kind = WeightAction::Kind::GiveSlot, .block = {}});
}

/// Begins to evict a block. With `givesSlot` its slot leaves the ring with it, in the books at once.
void WeightStagehand::startEviction(Block &block, WeightActions &actions, bool givesSlot) {
  bool saveBack = block.changedBytes > 0;
  move(block, saveBack ? BlockState::Evicting : BlockState::GpuFreeing);
  if (!ownsMemory())
    vramBytes_ -= block.bytes;
  occupied_ -= !saveBack || givesSlot;
  ++counts_->evictions;
  actions.push_back({.kind = WeightAction::Kind::Evict, .block = block.id, .saveBack = saveBack});
  if (!givesSlot)
    return;
  giveSlot(actions);
  if (saveBack) {
    block.givesSlot = true;
    actions.pop_back(); // when it has been saved back
  }
}

/// Returns the slots that programs need at once, beside those of blocks that do not leave,
/// or may not, since a copy back may fail.
int64_t WeightStagehand::leastSlots(Reach reach) const {
  return ring_.openAtOnce + std::ranges::count_if(blocks_, [&](const Block &block) {
           if (block.state == BlockState::Evicting)
             return !block.givesSlot;
           if ((block.state != BlockState::GpuReady && block.state != BlockState::Prefetching) || block.uses > 0)
             return false;
           return !mayLeave(block) || (block.isPlannedResident && reach != Reach::Plan);
         });
}

int64_t WeightStagehand::spareSlots() const {
  return ring_.slots - leastSlots(Reach::Plan) + std::ranges::count_if(blocks_, [](const Block &block) {
           return block.state == BlockState::Evicting && !block.givesSlot;
         });
}

/// Makes blocks leave while memory is at the high watermark or above, until it is below the
/// low one. In a ring that owns its memory only a block that gives its slot back leaves,
/// and a slot stays for what comes next: a block that is loaded there takes no memory.
void WeightStagehand::relievePressure(WeightActions &actions) {
  if (vramBytes_ < highBytes() || ring_.isKept)
    return;
  int64_t low = lowBytes(), least = leastSlots(Reach::Usual) + (window() > 0);
  while (vramBytes_ >= low && (!ownsMemory() || ring_.slots > least))
    if (ownsMemory() && occupied_ < ring_.slots)
      giveSlot(actions);
    else if (Block *block = bestToLeave(0, Reach::Usual))
      startEviction(*block, actions, /*givesSlot=*/ownsMemory());
    else
      return;
}

WeightActions WeightStagehand::makeRoom(int64_t bytes) {
  buildOrder();
  WeightActions actions;
  while (bytes > 0) {
    if (ownsMemory() && ring_.slots <= leastSlots(Reach::Plan))
      break;
    if (ownsMemory() && occupied_ < ring_.slots) {
      giveSlot(actions);
      bytes -= ring_.slotBytes;
      continue;
    }
    Block *block = bestToLeave(0, {Reach::Usual, Reach::Window, Reach::Plan});
    if (!block)
      break;
    bytes -= ownsMemory() ? ring_.slotBytes : block->bytes;
    startEviction(*block, actions, /*givesSlot=*/ownsMemory());
  }
  if (ownsMemory() && !actions.empty())
    ring_.most = ring_.slots;
  return actions;
}

void WeightStagehand::setRing(const WeightRing &ring) {
  if (ring.slotBytes)
    vramBytes_ += (ring.slots - ring_.slots) * ring.slotBytes;
  ring_ = ring;
  ring_.most = std::max(ring.most, ring.slots);
  leastSlots_ = inStep_ ? std::min(leastSlots_, ring_.slots) : ring_.slots;
  if (!inStep_ && plan_)
    replan();
}

bool WeightStagehand::wantsSlot(std::string_view next) const {
  if (!ownsMemory() || ring_.slots >= ring_.most)
    return false;
  if (ring_.slots - occupied_ <= window() && vramBytes_ < lowBytes() && vramBytes_ + ring_.slotBytes < highBytes())
    return true;
  return !next.empty() && find(next).state == BlockState::Unloaded && occupied_ >= ring_.slots &&
         !isAnythingUnderWay() && std::ranges::none_of(blocks_, [this](const Block &block) {
           return block.state == BlockState::GpuReady && mayLeave(block);
         });
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
  block.isReadAnew |= !inStep_;
  return actions;
}

WeightActions WeightStagehand::evicted(std::string_view id) {
  Block &block = find(id);
  bool savedBack = block.state == BlockState::Evicting;
  move(block, BlockState::Unloaded);
  WeightActions actions;
  if (savedBack) {
    counts_->saveBackBytes += block.changedBytes;
    counts_->d2hBytes += block.changedBytes;
    block.changedBytes = 0;
    if (!std::exchange(block.givesSlot, false)) {
      --occupied_;
    } else if (pending_.empty() || occupied_ < ring_.slots) {
      actions.push_back({.kind = WeightAction::Kind::GiveSlot, .block = {}});
    } else { // somebody waits for room, and what he waited for has failed
      ring_.most = std::max(ring_.most, ++ring_.slots);
      vramBytes_ += ring_.slotBytes;
    }
  }
  goOn(actions);
  return actions;
}

/// A block whose copy back is under way does not leave after all.
WeightActions WeightStagehand::stay(Block &block) {
  if (block.state != BlockState::Evicting)
    throw Error(ErrorCode::StateTransition, "weight stagehand: block \"" + block.id + "\" is " +
                                                std::string(nameOf(block.state)) +
                                                ": no copy back of it is under way");
  move(block, BlockState::GpuReady);
  counts_->evictions -= counts_->evictions > 0; // else it began in the step before
  if (!ownsMemory())
    vramBytes_ += block.bytes;
  if (std::exchange(block.givesSlot, false)) {
    ++occupied_;
    ring_.most = std::max(ring_.most, ++ring_.slots);
    vramBytes_ += ring_.slotBytes;
  }
  WeightActions actions;
  goOn(actions);
  return actions;
}

WeightActions WeightStagehand::rescued(std::string_view id) {
  WeightActions actions = stay(find(id));
  ++counts_->rescued;
  return actions;
}

WeightActions WeightStagehand::saveBackFailed(std::string_view id) {
  Block &block = find(id);
  block.saveBackFailed |= block.state == BlockState::Evicting; // else the next line throws
  WeightActions actions = stay(block);
  if (!pending_.empty() && !isAnythingUnderWay() && actions.empty() && retrySaveBacks())
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

/// Tries copies back that have failed once more, for a block that needs the room when
/// nothing else can leave. Returns false if there are none, or they have been tried.
bool WeightStagehand::retrySaveBacks() {
  if (std::exchange(retriedSaveBacks_, true))
    return false;
  bool any = false;
  for (Block &block : blocks_)
    any |= std::exchange(block.saveBackFailed, false);
  return any;
}

void WeightStagehand::failForRoom(const Block &block) const {
  throw Error(ErrorCode::DeviceOom, "weight stagehand: no room for block \"" + block.id + "\" (" +
                                        std::to_string(block.bytes) + " bytes): " + std::to_string(ring_.slots) +
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
  if (ring_.slots > 0 && occupied_ >= ring_.slots) {
    Block *leaving = isNeeded ? bestToLeave(0, {Reach::Usual, Reach::Window, Reach::Plan})
                              : bestToLeave(distance(block) + 1, Reach::Usual);
    if (leaving)
      startEviction(*leaving, actions);
    if (occupied_ >= ring_.slots) {
      if (!isNeeded || !isAnythingUnderWay())
        releaseSlabs(block);
      return false;
    }
  }
  move(block, BlockState::HostStaged);
  move(block, BlockState::Prefetching);
  ++occupied_;
  ++inflight_;
  if (!ownsMemory())
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
    if ((vramBytes_ >= highBytes() && !ownsMemory()) || inflight_ >= limit || !pending_.empty() ||
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
    block.loadMs = times.copyMs + times.fileReadMs;
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
  if (!ownsMemory())
    vramBytes_ -= block.bytes;
  releaseSlabs(block);
  servePending(actions);
}

//===----------------------------------------------------------------------===//
// Planned
//===----------------------------------------------------------------------===//

/// Makes a new plan between steps if times have changed by more than a tenth, or there are
/// more slots or fewer. It plans with the slots that were there all through the step.
void WeightStagehand::replan() {
  if (config_.policy != WeightStagehandConfig::Policy::Planned || cycle_.empty() || !isTraining_)
    return;
  std::vector<PlannedWeight> weights;
  int64_t streamed = 0, kept = 0;
  for (const Block &block : blocks_) {
    if (!block.positions.empty() && (block.computeMs <= 0 || block.loadMs <= 0))
      return; // not all are known yet
    PlannedWeight &weight = weights.emplace_back();
    weight = {ring_.slots > 0 ? 1 : block.bytes, block.computeMs, block.loadMs, block.isReadAnew};
    streamed += block.state == BlockState::GpuReady ? block.bytes : 0;
    if (block.kept) { // it is there, whatever is planned
      kept += std::exchange(weight.size, 0);
      weight.loadMs = 0;
    }
  }
  // Memory that others have allocated is not ours to plan with.
  WeightRoom room{.cap = limits_.highBytes - (vramBytes_ - streamed) - kept};
  if (ring_.slots > 0)
    room = {.cap = leastSlots_ - kept, .openBeside = ring_.openAtOnce - 1};
  bool isOfThisRoom = plan_ && (ring_.slots == 0 || plan_->cap == room.cap);
  if (isOfThisRoom && !hasDrifted(*plan_, weights))
    return;
  std::vector<uint32_t> order;
  for (const Block *block : cycle_)
    order.push_back(block->index);
  plan_ = planWeights(order, std::move(weights), room, std::min<int64_t>(config_.prefetchWindowBlocks, 1),
                      isOfThisRoom ? &*plan_ : nullptr);
  for (Block &block : blocks_)
    block.isPlannedResident = std::ranges::binary_search(plan_->resident, block.index);
}

} // namespace segue::inline runtime
