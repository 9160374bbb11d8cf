//===- Executor.cpp - runs a program on a device --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Executor.h"
#include "../Tensor/NullHandles.h"
#include "PreparedProgram.h"

namespace segue::inline runtime {

void releasePrograms(const DeviceRef &device) {
  for (const BinaryImage *image : requireGiven(device, "releasePrograms")->lane().images())
    image->forget(*device);
}

Executor::Executor(DeviceRef device, Program program)
    : device_(requireGiven(device, "Executor")), program_(std::move(program)),
      prepared_(program_.image()->prepared(device_, program_.index())) {}

std::vector<Tensor> Executor::run(std::vector<Tensor> &&inputs, EventSink *events) const {
  std::vector<Tensor> outputs(program_.outputs().size());
  prepared_->run(program_, inputs, outputs, PreparedProgram::Given::Away, events);
  return outputs;
}

std::vector<Tensor> Executor::run(const std::vector<Tensor> &inputs, EventSink *events) const {
  return run(std::vector<Tensor>(inputs), events);
}

void Executor::run(std::span<Tensor> inputs, std::span<Tensor> outputs, EventSink *events) const {
  prepared_->run(program_, inputs, outputs, PreparedProgram::Given::Lent, events);
}

SubmitCounters Executor::counters() const { return prepared_->counters(); }

std::vector<Tensor> submit(const DeviceRef &device, const Program &program, std::vector<Tensor> &&inputs,
                           EventSink *events) {
  return Executor(device, program).run(std::move(inputs), events);
}

std::vector<Tensor> submit(const DeviceRef &device, const Program &program, const std::vector<Tensor> &inputs,
                           EventSink *events) {
  return Executor(device, program).run(inputs, events);
}

} // namespace segue::inline runtime
