//===- SessionOptimizer.cpp - the optimizer phase of a step ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This file feeds the programs of the phase, checks that gradients are numbers, and
// stores new parameters and states. Modules that are compiled with their optimizer in
// backward have done their part by then; they are fed from here, too.
//
//===----------------------------------------------------------------------===//

#include "../Services/Actors/PrecisionActor.h"
#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace segue::inline runtime {

Tensor hyperTensor(const DeviceRef &device, const Value &value, double number) {
  Tensor scalar =
      isFloat(value.desc().element) ? Tensor::scalar(device, float(number)) : Tensor::scalar(device, int64_t(number));
  return toLayout(device, scalar, value.desc());
}

static bool isHyper(Feed feed) { return feed == Feed::LearningRate || feed == Feed::Step || feed == Feed::Clip; }

static bool sameTensor(const Tensor &a, const Tensor &b) {
  return a.storage() == b.storage() && a.desc().layout.offset == b.desc().layout.offset;
}

//===----------------------------------------------------------------------===//
// Learning rates
//===----------------------------------------------------------------------===//

size_t Session::rateCount() const {
  size_t count = 1;
  for (const OptimizerPlan &plan : state_->plans)
    for (const OptimizerValue &input : plan.optimizerInputs)
      if (input.feed == Feed::LearningRate)
        count = std::max(count, input.slot + 1);
  return count;
}

void SessionState::checkRates(const LearningRates &rates) const {
  for (size_t group = 0; group < rates.size(); ++group)
    if (!std::isfinite(rates[group]))
      throw Error(ErrorCode::InvalidArgument,
                  "the learning rate is " + std::to_string(rates[group]) + "; give a finite number");
  for (size_t m = 0; m < modules.size(); ++m)
    for (const OptimizerValue &input : plans[m].optimizerInputs)
      if (input.feed == Feed::LearningRate && input.slot >= rates.size())
        throw Error(ErrorCode::InvalidArgument, "module \"" + modules[m].name() + "\" has parameters at the rate of group " +
                                                    std::to_string(input.slot) + ", and the rates of groups 0 to " +
                                                    std::to_string(rates.size() - 1) + " were given");
}

//===----------------------------------------------------------------------===//
// In backward
//===----------------------------------------------------------------------===//

bool SessionState::updatesInBackward() const { return std::ranges::any_of(plans, &OptimizerPlan::isInBackward); }

void SessionState::checkInBackward() const {
  auto module = std::ranges::find_if(plans, &OptimizerPlan::isInBackward);
  if (module == plans.end() || (rates && !waiting && announced.size() <= 1))
    return;
  throw Error(ErrorCode::InvalidArgument,
              "module \"" + modules[size_t(module - plans.begin())].name() +
                  "\" was compiled with its optimizer in backward: " +
                  (rates ? "a step of it has one batch, and " + std::to_string(announced.size()) +
                              " were given; compile it without in-backward to add up gradients of several"
                        : std::string("it trains by whole steps, as backward must know the learning rate, and gives no "
                                      "gradients; compile it without in-backward to see them")));
}

TensorMap SessionState::updateInputs(size_t m) {
  const OptimizerPlan &plan = plans[m];
  const Program &backward = *modulesNow()[m].find("backward");
  TensorMap given;
  for (size_t i = 0; i < plan.optimizerInputs.size(); ++i) {
    const OptimizerValue &input = plan.optimizerInputs[i];
    if (input.feed == Feed::State || isHyper(input.feed))
      given[plan.optimizer->input(i).name] = optimizerTensor(backward.input(i), input, /*comesByBlock=*/true, *rates, 1);
  }
  return given;
}

//===----------------------------------------------------------------------===//
// OPTIMIZER
//===----------------------------------------------------------------------===//

/// One input of a program of the optimizer phase, on its way to the device
/// maybe.
Tensor SessionState::optimizerTensor(const Value &value, const OptimizerValue &input, bool comesByBlock,
                                       const LearningRates &rates, double clip) {
  switch (input.feed) {
  case Feed::Parameter:
    return streamed->has(input.slot) && !comesByBlock ? toLayout(device, values[input.slot], value.desc())
                                                      : values[input.slot];
  case Feed::Gradient: {
    const Tensor &sum = gradientFor(input.slot);
    return !sum ? Tensor::zeros(device, value.desc()) : comesByBlock ? sum : toLayout(device, sum, value.desc());
  }
  case Feed::State:
    return optimizerState.find(input.state)->second;
  case Feed::Scratch:
    return Tensor::zeros(device, value.desc());
  case Feed::LearningRate:
    return hyperTensor(device, value, rates[input.slot]);
  case Feed::Step:
    return hyperTensor(device, value, double(updatedStep() - (input.slot < stepLags.size() ? stepLags[input.slot] : 0)));
  case Feed::Clip:
    break;
  case Feed::Other: // backward's own
    return Tensor();
  }
  return hyperTensor(device, value, clip);
}

