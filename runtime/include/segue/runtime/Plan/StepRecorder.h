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
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_STEPRECORDER_H
#define SEGUE_RUNTIME_PLAN_STEPRECORDER_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/StepProfile.h"
#include <map>
#include <vector>

namespace segue::inline runtime {

class StepRecorder final : public EventSink {
public:
  explicit StepRecorder(Device &device) : device_(device) {}

  void onPhase(Phase phase) override;
  void onBlockBegin(const Program &program, std::string_view block) override;
  void onBlockEnd(const Program &program) override;
  void onSave(const Program &program, uint32_t output, Tensor &saved) override;
  void onRestore(const Program &program, uint32_t input, Tensor &saved) override;

  /// The events since the last STEP_BEGIN, up to now. The recorder begins anew.
  StepProfile takeProfile(const LinkSpeed &link);

private:
  uint32_t record(StepEvent::Kind kind, std::string_view label);
  void closeEvent();

  Device &device_;
  Phase phase_ = Phase::StepBegin;
  std::vector<std::string> blocks_;
  StepProfile profile_;
  /// Gaps that are open, by the id of the storage.
  std::map<uint64_t, size_t> open_;
  double eventBegan_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_STEPRECORDER_H
