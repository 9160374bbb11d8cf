//===- WeightStreamer.cpp - weights that come with their block ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The events of a step. What belongs to which block is in WeightBlocks.cpp, and the
// copies are in WeightCopies.cpp.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The range of priorities of copies, which CUDA counts downwards.
static constexpr int64_t mostUrgentCopy = -5, leastUrgentCopy = 0;

WeightStreamer::Impl::Impl(DeviceRef device, WeightStagehandConfig config, WeightStreamerOptions options)
    : device(std::move(device)), config(std::move(config)), options(std::move(options)),
      engine(this->device->transfer()) {
  if (!this->options.warn)
    this->options.warn = [](const std::string &text) { std::fprintf(stderr, "segue: warning: %s\n", text.c_str()); };
  // No driver has streams of several priorities: the range is that of the key, and a user
  // who chose one is told that it changes nothing.
  std::string warning;
  bool isChosen = this->config.copyStreamPriority != WeightStagehandConfig().copyStreamPriority;
  this->config.copyStreamPriority = this->config.copyPriority(mostUrgentCopy, leastUrgentCopy, &warning);
  if (!warning.empty())
    this->options.warn(warning);
  if (isChosen)
    this->options.warn("memory.stagehand.copy_stream_priority: device \"" + this->device->name() +
                       "\" has copy queues of one priority, so that the key has no effect there; leave it out");
}

WeightStreamer::WeightStreamer(DeviceRef device, WeightStagehandConfig config, WeightStreamerOptions options)
    : impl_(std::make_unique<Impl>(std::move(device), std::move(config), std::move(options))) {}

