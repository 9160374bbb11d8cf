//===- LoopSteps.h - steps of a loop on a twin ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Makes the calls of a LoopOrder on a device of `sim:virtual`, step after step, and tells
// of them what LoopBudget tells of the calls themselves: the same events, and the same
// memory taken and given back between them.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_LOOPSTEPS_H
#define SEGUE_LIB_SESSION_LOOPSTEPS_H

#include "LoopEvents.h"
#include "LoopOrder.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Session/StepTwin.h"

namespace segue::inline runtime {

class LoopSteps final : public TwinSteps {
public:
  /// `order` has no whyNot(), and is copied. Weights come `ahead` of their block, or with it.
  LoopSteps(const DeviceRef &device, EventSink &events, const LoopOrder &order, bool ahead);

  void step() override;

private:
  /// Tells the target what LoopBudget tells its services.
  class Events final : public ForwardEvents {
  public:
    Events(const DeviceRef &device, bool ahead) : device_(device), weights_(device) { weights_.comeAhead(ahead); }

    /// The module whose forward runs; null: none does.
    const Module *forward = nullptr;
    /// What runs is no part of the step.
    bool isApart = false;

    void endStep();

    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::PhaseBegin &begin);
    void on(const event::Submit &submit);
    void on(const event::OfferInput &offer) { weights_.on(offer); }
    void on(const event::BlockBegin &begin);
    void on(const event::BlockInput &need) { weights_.on(need); }
    void on(const event::BlockEnd &end);
    void on(const event::Output &output);
    void on(const event::OfferResults &) {}
    void on(const auto &other) { tell(other); }

  private:
    void tell(const Event &event) {
      if (!isApart)
        ForwardEvents::forward(event);
    }

    DeviceRef device_;
    LoopWeights weights_;
    bool inStep_ = false;
  };

  TensorMap tensorsOf(const LoopOrder::Named &names) const;
  void makeCall(const LoopOrder::Call &call, const Module *module, std::map<size_t, Token> &tokens);

  DeviceRef device_;
  LoopOrder order_;
  /// By call: the module on the twin; null for what is submitted apart.
  std::vector<const Module *> modules_;
  std::map<std::pair<LoopProgram, std::string>, Module> known_;
  std::vector<Tensor> tensors_;
  Events events_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_LOOPSTEPS_H
