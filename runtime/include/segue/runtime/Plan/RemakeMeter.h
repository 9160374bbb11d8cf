//===- RemakeMeter.h - what computing saved tensors again takes -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An EventSink that watches a step on the device on which the next one is recorded, and
// makes each saved tensor again where backward needs it: that is what a plan will do, and
// so its time and its memory are those of the plan. The profile of the next step gets
// them.
//
//   RemakeMeter meter(*device, planned.remakes(), link);
//   meter.target = &planned;
//   session.step(batch, lr);
//   ...                                    // record a StepProfile
//   meter.giveTo(profile);
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
  RemakeMeter(Device &device, PlannedRemakes &remakes, const LinkSpeed &link)
      : device_(device), remakes_(remakes), link_(link) {}

  void receive(const Event &event) override;
  void on(const event::Submit &submit);
  void on(const event::Save &save);
  void on(const event::Restore &restore);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockInput &need);
  void on(const auto &other) { forward(other); }

  /// Gives the measured runs to `profile`, which must be of the same step.
  void giveTo(StepProfile &profile);

private:
  /// The number of the submit in forward and of the program that makes a value.
  using RunKey = std::pair<size_t, size_t>;
  struct Run {
    StepRemake remake;
    std::vector<SavedPlace> sources;
    /// The ids of the storages that are homes of parameters which it reads.
    std::vector<uint64_t> homes;
    bool isGood = false;
  };

  double now();
  /// Returns true if the link would have moved so many bytes out and back long before.
  bool isBeaten(const Recomputation &again, uint64_t bytes);
  Run measure(SavedPlace place);

  Device &device_;
  PlannedRemakes &remakes_;
  LinkSpeed link_;
  /// A saved tensor: its place, the number of times it was restored, the run that makes it,
  /// and whether the tensors that the run reads were there when it was restored.
  struct Saved {
    SavedPlace place;
    int restores = 0;
    std::optional<RunKey> run;
    bool hasSources = false;
  };
  std::vector<std::optional<Saved>> saved_;
  std::map<SavedPlace, size_t> numbers_;
  std::map<RunKey, Run> runs_;
  /// The number of the block and the input to which each home was given, by the id of its storage.
  std::map<uint64_t, std::pair<size_t, uint32_t>> homes_;
  size_t begun_ = 0;
  /// Sums over the programs submitted before the first restore: of their relativeCost, and
  /// of the seconds that they took.
  double cost_ = 0, seconds_ = 0, submitted_ = 0;
  bool isForward_ = true;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_REMAKEMETER_H