/// The inputs of a program of the optimizer phase, arrived: what comes over the
/// link is waited for, and brought once more if it fails, as a program that writes
/// in place must not begin without all that it reads. `scalars`: those among them
/// that have arrived before, null elsewhere. Gradients of which this is the last reader, as
/// `gives` says, are given away and freed as they are used up.
std::vector<Tensor> SessionState::optimizerTensors(const Program &program, const std::vector<OptimizerValue> &inputs,
                                                     const LearningRates &rates, double clip, GivesGradients gives,
                                                     const std::vector<Tensor> &scalars) {
  auto comesByBlock = [&](size_t i) {
    if (inputs[i].feed == Feed::Parameter)
      return streamed->comesByBlock(program);
    const Tensor &sum = gradientFor(inputs[i].slot);
    return sum && residency && residency->isHome(sum) && streamed->comesByBlock(program, i);
  };
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value &value = program.inputs()[i];
    if (!scalars.empty() && scalars[i]) {
      tensors.push_back(scalars[i]);
      continue;
    }
    bool isGradient = inputs[i].feed == Feed::Gradient;
    bool comes = (isGradient || inputs[i].feed == Feed::Parameter) && comesByBlock(i);
    Tensor tensor = optimizerTensor(value, inputs[i], comes, rates, clip);
    if (isHyper(inputs[i].feed) || isBroughtFrom(inputs[i], tensor)) {
      device->wait(tensor.storage()->writes());
      if (tensor.storage()->failure())
        tensor = optimizerTensor(value, inputs[i], comes, rates, clip);
      wait(tensor);
    }
    if (isGradient && (gives == GivesGradients::All || (gives == GivesGradients::Others && !isReadByOptimizer(inputs[i].slot))))
      gradientFor(inputs[i].slot) = Tensor();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

bool SessionState::isReadByOptimizer(size_t slot) const {
  return std::ranges::any_of(plans, [&](const OptimizerPlan &plan) {
    return std::ranges::any_of(plan.optimizerInputs, [&](const OptimizerValue &input) {
      return input.feed == Feed::Gradient && input.slot == slot;
    });
  });
}

/// Returns true if `tensor` was copied from the host for this input.
bool SessionState::isBroughtFrom(const OptimizerValue &input, const Tensor &tensor) {
  const Tensor *source = input.feed == Feed::Parameter  ? &values[input.slot]
                         : input.feed == Feed::Gradient ? &gradientFor(input.slot)
                                                        : nullptr;
  return source && *source && source->storage() != tensor.storage() && isHostSpace(source->desc().layout.space);
}

/// The scalars among them, arrived, and null for the rest: before the first
/// optimizer writes anything.
std::vector<Tensor> SessionState::optimizerScalars(const Program &program, const std::vector<OptimizerValue> &inputs,
                                                     const LearningRates &rates, double clip) {
  std::vector<Tensor> scalars(inputs.size());
  auto make = [&](size_t i) { return optimizerTensor(program.inputs()[i], inputs[i], false, rates, clip); };
  for (size_t i = 0; i < inputs.size(); ++i)
    if (isHyper(inputs[i].feed))
      scalars[i] = make(i);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!scalars[i])
      continue;
    device->wait(scalars[i].storage()->writes());
    if (scalars[i].storage()->failure())
      scalars[i] = make(i);
    wait(scalars[i]);
  }
  return scalars;
}

/// Returns the sum of squares that a module gives: the first has all of them, or is their sum; where it does not, there is
/// one for each gradient.
static double squareOf(const DeviceRef &device, const Program *norm, std::span<const Tensor> given) {
  if (given.empty())
    return 0;
  if (given.front().desc().shape.empty())
    return given.front().item();
  bool isEach = norm && norm->output(0).name != gradSquaresName;
  float square = 0; // in f32, in the order of gradients
  for (const Tensor &each : isEach ? given : given.first(1)) {
    Tensor host = toHost(each);
    if (device->hasBytes())
      square = std::accumulate(host.data<float>(), host.data<float>() + host.elementCount(), square);
  }
  return square;
}

/// Returns the joint norm of the sums that wait, or NaN if no module can compute it.
double SessionState::gradientNorm() {
  std::vector<std::vector<Tensor>> norms(plans.size());
  bool isKnown = false;
  for (size_t m = 0; m < plans.size(); ++m) {
    const OptimizerPlan &plan = plans[m];
    if (squares.size() > m && squares[m])
      norms[m] = {squares[m]};
    else if (plan.gradNorm)
      norms[m] = submit(device, *plan.gradNorm,
                        optimizerTensors(*plan.gradNorm, plan.gradNormInputs, 0, 1, GivesGradients::Others),
                        options.events);
    isKnown |= plan.gradNorm || !norms[m].empty();
  }
  bool areOfAll = ranks && ranks->sharesGradients();
  double square = areOfAll ? ranks->squareOverRanks(norms) : 0;
  for (size_t m = 0; m < norms.size() && !areOfAll; ++m)
    square += squareOf(device, plans[m].gradNorm, norms[m]);
  return isKnown ? std::sqrt(square) : std::numeric_limits<double>::quiet_NaN();
}

