//===- Executor.cpp - runs a program on a device --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Executor.h"
#include "PreparedProgram.h"

namespace segue::inline runtime {

std::string_view name(Phase phase) {
  static constexpr std::string_view names[] = {"step_begin", "forward", "backward", "optimizer", "step_end"};
  return uint8_t(phase) < std::size(names) ? names[uint8_t(phase)] : "?";
}

Executor::Executor(DeviceRef device, Program program)
    : device_(std::move(device)), program_(std::move(program)),
      prepared_(program_.image()->prepared(device_, program_.index())) {}

std::vector<Tensor> Executor::run(std::vector<Tensor> inputs, EventSink *events) const {
  return prepared_->run(device_, program_, std::move(inputs), events);
}

SubmitCounters Executor::counters() const { return prepared_->counters(); }
void Executor::setProfiling(bool on) const { prepared_->setProfiling(on); }
std::vector<CommandProfile> Executor::profile() const { return prepared_->profile(); }

std::vector<Tensor> submit(const DeviceRef &device, const Program &program, std::vector<Tensor> inputs,
                           EventSink *events) {
  return Executor(device, program).run(std::move(inputs), events);
}

} // namespace segue::inline runtime
