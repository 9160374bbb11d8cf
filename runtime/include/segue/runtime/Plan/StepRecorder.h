//===- StepRecorder.h - what a step does to a device's memory ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An EventSink that watches one training step and makes its StepProfile. Given
// a device of `sim:virtual`, whose programs run in no time and without memory,
// the profile is that of the very same executor, allocator and session that
// will train:
//
//   auto device = Device::open("sim:virtual,dram=24GiB");
//   StepRecorder recorder(*device);
//   Session session(device, modules, {.events = &recorder});
//   session.step(batch, lr);
//   ResidencyPlanner planner(recorder.takeProfile(link));
//
// It brings nothing itself: where parameters and states live on the host, its
// `target` is PlannedResidency without a plan, with which they stay on the
// device, once there. Without a target, residents are not looked at.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_STEPRECORDER_H
#define SEGUE_RUNTIME_PLAN_STEPRECORDER_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/StepProfile.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace segue::inline runtime {

class StepRecorder final : public ForwardEvents {
public:
  explicit StepRecorder(Device &device) : device_(device) {}

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockEnd &end);
  void on(const event::Save &save);
  void on(const event::Restore &restore);
  void on(const event::OfferInput &offer);
  void on(const event::BlockInput &need);
  void on(const event::Output &made);
  void on(const event::Accumulate &addition);
  void on(const event::Accumulated &addition);
  void on(const auto &other) { forward(other); }

  /// Notes that after the event that was told last, the thread that submits has waited `seconds` for the link.
  void waitedForLink(double seconds) { profile_.events.back().linkWaitSeconds += seconds; }

  /// Returns the profile of the events since the last STEP_BEGIN, up to now. The recorder begins anew.
  StepProfile takeProfile(const LinkSpeed &link);

private:
  /// A resident, as far as it is known while the step goes on.
  struct Track {
    /// Its home lies on a disk below the host's memory.
    bool isOnDisk = false;
    std::string block, location;
    /// The bytes of its own memory, and those that they take on the device.
    uint64_t bytes = 0, taken = 0;
    /// The event of its first use, and the one after which nobody reads it now.
    uint32_t firstUse = noIndex, leaves = noIndex;
    /// True if it was written since the host had its bytes.
    bool isChanged = false;
    /// True for a gradient that waits for the next forward.
    bool isCarried = false;
    /// Its gaps within the step.
    std::vector<size_t> gaps;
  };

  uint32_t record(StepEvent::Kind kind, std::string_view label);
  uint32_t lastEvent() const { return uint32_t(profile_.events.size() - 1); }
  void closeEvent();
  uint32_t residentOf(const Tensor &tensor, const Value *value);
  void use(uint32_t resident, uint32_t index);
  void addGap(uint32_t resident, uint32_t needed, uint64_t outBytes);

  Device &device_;
  Phase phase_ = Phase::StepBegin;
  std::vector<std::string> blocks_;
  BlockCursor cursor_;
  StepProfile profile_;
  /// Gaps of saved tensors that are open, by the id of the storage.
  std::map<uint64_t, size_t> open_;
  /// Indices into StepProfile::sharedSaves, by the id of the storage.
  std::map<uint64_t, size_t> shared_;
  /// Residents, by index; and the index by the id of the storage.
  std::vector<Track> tracks_;
  std::map<uint64_t, uint32_t> residents_;
  /// The residents of gradients that forward has read, by binary and parameter, until backward makes the next ones.
  std::map<std::pair<const void *, std::string>, uint32_t> carried_;
  /// The residents by input of the program that runs.
  std::map<uint32_t, uint32_t> inUse_;
  /// The inputs of programs that begin which `target` wants to bring.
  std::set<std::tuple<const void *, size_t, uint32_t>> broughtByTarget_;
  /// The resident that is the sum which is being added to.
  std::optional<uint32_t> summed_;
  double eventBegan_ = 0;
  /// The bytes that were queued to the device when the event was told.
  uint64_t h2dBegan_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_STEPRECORDER_H
