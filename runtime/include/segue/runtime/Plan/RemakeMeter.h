//===- RemakeMeter.h - what computing saved tensors again takes -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An EventSink that goes through the step of a StepProfile once more, on the device
// that it was recorded on, and makes each saved tensor again where backward needs it:
// that is what a plan will do, and so its time and its memory are those of the plan.
// Of the profile, gaps get their remakes.
//
//   RemakeMeter meter(*device, planned.remakes(), profile);
//   meter.target = &planned;
//   session.step(batch, lr);
//   meter.finish();
//
// Left out are programs that the link beats by far, and those that leave something on
// the device when their outputs are gone, as then no plan would know where it lies.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_REMAKEMETER_H
#define SEGUE_RUNTIME_PLAN_REMAKEMETER_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/PlannedRemakes.h"
#include "segue/runtime/Plan/StepProfile.h"
#include "segue/runtime/Program/ForwardEvents.h"

namespace segue::inline runtime {

class RemakeMeter final : public ForwardEvents {
public:
  /// `profile`: of such a step; outlives the meter.
  RemakeMeter(Device &device, PlannedRemakes &remakes, StepProfile &profile);

  void receive(const Event &event) override;
  void on(const event::Submit &submit);
  void on(const event::Save &save);
  void on(const event::Restore &restore);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockInput &need);
  void on(const auto &other) { forward(other); }

  /// The step has ended.
  void finish();

private:
  /// The program that makes a value, in one submit of forward.
  using RunKey = std::pair<size_t, size_t>;
  struct Run {
    StepRemake remake;
    std::vector<SavedPlace> sources;
    bool isGood = false;
  };

  double now();
  /// Whether the link would have moved the tensor out and back long before.
  bool isBeaten(const Recomputation &again, const ResidencyGap &gap);
  Run measure(SavedPlace place);

  Device &device_;
  PlannedRemakes &remakes_;
  StepProfile &profile_;
  /// Saved tensors' gaps by the event at which they leave.
  std::map<uint32_t, uint32_t> gapAt_;
  /// Events at which tensors are saved and blocks begin, in their order; and how many
  /// there were so far.
  std::vector<uint32_t> saves_, begins_;
  size_t saved_ = 0, begun_ = 0;
  /// Residents by event and input, as in ResidentUse; and by the storage of their home.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> uses_;
  std::map<uint64_t, uint32_t> residents_;
  std::map<SavedPlace, uint32_t> gaps_;
  /// How often each gap's tensor was restored, and what makes it again.
  std::map<uint32_t, int> restores_;
  std::map<uint32_t, RunKey> runOf_;
  std::map<RunKey, Run> runs_;
  /// Of the programs that were submitted before the first restore: their relativeCost,
  /// and the time that they took.
  double cost_ = 0, seconds_ = 0, submitted_ = 0;
  bool isForward_ = true;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_REMAKEMETER_H
