//===- StateActor.h - states that leave under pressure ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Carries out what State Stagehand decides, with the verbs of Residency, for the
// gradients and optimizer states of a session without a plan. The session keeps states
// on the host, and a gradient that backward has made gets a home there as well, without
// a copy: the program is given that home, so that the device's bytes are the actor's
// alone and may leave whenever their room is needed. Homes of gradients are kept from
// step to step.
//
// A copy out takes Conductor's token, as a copy ahead of its need does, which is put
// off where there is no token or no memory. What a block needs is next in its queue and
// waits for none.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_STATEACTOR_H
#define SEGUE_LIB_SERVICES_ACTORS_STATEACTOR_H

#include "../../Replay/Recorded.h"
#include "ServiceContext.h"
#include "segue/runtime/Residency/BlockItems.h"
#include "segue/runtime/Services/StateCalls.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <tuple>

namespace segue::inline runtime {

class StateActor final : public EventSink {
public:
  /// Makes the actor. `config` has the watermarks to go by, if any.
  StateActor(ServiceContext &context, const StateStagehandConfig &config, bool checksCopies);
  ~StateActor() override;

  /// Gives these gradients homes when they are made. Called between two steps.
  void hold(std::span<const GradientOutput> gradients);
  Residency &residency() { return residency_; }
  /// Asks Conductor for leave to hold so much page-locked memory as long as this lives.
  bool reservePinned(uint64_t bytes);
  Json record() const { return lastRecord_; }

  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin);
  void on(const event::Submit &submit);
  void on(const event::BlockBegin &begin);
  void on(const event::OfferInput &offer);
  void on(const event::BlockInput &need);
  void on(const event::BlockEnd &end);
  void on(const event::Output &made);
  void on(const event::Accumulate &addition);
  void on(const event::Accumulated &addition);
  void on(const event::Poll &);
  void on(const event::Pressure &pressure);
  void on(const event::StepAbort &);
  void on(const event::EvaluationAbort &) { blocks_.reset(); }

private:
  StateStagehand::Moves tell(const StateEvent &event);
  int64_t used() const { return int64_t(context_.usedBytes()); }
  const std::string &nameItem(const Item &item, const std::string &wanted);
  const std::string *nameOf(Item::Id item) const;
  Item *find(const std::string &id);
  const std::string &know(Item &item, const std::string &wanted, bool isState);
  void holdGradient(Tensor &value, const std::string &id);
  Tensor homeOf(const std::string &id, const Tensor &value);
  void forgetName(Item::Id item);
  void forget(Item &item);
  void forgetGradients();
  void carryOut(const StateStagehand::Moves &moves);
  void leave(const std::string &id);
  void fetchAhead(const std::string &id);
  void noteLeft();
  void writeRecord();

  ServiceContext &context_;
  Recorded<StateStagehand> policy_;
  Residency residency_;
  BlockItems blocks_;
  ServiceId service_{};
  std::vector<uint64_t> reservations_;
  std::optional<JsonlWriter> telemetry_;
  Json lastRecord_;
  bool inStep_ = false, isMakingRoom_ = false;

  /// The policy's names of items, which those of gradients keep from step to step.
  std::map<Item::Id, std::string> names_;
  std::map<std::string, Item::Id> items_;
  /// Names of parameters' gradients, by program and output.
  std::map<std::tuple<const void *, size_t, uint32_t>, std::string> gradients_;
  std::map<std::string, Tensor> gradientHomes_;
  /// The name of the sum that is added to.
  std::string sum_;
  /// Items whose copy to the host the policy waits for.
  std::deque<Item::Id> leaving_;
  /// The program that the policy knows the blocks of.
  std::optional<std::pair<const void *, size_t>> ordered_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_STATEACTOR_H