void SessionState::runOptimizer(const OptimizerPlan &plan, std::vector<Tensor> tensors) {
  storeUpdated(plan, submit(device, *plan.optimizer, std::move(tensors), options.events));
}

void SessionState::storeUpdated(const OptimizerPlan &plan, std::vector<Tensor> results) {
  // Written in place, mostly; a parameter that was brought, or bound to another
  // layout, is not.
  std::vector<std::pair<Tensor, Tensor>> home; // from, to
  for (size_t i = 0; i < results.size(); ++i) {
    const OptimizerValue &value = plan.optimizerOutputs[i];
    if (!results[i] || value.feed == Feed::Scratch)
      continue;
    const Tensor &target =
        value.feed == Feed::Parameter ? values[value.slot] : optimizerState.find(value.state)->second;
    if (!sameTensor(results[i], target)) {
      copyInto(results[i], target);
      if (isHostSpace(target.desc().layout.space) && !device->hasUnifiedMemory())
        home.emplace_back(results[i], target);
    }
    results[i] = Tensor();
    if (value.feed == Feed::Parameter && !streamed->comesByBlock(*plan.optimizer))
      streamed->written(value.slot);
  }
  // The device's copy is the only one until it is home.
  for (auto &[from, to] : home) {
    for (int again = 0; again < 2; ++again) {
      device->wait(to.storage()->writes());
      if (!to.storage()->failure() || from.storage()->failure())
        break;
      copyInto(from, to);
    }
    wait(to);
  }
}

/// Returns true for errors that a program throws before it has written anything.
static bool refusedAtOnce(const std::exception &error) {
  auto *known = dynamic_cast<const Error *>(&error);
  return known && (known->code() == ErrorCode::LayoutMismatch || known->code() == ErrorCode::MissingInput ||
                   known->code() == ErrorCode::InvalidArgument);
}

/// Enters the phase. Services settle what backward has left before anything is made ready
/// for the optimizer: a failure in there is found before the first write.
void SessionState::enterOptimizer() {
  for (const OptimizerPlan &plan : plans) {
    if (plan.gradNorm)
      enterPhaseOf(*plan.gradNorm, options.events);
    if (plan.ownsParameters && !plan.isInBackward && !plan.isInForward)
      enterPhaseOf(*plan.optimizer, options.events);
  }
  if (std::ranges::any_of(plans, [](const OptimizerPlan &plan) { return plan.isInBackward || plan.isInForward; }))
    enter(Phase::Optimizer);
}

StepResult Session::optimize(const LearningRates &rates, std::span<const GradientHook> hooks) {
  state_->requireOutsideOfHooks("optimize");
  try {
    return state_->optimize(rates, hooks);
  } catch (const std::exception &error) {
    if (state_->ranks)
      state_->ranks->tellFailure(error);
    throw;
  }
}

