//===- LoopBudget.cpp - a budget for loops without a session --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The services are told of a step as a session would tell them: it begins before
// the first phase of a program, and has a forward before each backward, also where
// the forward whose token comes back ran in a step before.
//
// In a step that goes by a plan both services are told of it. The planned ones get each
// tensor that is saved as long as the step is the one planned, and the others from there
// on; what the planned ones took is theirs to bring back in any case.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/LoopBudget.h"
#include "../Tensor/NullHandles.h"
#include "LoopEvents.h"
#include "LoopPlans.h"
#include "LoopWatermarks.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static uint64_t capacityOf(const Device &device, Space space) {
  for (const SpaceInfo &info : device.spaces())
    if (info.space == space)
      return info.capacityBytes;
  return 0;
}

/// Everything leaves at first. The pool of slabs has none and grows to what the first step has
/// taken, up to half of the memory that the device has for it: the rest is for staging.
static Config configFor(const Device &device) {
  Space home = device.homeSpace();
  uint64_t homeBytes = std::min<uint64_t>(capacityOf(device, home), uint64_t(1) << 50);
  Json activation = {{"enabled", true},
                     {"mode", "watermark"},
                     {"telemetry_enabled", false},
                     {"vram_high_watermark_mb", toMiB(LoopWatermarks::everythingLeaves)},
                     {"vram_low_watermark_mb", 0},
                     {"slabs_per_class", 0},
                     {"pinned_pool_max_mb", toMiB(int64_t(homeBytes / 2))},
                     {"unpinned_max_mb", 1e9},
                     {"debug_checksums", home == Space::Disk}};
  Json stagehand = {{"activation_stagehand", std::move(activation)}, {"state_stagehand", {{"mode", "off"}}}};
  return Config::parse(Json{{"memory", {{"stagehand", std::move(stagehand)}}}}.dump(), "(budget of a loop)");
}

static Config plannedConfigFor(const Device &device) {
  Json activation = {{"enabled", true},
                     {"mode", "planned"},
                     {"telemetry_enabled", false},
                     {"debug_checksums", device.homeSpace() == Space::Disk}};
  Json stagehand = {{"activation_stagehand", std::move(activation)}, {"state_stagehand", {{"mode", "off"}}}};
  return Config::parse(Json{{"memory", {{"stagehand", std::move(stagehand)}}}}.dump(), "(plans of a loop)");
}

/// After what is on its way out, kept for reuse, or back ahead of its need.
static constexpr int roomRank = 100;

LoopBudget::LoopBudget(DeviceRef device, LoopBudgetOptions options)
    : device_(std::move(device)), budgetBytes_(options.bytes) {
  uint64_t capacity = capacityOf(*device_, Space::DeviceDram);
  auto refuse = [&](const std::string &why) {
    throw Error(ErrorCode::InvalidArgument,
                "a budget of " + std::to_string(budgetBytes_) + " bytes on device \"" + device_->name() + "\": " + why);
  };
  if (device_->hasUnifiedMemory())
    refuse("its memory is the host's, and nothing could leave; give it memory of its own with a disk below "
           "(spill_dir=\"FOLDER\", or cpu:dram=...,disk=FOLDER)");
  if (!budgetBytes_ || budgetBytes_ > capacity)
    refuse("it has " + std::to_string(capacity) + " bytes; give 1 to as many");
  DeviceMemory &memory = device_->memory();
  services_ = MemoryServices::create(device_, configFor(*device_), {.warn = options.warn});
  watermarks_ = std::make_unique<LoopWatermarks>(budgetBytes_);
  weights_ = std::make_unique<LoopWeights>(device_);
  if (options.isPlanned && device_->twin()) {
    planned_ = MemoryServices::create(device_, plannedConfigFor(*device_), {.warn = std::move(options.warn)});
    plans_ = std::make_unique<LoopPlans>(device_, budgetBytes_, *planned_);
  }
  cap_ = memory.addCap(Space::DeviceDram, budgetBytes_);
  memory.resetPeak();
  roomMaker_ = memory.addRoomMaker("saved values of calls", roomRank, [this](Space space, uint64_t wanted) -> uint64_t {
    return space == Space::DeviceDram ? makeRoom(wanted) : 0;
  });
}

