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
// - Saved values leave by the watermarks of Activation Stagehand, and come back
//   for their backward. Those that stayed leave when a later call finds no room.
// - Parameters that lie on the host come with the block that reads them.
// - What the caller gets, outputs and gradients, lies in the host's memory, each
//   gradient as soon as its block has ended.
//
// A step begins with the first forward and ends after a call when no token of it
// is alive. Where somebody keeps one, it ends before a forward that follows a backward
// after `manyCalls`, or any after `mostCalls`; what tokens hold stays where it is then.
// In the first step of an order of programs everything leaves; what the budget had to
// spare there stays in the next (LoopWatermarks.h).
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

namespace segue::inline runtime {

class LoopWatermarks;
class MemoryServices;

struct LoopBudgetOptions {
  /// The budget, in bytes of device_dram.
  uint64_t bytes = 0;
  /// Gets warnings; by default stderr does.
  std::function<void(const std::string &)> warn;
};

/// The work of a LoopBudget in all steps that are over, aborted ones included.
struct LoopFigures {
  uint64_t budgetBytes = 0;
  /// The most bytes of device_dram since the budget was put in force, and those in use now.
  uint64_t peakBytes = 0, liveBytes = 0;
  uint64_t spilledBytes = 0, restoredBytes = 0, stalls = 0, steps = 0, abortedSteps = 0;
  /// The time that computing has waited for copies.
  double stallSeconds = 0;
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
  void on(const event::Output &output);
  void on(const event::OfferResults &) {}
  void on(const event::BlockInput &) {} // `value` is brought as any input is
  void on(const auto &other) { tell(other); }

private:
  template <typename Call> auto within(const std::string &what, Call call);
  std::vector<Tensor> evaluate(const std::string &what, const std::function<std::vector<Tensor>()> &call);
  void tell(const Event &event);
  Tensor copied(const Tensor &tensor, Space space) const;
  Tensor handOut(Tensor tensor) const;
  std::vector<Tensor> handOut(std::vector<Tensor> tensors) const;
  void beginStep();
  void endStep();
  void giveUp(bool isOutOfMemory) noexcept;
  void noteRecord();
  bool isHeld() const;
  uint64_t makeRoom(uint64_t wanted);
  uint64_t usedBytes() const;
  uint64_t takePeak();

  DeviceRef device_;
  uint64_t budgetBytes_, budgetBefore_;
  std::unique_ptr<MemoryServices> services_;
  std::unique_ptr<LoopWatermarks> watermarks_;
  std::recursive_mutex mutex_;
  /// The tensors that tokens hold: those of the step, and those of the steps before.
  using Tokens = std::vector<std::weak_ptr<Token::Tensors>>;
  Tokens tokens_, olderTokens_;
  /// The storages of tensors that have left for a later call and not come back.
  std::set<uint64_t> evicted_;
  DeviceMemory::RoomMakerHandle roomMaker_;
  bool inStep_ = false, isEvaluating_ = false, isBackwardLast_ = false;
  uint64_t calls_ = 0;
  LoopFigures figures_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_LOOPBUDGET_H
