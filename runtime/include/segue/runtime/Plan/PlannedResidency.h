//===- PlannedResidency.h - items leave and return by a plan ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `mode: planned` of Activation Stagehand: an EventSink that does what a
// ResidencyPlan says, with the verbs of Residency. A saved tensor that is to leave
// does, and is fetched at the event that the plan names, or when it is needed if the
// step is not the one planned. One that is to be made again is dropped, and computed
// where it is needed (PlannedRemakes). Parameters, gradients and optimizer states do the same
// between the blocks that touch them, if their home is the host. The compute queue
// waits on the copies' fences; the host waits for room that a copy out still holds,
// and in an optimizer for what it is brought.
//
//   PlannedResidency planned(device, planner.profile(), planner.plan(budget));
//   Session session(device, modules, {.events = &planned});
//
// Between steps, and in a step that is not the one planned, what comes by block
// leaves with it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_PLANNEDRESIDENCY_H
#define SEGUE_RUNTIME_PLAN_PLANNEDRESIDENCY_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Plan/PlanFollower.h"
#include "segue/runtime/Plan/PlannedRemakes.h"
#include "segue/runtime/Residency/BlockItems.h"
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace segue::inline runtime {

class EventLog;
class LoggedPlan;
template <typename Policy> class Recorded;

class PlannedResidency final : public EventSink {
public:
  PlannedResidency(DeviceRef device, const StepProfile &profile, const ResidencyPlan &plan);
  /// Begins without a plan: everything that has come to the device stays there.
  explicit PlannedResidency(DeviceRef device);
  ~PlannedResidency() override;

  /// A function that opens the log of a plan, whose head has the plan.
  using OpenLog = std::function<std::shared_ptr<EventLog>(Json plan)>;
  /// Writes what it is told and what it says into a log, from the next plan on; the log
  /// is opened with the first.
  void record(OpenLog openLog) { openLog_ = std::move(openLog); }

  /// Makes the next step go by another plan. What lives on the host leaves the device until
  /// then.
  void follow(const StepProfile &profile, const ResidencyPlan &plan);
  /// Makes the next step the plan's first once more, as it was certified: all that lives on
  /// the host leaves the device, and comes when it is first needed. Blocks for copies.
  void beginAgain();
  /// Makes the next step go by no plan.
  void stayAll();
  /// Says that the plan's blocks lie where the device's address plan of this number has them; 0: anywhere. Once the
  /// device follows another one, all that lives on the host leaves between steps when somebody lacks memory.
  void setAddressPlan(uint64_t number);
  /// Returns false once the device follows other addresses, or none, as another session has planned since.
  bool hasItsAddresses() const { return device_->memory().addressPlan() == addressPlan_; }

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::Submit &submit);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockEnd &end);
  void on(const event::Save &save);
  void on(const event::Restore &restore);
  void on(const event::OfferInput &offer);
  void on(const event::BlockInput &need);
  void on(const event::Output &made);
  void on(const event::Accumulate &addition);
  void on(const event::Accumulated &addition);

  /// Forgets a step that was aborted: its tensors that are away belong to nobody any more.
  void forget();

  /// Returns the table of everything that may be away.
  Residency &residency() { return residency_; }
  /// Makes `lender` bring parameters and lend them to what is computed again; gradients and
  /// states of optimizers come and go by the plan as before. `lender` must outlive this.
  void leaveParametersTo(WeightLender &lender) {
    blocks_.bringParameters(false);
    remakes_.borrowFrom(lender);
  }
  /// Returns the object that makes saved tensors again. It knows those of steps whose plan
  /// makes some again, and of all steps once watchSaves was asked for.
  PlannedRemakes &remakes() { return remakes_; }
  void watchSaves(bool watch) { watchesSaves_ = watch; }

  /// Returns true in a step that has gone by the plan so far.
  bool isPlanned() const;
  /// True if the last step has gone another way than its plan, at its end or before.
  bool hasDeparted() const;
  /// Since it was made.
  struct Counts {
    uint64_t left = 0, leftBytes = 0;
    /// Tensors that were fetched at the planned event, and those fetched only when they were needed.
    uint64_t fetchedAhead = 0, fetchedLate = 0;
    /// Tensors that were needed while they left: they stayed, and did not cross the link again.
    uint64_t rescued = 0;
    /// Tensors that left to pageable memory, since there was no pinned memory left.
    uint64_t unpinned = 0;
    /// Tensors that were dropped, and those made again when they were needed.
    uint64_t dropped = 0, remade = 0;
  };
  /// Returns counts of saved tensors alone.
  const Counts &counts() const { return counts_; }
  /// Returns the gaps whose tensor left although somebody else holds its bytes on the
  /// device, so that leaving freed nothing. A gap is known once its tensor comes back.
  const std::vector<uint32_t> &heldElsewhere() const { return heldElsewhere_; }

private:
  /// A saved tensor that has left.
  struct Away {
    uint32_t gap = 0;
    Item::Id item = 0;
    /// The storage on the device that it left.
    std::weak_ptr<Storage> left;
  };

  /// Holds what the plan says of residents.
  struct ResidentPlan {
    /// The resident of each gap; none for a saved tensor.
    std::vector<uint32_t> residentOf;
    /// The residents by the event and the index of their ResidentUse.
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> uses;
    /// The item of each resident that has been seen, and whether it dies with the step.
    std::vector<std::optional<Item::Id>> items;
    std::vector<bool> isGradient;
    /// The name of each resident in programs; empty for a sum of gradients.
    std::vector<std::string> names;
    bool remakes = false;
  };

  /// Goes on to the next event, and does what the plan has leave and come back at it, in
  /// this order. If the executor still holds what leaves, what comes back is fetched when
  /// the event after begins.
  void advance(StepEvent::Kind kind, std::string_view label);
  void fetchReturns();
  void next(StepEvent::Kind kind, std::string_view label) {
    advance(kind, label);
    fetchReturns();
  }
  const PlanFollower &follower() const;
  uint64_t makeRoom(uint64_t wanted);
  void noteHeldElsewhere(const Away &away);
  bool knowsSaves() const { return inStep_ && (plan_.remakes || watchesSaves_); }
  Item *residentItem(uint32_t resident);
  std::optional<uint32_t> residentAt(uint32_t index) const;
  /// Lets `value`, which the last event made, leave if the plan wants that.
  void sendHome(Tensor &value);
  /// Returns true if a gap of the resident begins now.
  bool leavesNow(uint32_t resident) const;

  DeviceRef device_;
  OpenLog openLog_;
  std::shared_ptr<EventLog> log_;
  std::unique_ptr<Recorded<LoggedPlan>> follower_;
  ResidentPlan plan_;
  Residency residency_;
  PlannedRemakes remakes_;
  DeviceMemory::RoomMakerHandle roomMaker_;
  BlockItems blocks_;
  bool inStep_ = false, fetchesLater_ = false, watchesSaves_ = false;
  uint64_t addressPlan_ = 0;
  PlanFollower::Decisions now_;
  /// The tensors that are away, by their item; and the items by gap, also of those that have come back.
  std::map<Item::Id, Away> away_;
  std::map<uint32_t, Item::Id> itemOfGap_;
  std::vector<uint32_t> heldElsewhere_;
  Counts counts_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_PLANNEDRESIDENCY_H