LoopBudget::~LoopBudget() {
  plans_.reset();
  planned_.reset();
  services_.reset();
  giveFreeToSystem(*device_);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

template <typename Call> auto LoopBudget::within(const std::string &what, Call call) {
  std::lock_guard lock(mutex_);
  try {
    auto result = call();
    if (inStep_ && !isHeld())
      endStep();
    return result;
  } catch (const Error &error) {
    giveUp(error.code() == ErrorCode::DeviceOom);
    if (error.code() != ErrorCode::DeviceOom)
      throw;
    throw error.within(what + " does not fit in the budget of " + std::to_string(budgetBytes_) + " bytes");
  } catch (...) {
    giveUp(/*isOutOfMemory=*/false);
    throw;
  }
}

static std::string callOf(const Module &module, std::string_view which) {
  return std::string(which) + " of module \"" + module.name() + "\"";
}

/// Outside of steps as within one, programs run apart: nobody will ask for what they save.
std::vector<Tensor> LoopBudget::evaluate(const std::string &what, const std::function<std::vector<Tensor>()> &call) {
  requireGiven(call, what);
  return within(what, [&] {
    struct Evaluation {
      LoopBudget &budget;
      PhasesApart apart{&budget};
      explicit Evaluation(LoopBudget &budget) : budget(budget) {
        budget.isEvaluating_ = true;
        budget.services_->beginEvaluation();
      }
      ~Evaluation() {
        budget.isEvaluating_ = false;
        budget.services_->endEvaluation();
      }
    } evaluation(*this);
    return handOut(device_, call());
  });
}

std::vector<Tensor> LoopBudget::infer(const Module &module, const TensorMap &values) {
  return evaluate(callOf(module, "a call"), [&] {
    if (plans_ && inStep_)
      plans_->order().addInfer(module, values);
    return module.infer(values, this);
  });
}

std::vector<Tensor> LoopBudget::submit(const Program &program, std::vector<Tensor> inputs) {
  return evaluate("program \"" + program.name() + "\"",
                  [&] {
                    if (plans_ && inStep_)
                      plans_->order().addApart(program, inputs);
                    return segue::submit(device_, program, std::move(inputs), this);
                  });
}

ForwardResult LoopBudget::forward(const Module &module, const TensorMap &values) {
  return within(callOf(module, "forward"), [&] {
    bool isAfterBackward = std::exchange(isBackwardLast_, false);
    if (inStep_ && ++calls_ > (isAfterBackward ? manyCalls : mostCalls))
      endStep();
    chooseStep(module.find("forward"));
    releaseDropped();
    if (plans_)
      plans_->order().addForward(module, values);
    struct Running {
      LoopBudget &budget;
      ~Running() {
        budget.forward_ = nullptr;
        budget.lastingNow_.clear();
      }
    } running{*this};
    forward_ = module.hasBackward() ? &module : nullptr;
    ForwardResult result = module.forward(values, this);
    if (plans_)
      plans_->order().addToken(result.token);
    if (result.token) {
      tokens_.push_back(result.token.tensors());
      if (!lastingNow_.empty())
        lasting_.emplace_back(result.token.tensors(), std::move(lastingNow_));
    }
    result.outputs = handOut(device_, std::move(result.outputs));
    return result;
  });
}

TensorMap LoopBudget::backward(const Module &module, Token token, const TensorMap &outputGradients,
                               const TensorMap *values) {
  return within(callOf(module, "backward"), [&] {
    chooseStep(nullptr);
    releaseDropped();
    ++calls_;
    isBackwardLast_ = true;
    if (plans_)
      plans_->order().addBackward(module, token, outputGradients, values);
    // Whoever keeps a token gets a copy back, and may come again for what no longer is to be computed.
    if (std::shared_ptr<Token::Tensors> held = token.tensors().lock(); held && held.use_count() > 2)
      makeWhole(*held);
    TensorMap gradients = values ? module.backward(std::move(token), outputGradients, *values, this)
                                 : module.backward(std::move(token), outputGradients, this);
    for (auto &[name, gradient] : gradients)
      gradient = handOut(device_, std::move(gradient));
    releaseDropped();
    return gradients;
  });
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

uint64_t LoopBudget::usedBytes() const { return device_->memory().liveBytes(Space::DeviceDram); }

/// Since the last call.
uint64_t LoopBudget::takePeak() {
  DeviceMemory &memory = device_->memory();
  uint64_t peak = memory.peakBytes(Space::DeviceDram);
  figures_.peakBytes = std::max(figures_.peakBytes, peak);
  memory.resetPeak();
  return peak;
}

/// The next call begins a step unless one is under way.
void LoopBudget::chooseStep(const Program *first) {
  if (inStep_ || !plans_)
    return;
  isByPlan_ = false;
  if (first)
    isByPlan_ = plans_->beginStep(loopProgram(*first));
  else
    plans_->beginUnplanned();
}

/// What was kept for the backward of a graph that is gone. (Activation Stagehand does the same with what
/// left by watermarks.)
void LoopBudget::releaseDropped() {
  std::erase_if(lasting_, [](const auto &entry) { return entry.first.expired(); });
  if (isByPlan_)
    planned_->planned()->residency().forgetUnheld();
}

void LoopBudget::enterAll(Phase phase) {
  services_->enter(phase);
  if (isByPlan_)
    planned_->enter(phase);
}

void LoopBudget::beginStep() {
  takePeak();
  // A tensor that was cheap to make again in the last step may be another one in this.
  services_->prepare({});
  enterAll(Phase::StepBegin);
  olderTokens_.insert(olderTokens_.end(), tokens_.begin(), tokens_.end());
  std::erase_if(olderTokens_, [](const auto &tensors) { return tensors.expired(); });
  tokens_.clear();
  if (olderTokens_.empty())
    evicted_.clear();
  watermarks_->beginStep();
  if (isByPlan_)
    watermarks_->depart();
  weights_->comeAhead(isByPlan_ && plans_->comesAhead());
  calls_ = 0;
  inStep_ = true;
}

bool LoopBudget::isHeld() const {
  return std::ranges::any_of(tokens_, [](const auto &tensors) { return !tensors.expired(); });
}

/// Tensors that the watermarks, or a plan, have let stay for steps like those before leave, the oldest
/// call's first; they come back as inputs of its backward.
uint64_t LoopBudget::makeRoom(uint64_t wanted) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) // another thread's call may be looking at them
    return 0;
  uint64_t before = usedBytes(), freed = 0;
  Space away = device_->homeSpace() == Space::Disk ? Space::Disk : Space::Host;
  for (const Tokens *tokens : {&olderTokens_, &tokens_})
    for (const auto &token : *tokens) {
      std::shared_ptr<Token::Tensors> tensors = token.lock();
      for (size_t i = 0; tensors && i < tensors->size() && freed < wanted; ++i) {
        Tensor &tensor = (*tensors)[i];
        if (!tensor || tensor.desc().layout.space != Space::DeviceDram || !tensor.isSoleOwner())
          continue;
        Tensor moved = copiedTo(device_, tensor, away);
        if (isByPlan_)
          planned_->planned()->remakes().onMoved(tensor, moved);
        tensor = std::move(moved);
        evicted_.insert(tensor.storage()->id());
        figures_.spilledBytes += tensor.desc().spanBytes();
        freed = before - std::min(before, usedBytes());
      }
    }
  return freed;
}

