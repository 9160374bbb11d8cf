//===- LoopBudget.h - a budget for loops without a session ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Programs that PyTorch calls, in an order that nobody has announced, share the
// memory of a device within a budget: forwards and backwards of any modules go
// through one LoopBudget.
//
//   LoopBudget budget(device, {.bytes = 6ull << 30});
//   ForwardResult result = budget.forward(module, values);
//   TensorMap gradients = budget.backward(module, std::move(result.token), {{"y", dy}});
//
// - Saved values leave and come back for their backward, or are computed again: by a plan
//   where the order of calls is known, else by the watermarks of Activation Stagehand. Those
//   that stayed leave when a later call finds no room.
// - Parameters that lie on the host come with the block that reads them, or by a plan while
//   the block before computes.
// - What the caller gets, outputs and gradients, lies in the host's memory, each
//   gradient as soon as its block has ended.
//
// A step begins with the first forward and ends after a call when no token of it
// is alive. Where somebody keeps one, it ends before a forward that follows a backward
// after `manyCalls`, or any after `mostCalls`; what tokens hold stays where it is then.
// In the first step of an order of calls everything leaves. The next is planned on a
// twin, which makes the same calls (LoopPlans.h): a step that departs from its plan has all that it
// saves from there on leave, and the one after it is planned anew. Where no plan can be made,
// what the budget had to spare stays from the third step on (LoopWatermarks.h).
//
// One device has one of these, and nobody else brings MemoryServices to it. Any
// thread may call; a second one waits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_LOOPBUDGET_H
#define SEGUE_RUNTIME_SESSION_LOOPBUDGET_H

#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Program/Module.h"
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace segue::inline runtime {

class LoopPlans;
class LoopWatermarks;
class LoopWeights;
class MemoryServices;

struct LoopBudgetOptions {
  /// The budget, in bytes of device_dram.
  uint64_t bytes = 0;
  /// False: watermarks alone.
  bool isPlanned = true;
  /// Gets warnings; by default stderr does.
  std::function<void(const std::string &)> warn;
};

/// The work of a LoopBudget in all steps that are over, aborted ones included.
struct LoopFigures {
  uint64_t budgetBytes = 0;
  /// The most bytes of device_dram since the budget was put in force, and those in use now.
  uint64_t peakBytes = 0, liveBytes = 0;
  uint64_t spilledBytes = 0, restoredBytes = 0, stalls = 0, steps = 0, abortedSteps = 0;
  /// The time that computing has waited for copies of saved values.
  double stallSeconds = 0;
  /// Plans that were made, and the time that making them took; steps that kept to their plan to the end, and those that
  /// departed from it; saved values that a plan had computed again.
  uint64_t plans = 0, plannedSteps = 0, departedSteps = 0, computedAgain = 0;
  double planningSeconds = 0;
  /// Of the last plan: the most bytes of device_dram that its step was seen to take on the twin, and its seconds there.
  uint64_t certifiedBytes = 0;
  double plannedSeconds = 0;
  /// Why the last step of an order that is known had no plan; empty where it had one.
  std::string whyNoPlan;
};

class LoopBudget final : public EventSink {
public:
  static constexpr uint64_t manyCalls = 64, mostCalls = 4096;

  /// Puts the budget in force. Throws InvalidArgument for a budget of 0 bytes or above the
  /// device's capacity, and on a device whose memory is the host's, where nothing could leave.
  LoopBudget(DeviceRef device, LoopBudgetOptions options);
  /// Puts the budget that was there before in force again. Tokens that are alive keep what they hold.
  ~LoopBudget() override;

  /// Make the calls of Module, within the budget. A call that fails gives up the step:
  /// other tokens keep what they hold. DeviceOom names the module.
  std::vector<Tensor> infer(const Module &module, const TensorMap &values);
  ForwardResult forward(const Module &module, const TensorMap &values);
  /// Runs backward; `values` may be null: see Module.
  TensorMap backward(const Module &module, Token token, const TensorMap &outputGradients, const TensorMap *values);
  /// Runs a program whose saved values are the caller's own.
  std::vector<Tensor> submit(const Program &program, std::vector<Tensor> inputs);

  LoopFigures figures();

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::Submit &submit);
  void on(const event::Save &save);
  void on(const event::Restore &restore);
  void on(const event::OfferInput &offer);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockInput &need);
  void on(const event::BlockEnd &end);
  void on(const event::Output &output);
  void on(const event::OfferResults &) {}
  void on(const auto &other) { tell(other); }

private:
  template <typename Call> auto within(const std::string &what, Call call);
  std::vector<Tensor> evaluate(const std::string &what, const std::function<std::vector<Tensor>()> &call);
  void tell(const Event &event);
  void enterAll(Phase phase);
  void chooseStep(const Program *first);
  void releaseDropped();
  void beginStep();
  void endStep();
  void giveUp(bool isOutOfMemory) noexcept;
  void noteRecord(const MemoryServices &services);
  bool isHeld() const;
  void makeWhole(Token::Tensors &tensors);
  void settleTokens();
  uint64_t makeRoom(uint64_t wanted);
  uint64_t usedBytes() const;
  uint64_t takePeak();

  DeviceRef device_;
  uint64_t budgetBytes_;
  DeviceMemory::CapHandle cap_;
  /// By watermarks, and by plans, which are null where there are to be none.
  std::unique_ptr<MemoryServices> services_, planned_;
  std::unique_ptr<LoopWatermarks> watermarks_;
  std::unique_ptr<LoopPlans> plans_;
  std::unique_ptr<LoopWeights> weights_;
  std::recursive_mutex mutex_;
  /// The tensors that tokens hold: those of the step, and those of the steps before.
  using Tokens = std::vector<std::weak_ptr<Token::Tensors>>;
  Tokens tokens_, olderTokens_;
  /// The storages of tensors that have left for a later call and not come back.
  std::set<uint64_t> evicted_;
  /// What saved values are to be computed again from, as long as a token of them is alive.
  std::vector<std::pair<std::weak_ptr<Token::Tensors>, std::vector<Tensor>>> lasting_;
  std::vector<Tensor> lastingNow_;
  /// The module whose forward runs, or null.
  const Module *forward_ = nullptr;
  DeviceMemory::RoomMakerHandle roomMaker_;
  bool inStep_ = false, isByPlan_ = false, isEvaluating_ = false, isBackwardLast_ = false;
  uint64_t calls_ = 0;
  LoopFigures figures_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_LOOPBUDGET_H
