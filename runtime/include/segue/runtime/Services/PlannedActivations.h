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
// one planned. Nothing here waits: the compute queue waits on the copies' fences.
//
//   PlannedActivations activations(device, planner.profile(), planner.plan(budget));
//   Session session(device, modules, {.events = &activations});
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_PLANNEDACTIVATIONS_H
#define SEGUE_RUNTIME_SERVICES_PLANNEDACTIVATIONS_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/PlanFollower.h"
#include <map>
#include <memory>
#include <vector>

namespace segue::inline runtime {

class PlannedActivations final : public EventSink {
public:
  PlannedActivations(DeviceRef device, const StepProfile &profile, const ResidencyPlan &plan);

  void onPhase(Phase phase) override;
  void onBlockBegin(const Program &program, std::string_view block) override;
  void onBlockEnd(const Program &program) override;
  void onSave(const Program &program, uint32_t output, Tensor &saved) override;
  void onRestore(const Program &program, uint32_t input, Tensor &saved) override;

  /// A step was aborted: what is away is nobody's any more.
  void forget();

  const PlanFollower &follower() const { return follower_; }
  /// Since it was made.
  struct Counts {
    uint64_t left = 0, leftBytes = 0;
    /// Fetched at the planned event, and only when needed.
    uint64_t fetchedAhead = 0, fetchedLate = 0;
    /// In pageable memory, as there was no pinned memory left.
    uint64_t unpinned = 0;
  };
  const Counts &counts() const { return counts_; }
  /// Gaps whose tensor left although somebody else holds its bytes on the
  /// device, so that leaving freed nothing. Known once they come back.
  const std::vector<uint32_t> &heldElsewhere() const { return heldElsewhere_; }

private:
  /// A tensor that is away, or on its way back.
  struct Away {
    Tensor host, device;
    std::shared_ptr<const TensorDesc> there;
    std::weak_ptr<Storage> left;
  };

  void follow(StepEvent::Kind kind, std::string_view label);
  Tensor toHost(const Tensor &saved);
  Tensor fetch(uint32_t gap, Away &away);

  DeviceRef device_;
  PlanFollower follower_;
  PlanFollower::Decisions now_;
  /// By gap; and the gap by the id of the storage on the host.
  std::map<uint32_t, Away> away_;
  std::map<uint64_t, uint32_t> gapOfHost_;
  std::vector<uint32_t> heldElsewhere_;
  Counts counts_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_PLANNEDACTIVATIONS_H
