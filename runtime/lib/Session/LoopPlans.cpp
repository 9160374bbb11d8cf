//===- LoopPlans.cpp - plans for the steps of a loop ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LoopPlans.h"
#include "../Program/SubmitLane.h"
#include "LoopSteps.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include "segue/runtime/Session/StepTwin.h"
#include <algorithm>
#include <chrono>

namespace segue::inline runtime {

/// A process that makes ever new programs forgets the orders of the old ones.
static constexpr size_t mostPlannedOrders = 16;

/// An order may depart from its plan so many times more often than it has kept to it.
static constexpr uint64_t mostDepartures = 3;

/// Plans of an order that are made again with the times that its steps took.
static constexpr int mostMeasured = 2;

/// Returns the bytes that the device holds beside those of the twin between two steps, and beside what
/// whoever keeps them for later gives up when asked.
uint64_t LoopPlans::othersBytes(uint64_t restBytes) const {
  uint64_t live = device_->memory().liveBytes(Space::DeviceDram);
  uint64_t own = restBytes + device_->lane().droppableBytes(Space::DeviceDram);
  return live - std::min(live, own);
}

std::unique_ptr<LoopPlans::Plan> LoopPlans::make(const LoopOrder &order, bool ahead,
                                                 const MeasuredStep *measured) const {
  StepTwin twin(virtualTwin(*device_), [&](const DeviceRef &device, EventSink &events) {
    return std::make_unique<LoopSteps>(device, events, order, ahead);
  });
  StepProfile profile = twin.record();
  if (std::optional<StepProfile> timed = measured ? withMeasured(profile, *measured) : std::nullopt)
    profile = std::move(*timed);
  ResidencyPlanner planner(std::move(profile));
  auto plan = std::make_unique<Plan>();
  plan->comesAhead = ahead;
  plan->restBytes = twin.restBytes();
  plan->othersBytes = othersBytes(plan->restBytes);
  uint64_t left = budgetBytes_ - std::min(budgetBytes_, plan->othersBytes);
  CertifiedPlan found = certifyPeak(twin, planner, left);
  if (found.bytes > left)
    throw errorOf({.askedBytes = budgetBytes_,
                   .smallestBytes = found.bytes + plan->othersBytes,
                   .setBy = planner.profile().events[planner.tightestEvent()],
                   .held = found.played.holders,
                   .othersBytes = plan->othersBytes});
  plan->profile = planner.profile();
  plan->plan = *found.plan;
  plan->certifiedBytes = found.bytes + plan->othersBytes;
  plan->seconds = found.played.seconds;
  return plan;
}

/// Weights that come ahead hide behind the block before, and take the room of what could stay.
std::unique_ptr<LoopPlans::Plan> LoopPlans::faster(const LoopOrder &order) const {
  std::unique_ptr<Plan> plan = make(order, /*ahead=*/false);
  try {
    std::unique_ptr<Plan> ahead = make(order, /*ahead=*/true);
    return ahead->seconds < plan->seconds ? std::move(ahead) : std::move(plan);
  } catch (const Error &error) {
    if (error.code() != ErrorCode::BudgetInfeasible)
      throw;
    return plan;
  }
}

void LoopPlans::plan(Known &known, const MeasuredStep *measured) {
  auto began = std::chrono::steady_clock::now();
  try {
    std::unique_ptr<Plan> plan = measured ? make(known.order, known.plan->comesAhead, measured) : faster(known.order);
    if (inForce_ == known.plan.get())
      inForce_ = nullptr;
    known.plan = std::move(plan);
    known.whyNot.clear();
    ++figures_.plans;
    figures_.certifiedBytes = known.plan->certifiedBytes;
    figures_.stepSeconds = known.plan->seconds;
  } catch (const std::exception &error) { // the step goes without
    if (measured)
      return;
    if (inForce_ == known.plan.get())
      inForce_ = nullptr;
    known.plan.reset();
    known.whyNot = error.what();
    known.triedOthers = othersBytes(0);
  }
  figures_.planningSeconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// Why the next step of this order goes by no plan; empty where it has one, made now if it had none.
std::string LoopPlans::whyNone(Known &known) {
  if (known.isGivenUp)
    return "a planned step of this order found no memory";
  if (known.departed > mostDepartures + known.kept)
    return "steps that begin so went another way than the one before " + std::to_string(known.departed) + " times";
  if (!known.order.whyNot().empty())
    return known.order.whyNot();
  if (known.plan && othersBytes(known.plan->restBytes) > known.plan->othersBytes)
    plan(known);
  else if (!known.plan && (known.whyNot.empty() || othersBytes(0) < known.triedOthers))
    plan(known);
  if (!known.plan || known.plan.get() != inForce_ || known.measured == mostMeasured)
    return known.whyNot;
  if (std::optional<MeasuredStep> measured = services_.takeMeasured()) {
    ++known.measured;
    plan(known, &*measured);
  }
  return known.whyNot;
}

bool LoopPlans::beginStep(LoopProgram first) {
  beginUnplanned();
  auto found = known_.find(first);
  if (found == known_.end())
    return false;
  figures_.whyNot = whyNone(found->second);
  if (!figures_.whyNot.empty())
    return false;
  now_ = found->second.plan.get();
  if (inForce_ != now_)
    services_.follow(now_->profile, now_->plan, std::nullopt);
  inForce_ = now_;
  return true;
}

void LoopPlans::beginUnplanned() {
  order_.clear();
  now_ = nullptr;
}

void LoopPlans::endStep() {
  const Plan *planned = std::exchange(now_, nullptr);
  if (order_.calls().empty())
    return;
  bool hasDeparted = planned && services_.planned()->hasDeparted();
  figures_.kept += planned && !hasDeparted;
  figures_.departed += hasDeparted;
  LoopProgram first = order_.calls().front().program;
  if (known_.size() >= mostPlannedOrders && !known_.contains(first)) {
    known_.clear();
    inForce_ = nullptr;
  }
  // What a backward takes is not known yet.
  if (!order_.hasReturned() && !known_.contains(first))
    return;
  Known &known = known_[first];
  known.kept += planned && !hasDeparted;
  known.departed += hasDeparted;
  // One that ended early says nothing of the next.
  if (!order_.hasReturned() || order_.isSameAs(known.order) || order_.isBeginningOf(known.order))
    return;
  if (inForce_ == known.plan.get())
    inForce_ = nullptr;
  known.order = order_;
  known.plan.reset();
  known.whyNot.clear();
  known.isGivenUp = false;
  known.measured = 0;
}

void LoopPlans::abortStep(bool isOutOfMemory) {
  const Plan *planned = std::exchange(now_, nullptr);
  if (!planned || !isOutOfMemory)
    return;
  for (auto &[first, known] : known_)
    known.isGivenUp |= known.plan.get() == planned;
}

} // namespace segue::inline runtime
