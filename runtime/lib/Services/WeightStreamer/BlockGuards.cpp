//===- BlockGuards.cpp - what blocks take and give ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Types are known from the programs, before anything is allocated; what is not
// finite, when the compute queue has come by. See docs/decisions.md for what
// counts as an activation.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include <algorithm>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

/// Returns true for losses and other scalars, which are no activations.
static bool isScalar(const BlockResult &result) { return result.bytes <= byteSize(result.element); }
static bool isScalar(const TensorDesc &desc) { return desc.elementCount() <= 1; }

/// Returns true if `a` holds more than `b`; bf16 and f16 hold as much.
static bool isAbove(ElementType a, ElementType b) { return byteSize(a) > byteSize(b); }

static void raise(std::optional<ElementType> &highest, ElementType element) {
  if (isFloat(element) && (!highest || isAbove(element, *highest)))
    highest = element;
}

/// The highest precision of the activations that a block reads; nothing if it
/// reads none, as one that looks up tokens does.
static std::optional<ElementType> takenBy(const Program &program, const BlockUses &uses, const BlockUse &use) {
  std::optional<ElementType> given, saved;
  for (uint32_t input : use.inputsRead) {
    const Value &value = program.inputs()[input];
    if (!isScalar(value.desc()))
      raise(value.role == Role::Saved ? saved : given, value.desc().element);
  }
  for (uint32_t result : use.resultsRead)
    if (!isScalar(uses.results[result]))
      raise(given, uses.results[result].element);
  // Norms save statistics in f32 beside bf16: they say nothing of a block that is
  // given a gradient.
  return given ? given : saved;
}

/// Returns false for what is saved for backward alone, and for gradients of parameters.
bool WeightStreamer::Impl::isActivation(const ProgramPlan &plan, const BlockResult &result) const {
  if (isScalar(result))
    return false;
  if (result.output < 0)
    return result.isRead;
  const Value &output = plan.program.outputs()[size_t(result.output)];
  if (output.role == Role::Gradient)
    return !weights.contains(inModule(plan.module, output.of, "."));
  return output.role == Role::Output || result.isRead;
}

void WeightStreamer::Impl::checkPromotions(Policy &policy) {
  for (const auto &plan : programs) {
    auto runsIn = [&](const Order &order) { return std::ranges::find(order, plan.get()) != order.end(); };
    if (!runsIn(phases[0]) && !runsIn(phases[1]) && !runsIn(evaluation))
      continue; // states of optimizers have what precision they like
    for (const BlockResult &result : plan->uses.results) {
      Use &use = plan->blocks[result.block];
      // Only types that the program declares count: a temporary between two kernels has the
      // type that fusing has left it with, which nobody wrote.
      if (!use.part || use.promotion || result.output < 0 || !isActivation(*plan, result))
        continue;
      auto takes = takenBy(plan->program, plan->uses, plan->uses.blocks[result.block]);
      if (!takes || !isAbove(result.element, *takes))
        continue;
      use.promotion = {*takes, result.element};
      std::string where = "program \"" + plan->program.name() + "\", " + describe(plan->program, result);
      try {
        policy.tell(weight_calls::promotion, use.part->id, name(*takes), name(result.element));
      } catch (const Error &error) {
        throw error.within(where);
      }
      options.warn(where + ": block \"" + use.part->id + "\" takes " + std::string(name(*takes)) + " and gives " +
                   std::string(name(result.element)));
    }
  }
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

void WeightStreamer::on(const event::OfferResults &offer) {
  Impl &s = *impl_;
  if (!s.config.nanInfCheck || !s.inStep || !s.isCurrent(offer.program))
    return;
  auto runsIn = [&](const Impl::Order &order) { return std::ranges::find(order, s.current) != order.end(); };
  offer.areWatched |= runsIn(s.phases[0]) || runsIn(s.phases[1]);
}

void WeightStreamer::on(const event::BlockResult &written) {
  Impl &s = *impl_;
  Impl::Block *block = s.current->blocks[s.current->uses.results[written.result].block].part;
  if (!block)
    return;
  Impl::Look &look = s.looks.emplace_back(Impl::Look{block, s.current, written.result, {}, {}});
  look.count = countNonFinite(written.value, look.done);
}

/// One warning per step: what follows from it would be many.
void WeightStreamer::Impl::take(const Look &look) {
  int64_t nans = look.count->nans, infs = look.count->infs;
  if (!nans && !infs)
    return;
  policy->tell(weight_calls::observe, look.block->id, BlockOutput{.nans = nans, .infs = infs, .computeMs = {}});
  if (std::exchange(hasReported, true))
    return;
  options.warn("step " + std::to_string(step) + ": block \"" + look.block->id + "\" gives " + std::to_string(nans) +
               " NaN and " + std::to_string(infs) + " Inf in " +
               describe(look.plan->program, look.plan->uses.results[look.result]) + " of program \"" +
               look.plan->program.name() + "\"; what else this step has is in nan_count and inf_count");
}

void WeightStreamer::Impl::takeObservations(bool all) {
  while (!looks.empty() && (all || device->isDone(looks.front().done))) {
    Look look = std::move(looks.front());
    looks.pop_front();
    take(look);
  }
  while (!waits.empty() && (all || device->isDone(waits.front().done))) {
    Wait wait = std::move(waits.front());
    waits.pop_front();
    if (wait.isLate && !wait.watch->isLate)
      policy->tell(weight_calls::inTime, wait.block->id);
    policy->tell(weight_calls::stall, 1000 * wait.watch->seconds());
  }
  while (!runs.empty() && device->isDone(runs.front().done)) {
    Run run = std::move(runs.front());
    runs.pop_front();
    if (device->hasBytes())
      policy->tell(weight_calls::observe, run.block->id, BlockOutput{.computeMs = run.watch->milliseconds()});
  }
}

} // namespace segue::inline runtime