/// Computes what a plan has dropped of a token: nobody will ask for it as planned.
void LoopBudget::makeWhole(Token::Tensors &tensors) {
  if (!isByPlan_)
    return;
  PlannedRemakes &remakes = planned_->planned()->remakes();
  Space away = device_->homeSpace() == Space::Disk ? Space::Disk : Space::Host;
  for (Tensor &tensor : tensors) {
    if (!tensor || !remakes.isDropped(tensor))
      continue;
    Tensor made = remakes.make(tensor), there = copiedTo(device_, made, away);
    remakes.onRestore(tensor, there);
    tensor = std::move(there);
  }
}

/// The step is over for the services, and tokens of it may be alive: their values are theirs from here on.
void LoopBudget::settleTokens() {
  if (!isByPlan_)
    return;
  Residency &residency = planned_->planned()->residency();
  residency.settle();
  for (const auto &token : tokens_) {
    std::shared_ptr<Token::Tensors> tensors = token.lock();
    if (!tensors)
      continue;
    makeWhole(*tensors);
    for (Tensor &tensor : *tensors) // those whose way to the host failed
      if (tensor && residency.holdsNewer(tensor))
        tensor = residency.take(*residency.findHome(tensor));
  }
}

void LoopBudget::endStep() {
  settleTokens();
  enterAll(Phase::StepEnd);
  leavePhase();
  weights_->comeAhead(false);
  inStep_ = false;
  ++figures_.steps;
  noteRecord(*services_);
  if (isByPlan_)
    noteRecord(*planned_);
  uint64_t peak = takePeak();
  if (!isByPlan_)
    watermarks_->endStep(peak);
  if (plans_)
    plans_->endStep();
  isByPlan_ = false;
}

