//===- PlannedActivations.h - saved tensors leave by a plan -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `mode: planned` of Activation Stagehand: an EventSink that does what a
// ResidencyPlan says. A saved tensor that is to leave goes to the host in the
// d2h queue and gives its bytes back in the order of submits; it is fetched at
// the event that the plan names, or when it is needed if the step is not the
// one planned. Parameters, gradients and optimizer states do the same between the
// blocks that touch them, if their home is the host. The compute queue waits on
// the copies' fences; the host waits for room that a copy home still holds, and in
// an optimizer for what it is brought (see ResidentTensors).
//
//   PlannedActivations activations(device, planner.profile(), planner.plan(budget));
//   Session session(device, modules, {.events = &activations});
//
// Between steps, and in a step that is not the one planned, what comes by block
// leaves with it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_PLANNEDACTIVATIONS_H
#define SEGUE_RUNTIME_SERVICES_PLANNEDACTIVATIONS_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/PlanFollower.h"
#include "segue/runtime/Plan/ResidentTensors.h"
#include "segue/runtime/Program/BlockUses.h"
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace segue::inline runtime {

class PlannedActivations final : public EventSink {
public:
  PlannedActivations(DeviceRef device, const StepProfile &profile, const ResidencyPlan &plan);
  /// Without a plan everything stays on the device, once there.
  explicit PlannedActivations(DeviceRef device);

  /// The next step goes by another plan. What lives on the host leaves the device
  /// until then.
  void follow(const StepProfile &profile, const ResidencyPlan &plan);
  /// The next step goes by none.
  void stayAll();

  /// Saved tensors that leave get a checksum, compared before their bytes are used
  /// again: ChecksumMismatch.
  void checkCopies(bool check) { checksCopies_ = check; }

  void onPhase(Phase phase) override;
  void onBlockBegin(const Program &program, std::string_view block) override;
  void onBlockEnd(const Program &program) override;
  void onSave(const Program &program, uint32_t output, Tensor &saved) override;
  void onRestore(const Program &program, uint32_t input, Tensor &saved) override;
  bool defersInput(const Program &program, uint32_t input, const Tensor &value) override;
  void onBlockInput(const Program &program, uint32_t input, Tensor &value) override;
  void onOutput(const Program &program, uint32_t output, Tensor &value) override;
  void onAccumulate(Tensor &sum, Tensor &gradient) override;
  void onAccumulated(Tensor &sum) override;

  /// A step was aborted: what is away is nobody's any more.
  void forget();

  /// What lives on the host and comes by block.
  ResidentTensors &residents() { return residents_; }
  /// Somebody else brings parameters; gradients and states of optimizers come and
  /// go by the plan as before.
  void leaveParametersToOthers() { bringsParameters_ = false; }

  /// True in a step that has gone by the plan so far.
  bool isPlanned() const { return follower_ && inStep_ && !follower_->hasDiverged(); }
  /// Since it was made.
  struct Counts {
    uint64_t left = 0, leftBytes = 0;
    /// Fetched at the planned event, and only when needed.
    uint64_t fetchedAhead = 0, fetchedLate = 0;
    /// In pageable memory, as there was no pinned memory left.
    uint64_t unpinned = 0;
  };
  /// Of saved tensors.
  const Counts &counts() const { return counts_; }
  /// Gaps whose tensor left although somebody else holds its bytes on the
  /// device, so that leaving freed nothing. Known once they come back.
  const std::vector<uint32_t> &heldElsewhere() const { return heldElsewhere_; }

private:
  /// A tensor that is away, or on its way back.
  struct Away {
    uint32_t gap = 0;
    Tensor host, device;
    std::shared_ptr<const TensorDesc> there;
    std::weak_ptr<Storage> left;
    /// Null unless copies are checked.
    std::shared_ptr<TransferChecksum> checksum;
    /// In whose name it comes back.
    OwnerId owner = 0;
  };

  /// What the plan says of residents.
  struct ResidentPlan {
    /// Of each gap; none for a saved tensor.
    std::vector<uint32_t> residentOf;
    /// By event and index, as in ResidentUse.
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> uses;
    /// The home of each that has been seen, and whether it dies with the step.
    std::vector<std::optional<ResidentTensors::Id>> homes;
    std::vector<bool> isGradient;
  };

  /// The next event; and what the plan has come back at it, after what leaves.
  /// Where the executor still holds what leaves, it is fetched when the event
  /// after begins.
  void advance(StepEvent::Kind kind, std::string_view label);
  void fetchReturns();
  void next(StepEvent::Kind kind, std::string_view label) {
    advance(kind, label);
    fetchReturns();
  }
  Tensor fetch(Away &away);
  std::optional<uint32_t> residentAt(uint32_t index) const;
  /// Whether it lives on the host and comes by the plan.
  bool brings(const Program &program, uint32_t input, const Tensor &value) const;
  /// If the plan wants what the last event made to leave.
  void sendHome(Tensor &value);
  /// Of the gaps that begin now, whether one is that of the resident.
  bool leavesNow(uint32_t resident) const;

  DeviceRef device_;
  std::optional<PlanFollower> follower_;
  ResidentPlan plan_;
  ResidentTensors residents_;
  BlockCursor cursor_;
  bool inStep_ = false, isOptimizing_ = false, bringsParameters_ = true, checksCopies_ = false, fetchesLater_ = false;
  /// Of the program that runs, by input.
  std::map<uint32_t, ResidentTensors::Id> brought_;
  PlanFollower::Decisions now_;
  /// By the id of the storage on the host; and that by gap, of what has come back too.
  std::map<uint64_t, Away> away_;
  std::map<uint32_t, uint64_t> hostOfGap_;
  std::vector<uint32_t> heldElsewhere_;
  Counts counts_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_PLANNEDACTIVATIONS_H
