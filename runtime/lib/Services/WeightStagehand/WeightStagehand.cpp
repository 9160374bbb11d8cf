//===- WeightStagehand.cpp - which weights are on the device --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Blocks and their states, the order of the step, and what happens before and
// after a block. What leaves and what comes is in WeightMoves.cpp, the records
// in WeightRecord.cpp.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/WeightStagehand.h"
#include "WeightBlocks.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include <algorithm>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<WeightBacking>() {
  static constexpr std::string_view names[] = {"resident_source", "file", "slab", "file + mutable"};
  return names;
}

template <> std::span<const std::string_view> namesOf<BlockState>() {
  static constexpr std::string_view names[] = {"UNLOADED",  "HOST_STAGED", "PREFETCHING",
                                               "GPU_READY", "EVICTING",    "GPU_FREEING"};
  return names;
}

static std::string text(std::string_view block) { return "weight stagehand: block \"" + std::string(block) + "\""; }

WeightStagehand::WeightStagehand(WeightStagehandConfig config, const WeightLimits &limits)
    : config_(std::move(config)), limits_(limits), slabs_(limits.slabBytes, limits.slabs),
      counts_(std::make_unique<Counts>()) {}
WeightStagehand::~WeightStagehand() = default;
WeightStagehand::WeightStagehand(WeightStagehand &&) noexcept = default;

//===----------------------------------------------------------------------===//
// Blocks
//===----------------------------------------------------------------------===//

void WeightStagehand::registerBlock(WeightBlock block) {
  if (byId_.contains(block.id))
    throw Error(ErrorCode::StateTransition, text(block.id) + " is registered twice");
  checkBytes(block.id, block.bytes, block.staged);
  Block &added = blocks_.emplace_back();
  static_cast<WeightBlock &>(added) = std::move(block);
  added.index = uint32_t(blocks_.size() - 1);
  byId_[added.id] = &added;
  forgetOrder();
}

void WeightStagehand::checkBytes(const std::string &id, int64_t bytes, bool staged) const {
  if (bytes <= 0)
    throw Error(ErrorCode::InvalidArgument, text(id) + " has " + std::to_string(bytes) + " bytes");
  if (staged && slabs_.slabsFor(bytes) > slabs_.slabs())
    throw Error(ErrorCode::InvalidArgument,
                text(id) + " has " + std::to_string(bytes) + " bytes, and the pinned pool " +
                    std::to_string(slabs_.slabs() * slabs_.slabBytes()) + "; raise pinned_pool_mb");
}

void WeightStagehand::restate(std::string_view id, int64_t bytes, bool staged) {
  Block &block = find(id);
  if (block.state != BlockState::Unloaded && block.state != BlockState::Prefetching)
    throw Error(ErrorCode::StateTransition, text(block.id) + " is " + std::string(nameOf(block.state)) +
                                                ": it cannot be stored in another form now");
  checkBytes(block.id, bytes, staged);
  if (block.state == BlockState::Prefetching && !ownsMemory())
    vramBytes_ += bytes - block.bytes;
  block.bytes = bytes;
  block.staged = staged;
}

WeightStagehand::Block &WeightStagehand::find(std::string_view id) {
  if (auto it = byId_.find(std::string(id)); it != byId_.end())
    return *it->second;
  std::vector<std::string_view> known;
  for (const Block &block : blocks_)
    known.push_back(block.id);
  throw Error(ErrorCode::NameUnknown, text(id) + " is not registered" + nearestHint(id, known));
}

BlockState WeightStagehand::state(std::string_view id) const { return find(id).state; }
int64_t WeightStagehand::useCount(std::string_view id) const { return find(id).uses; }

std::vector<std::string> WeightStagehand::resident() const {
  std::vector<std::string> ids;
  for (const Block &block : blocks_)
    if (block.state == BlockState::GpuReady)
      ids.push_back(block.id);
  return ids;
}

/// The only way from one state to another.
void WeightStagehand::move(Block &block, BlockState to) {
  using enum BlockState;
  BlockState from = block.state;
  bool legal = (from == Unloaded && to == HostStaged) || (from == HostStaged && to == Prefetching) ||
               (from == Prefetching && (to == GpuReady || to == Unloaded)) ||
               (from == GpuReady && (to == Evicting || to == GpuFreeing)) ||
               (from == Evicting && (to == HostStaged || to == Unloaded || to == GpuReady)) ||
               (from == GpuFreeing && to == Unloaded);
  if (!legal)
    throw Error(ErrorCode::StateTransition,
                text(block.id) + " cannot go from " + std::string(nameOf(from)) + " to " + std::string(nameOf(to)));
  if (from == GpuReady && block.uses > 0)
    throw Error(ErrorCode::StateTransition, text(block.id) + " cannot go from " + std::string(nameOf(from)) + " to " +
                                                std::string(nameOf(to)) + ": it is in use");
  block.state = to;
}