StepResult SessionState::optimize(const LearningRates &rates, std::span<const GradientHook> hooks) {
  SessionState &s = *this;
  s.requireWhole();
  if (!s.waiting)
    throw Error(ErrorCode::InvalidArgument, "no gradients wait for the optimizer; call forwardBackward first");
  s.checkRates(rates);
  for (size_t m = 0; m < s.modules.size(); ++m) {
    if (s.plans[m].ownsParameters && !s.plans[m].optimizer)
      throw Error(ErrorCode::InvalidArgument,
                  "module \"" + s.modules[m].name() + "\" was compiled without optimizer; compile it with one");
    bool wantsNorm = s.options.maxGradNorm > 0 || s.options.lossScaling;
    if (wantsNorm && s.plans[m].ownsParameters && !s.plans[m].gradNorm)
      throw Error(ErrorCode::InvalidArgument, "module \"" + s.modules[m].name() +
                                                  "\" has no program \"grad_norm\", which " +
                                                  (s.options.lossScaling ? "loss scaling" : "clipping") +
                                                  " needs; compile it with an optimizer");
  }
  StepResult result;
  result.step = s.step + 1;
  result.loss = s.lossSum / double(s.waiting);
  result.lossScale = s.lossScale();
  // A failure from here on has updated nothing yet, unless backward has.
  auto giveUp = [&s](const std::exception &error) {
    s.giveUp(error, std::string("backward had updated parameters when this was found: ") + error.what());
    s.requireWhole();
  };
  try {
    s.enterOptimizer();
  } catch (const std::exception &error) { // what backward has left in the queues failed
    giveUp(error);
    throw;
  }
  // Everything that can be refused is refused before the first write.
  for (const OptimizerPlan &plan : s.plans)
    if (plan.ownsParameters && !plan.isInBackward)
      Executor(s.device, *plan.optimizer);
  // Queued work that failed must not reach the parameters.
  double divisor = 1; // of sums, to be means
  std::vector<std::vector<Tensor>> scalars(s.plans.size());
  bool known = std::any_of(s.plans.begin(), s.plans.end(),
                           [](const OptimizerPlan &plan) { return plan.gradNorm || plan.isInBackward; });
  try {
    if (s.residency)
      s.residency->settle();
    divisor = double(s.ranks ? s.ranks->addUp(result) : s.waiting) * s.lossScale();
    if (!s.isOverflowed)
      s.callHooks(hooks, divisor);
    result.gradNorm = s.gradientNorm() / divisor;
    result.isSkipped = s.options.lossScaling && s.options.lossScaling->canFall() &&
                       (s.isOverflowed || !std::isfinite(result.gradNorm));
    if (known && !result.isSkipped && !std::isfinite(result.gradNorm))
      throw Error(ErrorCode::NanLoss, "step " + std::to_string(result.step) + ": the norm of the gradients is " +
                                          std::to_string(result.gradNorm) + " (loss " + std::to_string(result.loss) +
                                          ")" +
                                          (s.isUpdating ? ""
                                                        : "; parameters and optimizer state are those of step " +
                                                              std::to_string(s.step)));
    if (result.isSkipped) {
      if (s.ranks)
        s.ranks->agreeToUpdate(result, rates);
      result.outputs = std::move(s.lastOutputs);
      result.step = s.step;
      s.abort();
      s.options.lossScaling->stepEnded(/*isFinite=*/false);
      return result;
    }
    for (size_t slot = 0; slot < s.table.size(); ++slot)
      if (const Tensor &gradient = s.tape.gradient(GradientTape::ValueId(slot)))
        s.residency ? s.residency->await(gradient) : wait(gradient);
    if (s.options.maxGradNorm > 0)
      result.clip = std::min(1.0, s.options.maxGradNorm / (result.gradNorm + 1e-6));
    // The mean over batches and the scale of the loss ride on the factor that clipping multiplies by.
    for (size_t m = 0; m < s.plans.size(); ++m)
      if (s.plans[m].ownsParameters && !s.plans[m].isInBackward && !s.plans[m].isInForward)
        scalars[m] =
            s.optimizerScalars(*s.plans[m].optimizer, s.plans[m].optimizerInputs, rates, result.clip / divisor);
    if (s.ranks)
      s.ranks->agreeToUpdate(result, rates);
  } catch (const std::exception &error) {
    giveUp(error);
    throw;
  }
  bool writing = s.isUpdating; // an optimizer has run already
  for (size_t m = 0; m < s.plans.size(); ++m) {
    const OptimizerPlan &plan = s.plans[m];
    if (!plan.ownsParameters || plan.isInBackward || plan.isInForward)
      continue;
    bool hasBegun = writing;
    try {
      std::vector<Tensor> tensors = s.optimizerTensors(*plan.optimizer, plan.optimizerInputs, rates,
                                                       result.clip / divisor, GivesGradients::All, scalars[m]);
      hasBegun = true;
      s.runOptimizer(plan, std::move(tensors));
      writing = true;
    } catch (const std::exception &error) {
      bool isTorn = hasBegun && (writing || !refusedAtOnce(error));
      if (isTorn)
        s.noteTorn(result.step,
                   "the optimizer of module \"" + s.modules[m].name() + "\" failed midway (" + error.what() + ")");
      if (s.ranks) // the others have agreed to update, and some wait for what this rank was to send
        s.ranks->group().abandon(isTorn ? tornError(s.torn).what()
                                        : std::string(error.what()) +
                                              "; other ranks have updated parameters: load the last checkpoint");
      s.abort();
      s.requireWhole();
      throw;
    }
  }
  if (s.ranks)
    s.ranks->shareUpdates(result.step);
  s.step = result.step;
  s.deferUpdates(rates, result.clip / divisor);
  if (s.options.lossScaling)
    s.options.lossScaling->stepEnded(/*isFinite=*/true);
  TensorMap inputGradients = std::move(s.inputGradients);
  s.drop();
  s.inputGradients = std::move(inputGradients);
  result.outputs = std::move(s.lastOutputs);
  if (s.precision)
    s.precision->stepEnded(result.loss);
  s.enter(Phase::StepEnd);
  s.endStep();
  return result;
}

} // namespace segue::inline runtime