WeightStreamer::~WeightStreamer() {
  for (const auto &claim : *impl_->claims) // somebody may hold it longer than the policy lives
    claim->scope.release();
  try {
    impl_->device->drain();
  } catch (...) { // a device that failed runs nothing any more
  }
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

void WeightStreamer::receive(const Event &event) { deliver(*this, event); }

void WeightStreamer::on(const event::PhaseBegin &begin) {
  Impl &s = *impl_;
  if (begin.step)
    setStep(begin.step);
  if (!s.policy)
    return;
  if (begin.phase == Phase::StepBegin)
    return s.beginStep();
  if (!s.inStep)
    return;
  if (begin.phase == Phase::StepEnd)
    return s.endStep(/*aborted=*/false);
  s.poll();
  if (begin.phase == Phase::Optimizer) // what was computed from a load that failed is not used
    s.settleAwaited();
  if (begin.phase == Phase::Backward)
    s.readSlabsAhead(s.phases[1]);
  s.policy->tell(weight_calls::phase, stepPhase(begin.phase));
}

void WeightStreamer::setHints(const WeightHints &hints) {
  impl_->hints = hints;
  if (impl_->policy && !impl_->ranks)
    impl_->policy->tell(weight_calls::hints, hints);
}

void WeightStreamer::setStep(int64_t step) { impl_->step = step - 1; }

void WeightStreamer::Impl::beginStep() {
  if (inStep)
    abortStep();
  dropStale();
  inStep = true;
  hasReported = false;
  for (const auto &block : blocks)
    block->isUsed = false;
  policy->tell(weight_calls::beginStep, ++step, /*isTraining=*/true);
  readSlabsAhead(phases[0]);
}

void WeightStreamer::Impl::endStep(bool aborted) {
  if (!aborted)
    settleAwaited();
  if (!looks.empty())
    device->wait(looks.back().done);
  if (!waits.empty())
    device->wait(waits.back().done);
  takeObservations(/*all=*/true);
  policy->tell(weight_calls::measure, usedBytes(), reservedBytes());
  if (aborted)
    policy->tell(weight_calls::abortStep);
  else
    carryOut(policy->tell(weight_calls::endStep));
  policy->flush();
  inStep = false;
  for (const auto &block : blocks)
    block->isUsed = false; // an evaluation may have it in another form
  lastRecord = stagehand().telemetry();
  if (options.slab || !formSlabs.empty())
    lastRecord.update(takeSlabTelemetry().json());
  if (telemetry)
    telemetry->write(lastRecord);
  if (std::string line = stagehand().logLine(); !line.empty() && options.log)
    options.log(line);
  if (!aborted)
    flushSeenOutside();
}

void WeightStreamer::beginEvaluation() {
  Impl &s = *impl_;
  if (!s.policy || s.inStep || s.isEvaluating)
    return;
  s.dropStale();
  s.setOrders(/*isTraining=*/false);
  s.policy->tell(weight_calls::beginStep, s.step, /*isTraining=*/false);
  s.policy->tell(weight_calls::phase, StepPhase::Forward);
  s.isEvaluating = true;
}

void WeightStreamer::endEvaluation() {
  Impl &s = *impl_;
  if (!s.isEvaluating)
    return;
  s.settleAwaited();
  s.isEvaluating = false;
  s.runs.clear(); // nothing is recorded
  s.waits.clear();
  s.carryOut(s.policy->tell(weight_calls::endStep));
  s.policy->flush();
  s.setOrders(/*isTraining=*/true);
}

/// Ends copies that were under way for a program that runs no more. Uses have ended, so
/// that a load that failed concerns nobody.
void WeightStreamer::Impl::endCopies() {
  open.clear();
  lent.clear();
  current = nullptr;
  awaited.clear();
  while (hear(Tier::Host, /*waits=*/true) || hear(Tier::Device, /*waits=*/true))
    continue;
  lostGathering.reset();
}

void WeightStreamer::Impl::abortStep() {
  device->drain();
  endStep(/*aborted=*/true);
  endCopies();
  giveUpLost();
}

void WeightStreamer::abortStep() {
  if (impl_->inStep)
    impl_->abortStep();
}

void WeightStreamer::abortEvaluation() {
  Impl &s = *impl_;
  if (!s.inStep && !s.isEvaluating)
    return;
  s.device->drain();
  if (std::exchange(s.isEvaluating, false)) {
    s.waits.clear();
    s.policy->tell(weight_calls::abortStep);
    s.policy->flush();
    s.setOrders(/*isTraining=*/true);
  } else {
    s.policy->tell(weight_calls::abandonUses);
  }
  s.endCopies();
}

void WeightStreamer::on(const event::OfferInput &offer) {
  Impl &s = *impl_;
  if (!s.inStep && !s.isEvaluating)
    return;
  auto [it, end] = s.byProgram.equal_range({offer.program.image().get(), offer.program.index()});
  for (; it != end; ++it) {
    Impl::Weight *weight = it->second->inputs[offer.input];
    // Another tensor than the source's is the caller's own business.
    if (!weight || !weight->block || (weight->source.host && weight->source.host.storage() != offer.value.storage()))
      continue;
    s.current = it->second;
    s.nextBlock = 0;
    s.open.clear();
    offer.isDeferred = true;
    return;
  }
}

void WeightStreamer::on(const event::BlockBegin &begin) {
  Impl &s = *impl_;
  if (!s.isCurrent(begin.program))
    return;
  size_t index = s.nextBlock++;
  s.open.push_back(index);
  Impl::Block *block = s.current->blocks[index].begins;
  if (!block)
    return;
  s.bring(*block, Impl::Opens::InOrder);
  block->isUsed = s.inStep;
  block->computeWatch = std::make_shared<Stopwatch>();
  s.mark(Queue::Compute, block->computeWatch, /*isEnd=*/false, block->slot->writes());
  s.started = Fence(Queue::Compute, s.device->position(Queue::Compute));
}

void WeightStreamer::on(const event::BlockInput &need) {
  const auto &[program, input, value] = need;
  Impl::Weight &weight = *impl_->current->inputs[input];
  value = Tensor::in(weight.block->slot, weight.desc);
}

void WeightStreamer::on(const event::BlockEnd &end) {
  Impl &s = *impl_;
  if (!s.isCurrent(end.program) || s.open.empty())
    return;
  size_t index = s.open.back();
  s.open.pop_back();
  if (const auto &promotion = s.current->blocks[index].promotion; promotion && s.inStep)
    s.policy->tell(weight_calls::promotion, s.current->blocks[index].part->id, name(promotion->takes),
                   name(promotion->gives));
  Impl::Block *block = s.current->blocks[index].ends;
  if (!block)
    return;
  int64_t changed = 0;
  if (s.isWritten(*block))
    block->item->write();
  for (size_t i = 0; i < s.current->inputs.size(); ++i)
    if (Impl::Weight *weight = s.current->inputs[i]; weight && weight->block == block && s.current->uses.written[i]) {
      weight->version = block->item->version();
      changed += int64_t(weight->storedBytes);
    }
  if (changed)
    s.policy->tell(weight_calls::changed, block->id, changed);
  s.mark(Queue::Compute, block->computeWatch, /*isEnd=*/true, {});
  s.computed = Fence(Queue::Compute, s.device->position(Queue::Compute));
  s.runs.push_back({block, block->computeWatch, s.computed});
  s.carryOut(s.policy->tell(weight_calls::afterBlock, block->id, s.usedBytes(), BlockOutput()));
}

const WeightStagehand &WeightStreamer::policy() const {
  if (!impl_->policy)
    throw Error(ErrorCode::StateTransition, "weight streamer: not started");
  return impl_->stagehand();
}

//===----------------------------------------------------------------------===//
// Residency control
//===----------------------------------------------------------------------===//

template <typename Call, typename... Given>
WeightStreamer::Scope WeightStreamer::Impl::claim(const Call &call, Given... given) {
  auto added = std::make_shared<Claim>();
  added->apply = [&call, id = "scope " + std::to_string(++claimsMade), ... given = std::move(given)](Policy &policy) {
    policy.tell(call, id, given...);
    return Scope([&policy, id] { policy.tell(weight_calls::release, id); });
  };
  if (policy)
    added->scope = added->apply(*policy);
  claims->push_back(added);
  return Scope([added, all = std::weak_ptr(claims)] {
    if (auto list = all.lock()) {
      std::erase(*list, added);
      added->scope.release();
    }
  });
}

WeightStreamer::Scope WeightStreamer::keepResident(std::vector<std::string> blocks) {
  return impl_->claim(weight_calls::keep, std::move(blocks));
}

WeightStreamer::Scope WeightStreamer::reserve(std::string model, ResidencyRank rank, int64_t bytes) {
  return impl_->claim(weight_calls::reserve, std::move(model), std::optional(rank), bytes);
}

WeightStreamer::Scope WeightStreamer::asGuest(std::string model) {
  return impl_->claim(weight_calls::guest, std::move(model));
}

int64_t WeightStreamer::headroomBytes() const { return policy().headroomBytes(); }

int64_t WeightStreamer::slots() const { return int64_t(impl_->ring.size()); }

int64_t WeightStreamer::leastSlots() const { return int64_t(impl_->leastSlots); }

const WeightStagehandConfig &WeightStreamer::config() const { return impl_->config; }

uint64_t WeightStreamer::stagingBytes(bool anyForm) const {
  uint64_t most = 0;
  for (const Impl::Weight *weight : impl_->weightOrder) {
    if (!weight->block)
      continue;
    ElementType element = weight->desc->element;
    bool isConverted = anyForm || weight->slab || weight->source.inSlab ||
                       (weight->entry ? weight->entry->element != element
                                      : weight->source.host && weight->source.host.element() != element);
    if (isConverted)
      most = std::max({most, weight->storedBytes, weight->value.desc().spanBytes()});
  }
  return most;
}

uint64_t WeightStreamer::ringBytes() const { return impl_->ring.size() * impl_->slotBytes; }

Json WeightStreamer::record() const { return impl_->lastRecord; }

} // namespace segue::inline runtime