//===----------------------------------------------------------------------===//
// The order of a step
//===----------------------------------------------------------------------===//

static size_t orderOf(StepPhase phase) {
  if (phase != StepPhase::Forward && phase != StepPhase::Backward && phase != StepPhase::Optimizer)
    throw Error(ErrorCode::InvalidArgument,
                "weight stagehand: blocks have no order in phase " + std::string(nameOf(phase)));
  return size_t(phase) - size_t(StepPhase::Forward);
}

void WeightStagehand::setOrder(StepPhase phase, std::span<const std::string> ids) {
  size_t order = orderOf(phase);
  std::vector<Block *> blocks;
  for (const std::string &id : ids)
    blocks.push_back(&find(id));
  orders_[order] = std::move(blocks);
  hasOrder_[order] = true;
  forgetOrder();
}

void WeightStagehand::buildOrder() {
  if (!cycle_.empty())
    return;
  for (Block &block : blocks_)
    block.positions.clear();
  for (size_t order = 0; order < 3; ++order) {
    phaseBegin_[order] = cycle_.size();
    if (order > 0 && !isTraining_)
      continue;
    if (hasOrder_[order])
      cycle_.insert(cycle_.end(), orders_[order].begin(), orders_[order].end());
    else if (order == 0)
      for (Block &block : blocks_)
        cycle_.push_back(&block);
    else if (order == 1)
      for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block)
        cycle_.push_back(&*block);
  }
  for (size_t i = 0; i < cycle_.size(); ++i)
    cycle_[i]->positions.push_back(int64_t(i));
  cursor_ = std::min(cursor_, int64_t(cycle_.size()) - 1);
}

int64_t WeightStagehand::distance(const Block &block) const {
  int64_t length = int64_t(cycle_.size());
  if (block.positions.empty())
    return length + 1;
  auto next = std::ranges::upper_bound(block.positions, cursor_);
  return next != block.positions.end() ? *next - cursor_ : length + block.positions.front() - cursor_;
}

int64_t WeightStagehand::nextUse(std::string_view id) const {
  const Block &block = find(id);
  const_cast<WeightStagehand *>(this)->buildOrder();
  return distance(block);
}

int64_t WeightStagehand::scoreOfV0(int64_t order, int64_t position, int64_t blocks, int64_t bytes) {
  int64_t distance = ((order - position) % blocks + blocks) % blocks;
  return (distance ? distance : blocks) * bytes;
}

int64_t WeightStagehand::window() const {
  int64_t window = plan_ ? plan_->window : config_.prefetchWindowBlocks;
  window = std::min(window, hints_.windowCap);
  // The block that comes next is loaded all the same.
  return hints_.suppressSpeculative ? std::min<int64_t>(window, 1) : window;
}

void WeightStagehand::beginStep(int64_t step, bool isTraining) {
  if (inStep_)
    throw Error(ErrorCode::PhaseOrder,
                "weight stagehand: step " + std::to_string(step) + " begins within step " + std::to_string(step_));
  if (isTraining_ != isTraining)
    forgetOrder();
  isTraining_ = isTraining;
  buildOrder();
  step_ = step;
  inStep_ = true;
  *counts_ = {};
  leastSlots_ = ring_.slots;
  for (Block &block : blocks_) {
    block.usedInStep = block.saveBackFailed = false;
    block.isReadAnew &= block.state != BlockState::GpuReady;
  }
}

void WeightStagehand::enterPhase(StepPhase phase) {
  if (phase != StepPhase::Forward && phase != StepPhase::Backward && phase != StepPhase::Optimizer)
    return;
  buildOrder();
  cursor_ = int64_t(phaseBegin_[orderOf(phase)]) - 1;
}

void WeightStagehand::measure(int64_t allocatedBytes, std::optional<int64_t> reservedBytes) {
  vramBytes_ = allocatedBytes;
  reservedBytes_ = std::max(reservedBytes.value_or(allocatedBytes), allocatedBytes);
}

