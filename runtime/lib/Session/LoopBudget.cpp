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
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/LoopBudget.h"
#include "LoopWatermarks.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Services/MemoryServices.h"
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
  budgetBefore_ = memory.budget(Space::DeviceDram);
  services_ = MemoryServices::create(device_, configFor(*device_), {.warn = std::move(options.warn)});
  watermarks_ = std::make_unique<LoopWatermarks>(budgetBytes_);
  memory.setBudget(Space::DeviceDram, budgetBytes_);
  memory.resetPeak();
  roomMaker_ = memory.addRoomMaker("saved values of calls", roomRank, [this](Space space, uint64_t wanted) -> uint64_t {
    return space == Space::DeviceDram ? makeRoom(wanted) : 0;
  });
}

LoopBudget::~LoopBudget() {
  services_.reset();
  device_->memory().setBudget(Space::DeviceDram, budgetBefore_);
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
    return handOut(call());
  });
}

std::vector<Tensor> LoopBudget::infer(const Module &module, const TensorMap &values) {
  return evaluate(callOf(module, "a call"), [&] { return module.infer(values, this); });
}

std::vector<Tensor> LoopBudget::submit(const Program &program, std::vector<Tensor> inputs) {
  return evaluate("program \"" + program.name() + "\"",
                  [&] { return segue::submit(device_, program, std::move(inputs), this); });
}

ForwardResult LoopBudget::forward(const Module &module, const TensorMap &values) {
  return within(callOf(module, "forward"), [&] {
    bool isAfterBackward = std::exchange(isBackwardLast_, false);
    if (inStep_ && ++calls_ > (isAfterBackward ? manyCalls : mostCalls))
      endStep();
    ForwardResult result = module.forward(values, this);
    if (result.token)
      tokens_.push_back(result.token.tensors());
    result.outputs = handOut(std::move(result.outputs));
    return result;
  });
}

TensorMap LoopBudget::backward(const Module &module, Token token, const TensorMap &outputGradients,
                               const TensorMap *values) {
  return within(callOf(module, "backward"), [&] {
    ++calls_;
    isBackwardLast_ = true;
    TensorMap gradients = values ? module.backward(std::move(token), outputGradients, *values, this)
                                 : module.backward(std::move(token), outputGradients, this);
    for (auto &[name, gradient] : gradients)
      gradient = handOut(std::move(gradient));
    return gradients;
  });
}

/// A copy in `space`, which queued work fills.
Tensor LoopBudget::copied(const Tensor &tensor, Space space) const {
  Layout layout{.space = space, .alignment = uint32_t(byteSize(tensor.element()))};
  auto desc = std::make_shared<const TensorDesc>(tensor.shape(), tensor.element(), std::move(layout));
  return device_->transfer().toLayout(device_, tensor, std::move(desc));
}

Tensor LoopBudget::handOut(Tensor tensor) const {
  return !tensor || isHostSpace(tensor.desc().layout.space) ? tensor : copied(tensor, Space::Host);
}

std::vector<Tensor> LoopBudget::handOut(std::vector<Tensor> tensors) const {
  for (Tensor &tensor : tensors)
    tensor = handOut(std::move(tensor));
  return tensors;
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

void LoopBudget::beginStep() {
  takePeak();
  // A tensor that was cheap to make again in the last step may be another one in this.
  services_->prepare({});
  services_->enter(Phase::StepBegin);
  olderTokens_.insert(olderTokens_.end(), tokens_.begin(), tokens_.end());
  std::erase_if(olderTokens_, [](const auto &tensors) { return tensors.expired(); });
  tokens_.clear();
  if (olderTokens_.empty())
    evicted_.clear();
  watermarks_->beginStep();
  calls_ = 0;
  inStep_ = true;
}

bool LoopBudget::isHeld() const {
  return std::ranges::any_of(tokens_, [](const auto &tensors) { return !tensors.expired(); });
}

/// Tensors that the watermarks have let stay for steps like those before leave, the oldest call's
/// first; they come back as inputs of its backward.
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
        tensor = copied(tensor, away);
        evicted_.insert(tensor.storage()->id());
        figures_.spilledBytes += tensor.desc().spanBytes();
        freed = before - std::min(before, usedBytes());
      }
    }
  return freed;
}

void LoopBudget::endStep() {
  services_->enter(Phase::StepEnd);
  leavePhase();
  inStep_ = false;
  ++figures_.steps;
  noteRecord();
  watermarks_->endStep(takePeak());
}

void LoopBudget::giveUp(bool isOutOfMemory) noexcept {
  leavePhase();
  if (!std::exchange(inStep_, false)) {
    services_->abortEvaluation();
    return;
  }
  services_->abortStep();
  watermarks_->abortStep(isOutOfMemory);
  ++figures_.abortedSteps;
  noteRecord();
  takePeak();
}

void LoopBudget::noteRecord() {
  Json record = services_->activationRecord();
  auto number = [&](const char *key) { return record.contains(key) ? record[key].get<double>() : 0; };
  figures_.spilledBytes += uint64_t(number("spill_bytes"));
  figures_.restoredBytes += uint64_t(number("restore_bytes"));
  figures_.stalls += uint64_t(number("stall_count"));
  figures_.stallSeconds += number("stall_time_ms") * 1e-3;
}

LoopFigures LoopBudget::figures() {
  std::lock_guard lock(mutex_);
  LoopFigures figures = figures_;
  figures.budgetBytes = budgetBytes_;
  figures.peakBytes = std::max(figures.peakBytes, device_->memory().peakBytes(Space::DeviceDram));
  figures.liveBytes = usedBytes();
  return figures;
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

void LoopBudget::receive(const Event &event) { deliver(*this, event); }

void LoopBudget::tell(const Event &event) {
  if (!isEvaluating_)
    services_->receive(event);
}

void LoopBudget::on(const event::PhaseBegin &begin) {
  bool isFirst = !inStep_;
  if (isFirst)
    beginStep();
  if (isFirst && begin.phase == Phase::Backward)
    services_->enter(Phase::Forward);
  services_->enter(begin.phase);
}

void LoopBudget::on(const event::Submit &submit) {
  if (inStep_)
    if (std::optional<uint64_t> high =
            watermarks_->onSubmit({submit.program.image().get(), submit.program.interfaceHash()}))
      services_->setWatermarks(*high, *high - 1);
  tell(submit);
}

void LoopBudget::on(const event::Save &save) {
  if (inStep_ && !isEvaluating_)
    watermarks_->onSave(usedBytes(), save.saved.desc().spanBytes());
  tell(save);
}

void LoopBudget::on(const event::Restore &restore) {
  if (inStep_ && !isEvaluating_)
    watermarks_->onRestore(usedBytes());
  if (evicted_.erase(restore.saved.storage()->id()))
    figures_.restoredBytes += restore.saved.desc().spanBytes();
  tell(restore);
}

/// Weights that PyTorch owns lie on the host: they come for their block, and no copy
/// of one outlives it.
void LoopBudget::on(const event::OfferInput &offer) {
  Role role = offer.program.inputs()[offer.input].role;
  offer.isDeferred |= (role == Role::Parameter || role == Role::Frozen) && isHostSpace(offer.value.desc().layout.space);
}

void LoopBudget::on(const event::Output &output) {
  if (output.program.outputs()[output.output].role == Role::Gradient)
    output.value = handOut(output.value);
}

} // namespace segue::inline runtime