void LoopBudget::giveUp(bool isOutOfMemory) noexcept {
  leavePhase();
  weights_->forget();
  weights_->comeAhead(false);
  if (!std::exchange(inStep_, false)) {
    isByPlan_ = false;
    services_->abortEvaluation();
    return;
  }
  try {
    settleTokens();
  } catch (const std::exception &) { // who asks for what is lost gets an error that says so
  }
  services_->abortStep();
  ++figures_.abortedSteps;
  noteRecord(*services_);
  if (isByPlan_) {
    planned_->abortStep();
    noteRecord(*planned_);
  } else {
    watermarks_->abortStep(isOutOfMemory);
  }
  if (plans_)
    plans_->abortStep(isOutOfMemory);
  isByPlan_ = false;
  takePeak();
}

void LoopBudget::noteRecord(const MemoryServices &services) {
  Json record = services.activationRecord();
  auto number = [&](const char *key) { return record.contains(key) ? record[key].get<double>() : 0; };
  figures_.spilledBytes += uint64_t(number("spill_bytes"));
  figures_.restoredBytes += uint64_t(number("restore_bytes"));
  figures_.stalls += uint64_t(number("stall_count"));
  figures_.stallSeconds += number("stall_time_ms") * 1e-3;
  figures_.computedAgain += uint64_t(number("activations_recomputed"));
}

LoopFigures LoopBudget::figures() {
  std::lock_guard lock(mutex_);
  LoopFigures figures = figures_;
  figures.budgetBytes = budgetBytes_;
  figures.peakBytes = std::max(figures.peakBytes, device_->memory().peakBytes(Space::DeviceDram));
  figures.liveBytes = usedBytes();
  if (plans_) {
    const LoopPlans::Figures &plans = plans_->figures();
    figures.plans = plans.plans;
    figures.plannedSteps = plans.kept;
    figures.departedSteps = plans.departed;
    figures.planningSeconds = plans.planningSeconds;
    figures.certifiedBytes = plans.certifiedBytes;
    figures.plannedSeconds = plans.stepSeconds;
    figures.whyNoPlan = plans.whyNot;
  }
  return figures;
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

void LoopBudget::receive(const Event &event) { deliver(*this, event); }

void LoopBudget::tell(const Event &event) {
  if (isEvaluating_)
    return;
  services_->receive(event);
  if (isByPlan_)
    planned_->receive(event);
}

void LoopBudget::on(const event::PhaseBegin &begin) {
  bool isFirst = !inStep_;
  if (isFirst)
    beginStep();
  if (isFirst && begin.phase == Phase::Backward)
    enterAll(Phase::Forward);
  enterAll(begin.phase);
}

void LoopBudget::on(const event::Submit &submit) {
  weights_->on(submit);
  if (inStep_)
    if (std::optional<uint64_t> high = watermarks_->onSubmit(loopProgram(submit.program)))
      services_->setWatermarks(*high, *high - 1);
  if (!isByPlan_ || !forward_ || !plans_->isRemaking())
    return tell(submit);
  lastingNow_ = lastingInputs(*forward_, submit.inputs);
  services_->receive(submit);
  planned_->receive(event::Submit{submit.program, lastingNow_});
}

void LoopBudget::on(const event::Save &save) {
  if (!inStep_ || isEvaluating_)
    return;
  if (isByPlan_) {
    planned_->receive(save);
    if (planned_->planned()->isPlanned())
      return;
  }
  watermarks_->onSave(usedBytes(), save.saved.desc().spanBytes());
  services_->receive(save);
}

void LoopBudget::on(const event::Restore &restore) {
  if (inStep_ && !isEvaluating_)
    watermarks_->onRestore(usedBytes());
  if (evicted_.erase(restore.saved.storage()->id()))
    figures_.restoredBytes += restore.saved.desc().spanBytes();
  if (isEvaluating_)
    return;
  std::shared_ptr<Storage> given = restore.saved.storage();
  if (isByPlan_)
    planned_->receive(restore);
  if (restore.saved.storage() == given)
    services_->receive(restore);
}

void LoopBudget::on(const event::OfferInput &offer) { weights_->on(offer); }
void LoopBudget::on(const event::BlockInput &need) { weights_->on(need); }

void LoopBudget::on(const event::BlockBegin &begin) {
  weights_->on(begin);
  tell(begin);
}

void LoopBudget::on(const event::BlockEnd &end) {
  weights_->on(end);
  tell(end);
}

void LoopBudget::on(const event::Output &output) {
  if (output.program.outputs()[output.output].role == Role::Gradient)
    output.value = handOut(device_, output.value);
}

} // namespace segue::inline runtime