BeforeBlock WeightStagehand::beforeBlock(std::string_view id, bool isBeside) {
  Block &block = find(id);
  buildOrder();
  if (block.positions.empty() && !isBeside)
    throw Error(ErrorCode::InvalidArgument, text(id) + " is in the order of no phase; give it one by setOrder");
  int64_t cursorBefore = cursor_;
  if (!isBeside)
    cursor_ = (cursor_ + distance(block)) % int64_t(cycle_.size());

  BeforeBlock before;
  if (block.state == BlockState::GpuReady) {
    before.use = BeforeBlock::Use::Hit;
  } else if (block.state == BlockState::Prefetching) {
    before.use = BeforeBlock::Use::Late;
  } else {
    before.use = BeforeBlock::Use::Miss;
    retriedSaveBacks_ = false;
    auto load = [&] { return tryLoad(block, Priority::Required, /*isNeeded=*/true, before.actions); };
    if (!block.isPending && !load() && (isAnythingUnderWay() || !retrySaveBacks() || !load())) {
      if (!isAnythingUnderWay()) {
        cursor_ = cursorBefore;
        failForRoom(block);
      }
      block.isPending = true;
      pending_.push_back(&block);
    }
  }
  ++block.uses;
  counts_->lent += isBeside;
  block.lastUsedStep = step_;
  counts_->blocksUsed += !block.usedInStep;
  block.usedInStep = true;
  counts_->hits += before.use == BeforeBlock::Use::Hit;
  counts_->late += before.use == BeforeBlock::Use::Late;
  counts_->misses += before.use == BeforeBlock::Use::Miss;
  counts_->stalls += before.use != BeforeBlock::Use::Hit;

  relievePressure(before.actions);
  prefetch(before.actions);
  relievePressure(before.actions);
  return before;
}

WeightActions WeightStagehand::afterBlock(std::string_view id, const BlockOutput &output) {
  Block &block = find(id);
  if (block.uses == 0)
    throw Error(ErrorCode::StateTransition, text(id) + " is released more often than it was used");
  if (block.state != BlockState::GpuReady && block.state != BlockState::Prefetching)
    throw Error(ErrorCode::StateTransition,
                text(id) + " has run, and it is " + std::string(nameOf(block.state)) + ": report its load first");
  --block.uses;
  observe(id, output);
  WeightActions actions;
  relievePressure(actions);
  return actions;
}

void WeightStagehand::observe(std::string_view id, const BlockOutput &output) {
  Block &block = find(id);
  if (config_.nanInfCheck) {
    counts_->nans += output.nans;
    counts_->infs += output.infs;
  }
  if (output.computeMs) {
    counts_->computeMs += *output.computeMs;
    block.stepComputeMs += *output.computeMs;
    ++block.stepRuns;
  }
}

void WeightStagehand::changed(std::string_view id, int64_t bytes) {
  Block &block = find(id);
  if (block.state != BlockState::GpuReady)
    throw Error(ErrorCode::StateTransition,
                text(id) + " is " + std::string(nameOf(block.state)) + ": nothing can have changed it");
  block.changedBytes = std::max(block.changedBytes, bytes);
}

//===----------------------------------------------------------------------===//
// Numeric guards
//===----------------------------------------------------------------------===//

void WeightStagehand::checkStored(std::string_view tensor, ElementType stored, ElementType declared) const {
  if (config_.strictBf16 && stored != declared)
    throw Error(ErrorCode::DtypeMismatch, "weight \"" + std::string(tensor) + "\" is stored as " +
                                              std::string(name(stored)) + " and declared as " +
                                              std::string(name(declared)) +
                                              "; convert the file, or set strict_bf16 to false");
}

static int precisionOf(std::string_view type) {
  if (type == "f64")
    return 3;
  if (type == "f32")
    return 2;
  return type == "bf16" || type == "f16" ? 1 : 0;
}

void WeightStagehand::checkPromotion(std::string_view block, std::string_view input, std::string_view output) {
  if (precisionOf(output) <= precisionOf(input))
    return;
  ++counts_->promotions;
  if (config_.failOnDtypePromotion)
    throw Error(ErrorCode::DtypeMismatch, text(block) + " takes " + std::string(input) + " and gives " +
                                              std::string(output) + "; set fail_on_dtype_promotion to false to let it");
}

//===----------------------------------------------------------------------===//
// Residency control
//===----------------------------------------------------------------------===//

WeightStagehand::Scope WeightStagehand::keepResident(std::span<const std::string> ids) {
  std::vector<Block *> blocks;
  for (const std::string &id : ids)
    blocks.push_back(&find(id));
  for (Block *block : blocks)
    ++block->kept;
  return Scope([blocks] {
    for (Block *block : blocks)
      --block->kept;
  });
}

WeightStagehand::Scope WeightStagehand::reserve(const std::string &model, ResidencyRank rank, int64_t bytes) {
  auto owned = std::make_shared<Reservation>(Reservation{model, rank, bytes});
  reservations_.push_back(owned.get());
  return Scope([this, owned] { std::erase(reservations_, owned.get()); });
}

WeightStagehand::Scope WeightStagehand::asGuest(const std::string &model) {
  std::optional<std::string> before = std::exchange(guest_, model);
  return Scope([this, before] { guest_ = before; });
}

int64_t WeightStagehand::highBytes() const {
  int64_t high = limits_.highBytes;
  if (guest_)
    for (const Reservation *each : reservations_)
      if (each->model != *guest_)
        high -= each->bytes;
  return high;
}

int64_t WeightStagehand::headroomBytes() const { return highBytes() - vramBytes_; }

} // namespace segue::inline runtime
