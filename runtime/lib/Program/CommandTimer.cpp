//===- CommandTimer.cpp - how long the commands of programs take ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The lane of the device says whether commands are timed, which whoever performs one
// asks (PerformCommand.cpp); sums lie with the operations, single calls with the lane.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/CommandTimer.h"
#include "CostOfCommand.h"
#include "PreparedProgram.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

static std::string joined(std::span<const int64_t> extents) {
  std::string text;
  for (int64_t extent : extents)
    text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

template <typename Table> static std::string attentionText(const Table &attention) {
  return joined(numbers(attention.q()->shape())) + " over " + std::to_string(numbers(attention.k()->shape())[2]) +
         " keys";
}

/// Returns the extents that tell a command from others of its name.
static std::string extentsOf(const schema::Command &command) {
  switch (command.body_type()) {
  case schema::CommandBody::Matmul: {
    const schema::Matmul &matmul = *command.body_as_Matmul();
    auto a = numbers(matmul.a()->shape()), c = numbers(matmul.c()->shape());
    const int64_t extents[] = {c[0], c[1], a[2], c[2]};
    return joined(extents);
  }
  case schema::CommandBody::Attention:
    return attentionText(*command.body_as_Attention());
  case schema::CommandBody::AttentionGrad:
    return attentionText(*command.body_as_AttentionGrad());
  case schema::CommandBody::LibraryCall:
    return joined(numbers(command.body_as_LibraryCall()->writes()->Get(0)->shape()));
  case schema::CommandBody::ToLayout:
    return joined(numbers(command.body_as_ToLayout()->target()->shape()));
  default:
    return "";
  }
}

//===----------------------------------------------------------------------===//
// One program
//===----------------------------------------------------------------------===//

void PreparedProgram::forgetTimes() {
  std::lock_guard lock(timesMutex_);
  for (Op &op : ops_) {
    op.seconds = 0;
    op.calls = 0;
  }
}

std::string PreparedProgram::labelOf(const Op &op) const {
  std::string label = std::holds_alternative<LaunchOp>(op.body) ? "launch " : "", extents = extentsOf(*op.command);
  label += op.label;
  return extents.empty() ? label : label + " " + extents;
}

void PreparedProgram::noteCall(Op &op, double begin, double seconds) {
  if (lane_.timesCommands()) {
    std::lock_guard lock(timesMutex_);
    op.seconds += seconds;
    ++op.calls;
  }
  if (lane_.notesSpans())
    lane_.addSpan({info_.name, labelOf(op), kindOf(*op.command), image_.location(op.location), op.cost.flops,
                   op.cost.memoryBytes, begin, seconds});
}

ProgramTimes PreparedProgram::times() const {
  ProgramTimes times{.file = image_.name(), .program = info_.name, .commands = {}};
  std::lock_guard lock(timesMutex_);
  for (const Op &op : ops_) {
    if (!op.calls)
      continue;
    times.commands.push_back({.label = labelOf(op),
                              .kind = kindOf(*op.command),
                              .location = image_.location(op.location),
                              .calls = op.calls,
                              .seconds = op.seconds,
                              .flops = op.cost.flops,
                              .bytes = op.cost.memoryBytes});
  }
  return times;
}

//===----------------------------------------------------------------------===//
// All programs of a device
//===----------------------------------------------------------------------===//

bool SubmitLane::beginTiming() {
  std::lock_guard lock(mutex_);
  if (timesCommands())
    return false;
  for (PreparedProgram *program : programs_)
    program->forgetTimes();
  timesCommands_.store(true, std::memory_order_relaxed);
  return true;
}

std::vector<ProgramTimes> SubmitLane::endTiming() {
  std::lock_guard lock(mutex_);
  timesCommands_.store(false, std::memory_order_relaxed);
  std::vector<ProgramTimes> all;
  for (const PreparedProgram *program : programs_)
    if (ProgramTimes times = program->times(); !times.commands.empty())
      all.push_back(std::move(times));
  return all;
}

void SubmitLane::addSpan(CommandSpan span) {
  std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<CommandSpan> SubmitLane::takeSpans() {
  std::lock_guard lock(mutex_);
  std::vector<CommandSpan> taken(std::make_move_iterator(spans_.begin()), std::make_move_iterator(spans_.end()));
  spans_.clear();
  return taken;
}

void CommandSpans::setOn(bool on) { device_->lane().noteSpans(on); }

std::vector<CommandSpan> CommandSpans::take() {
  device_->drain(); // whoever performs a command notes it
  return device_->lane().takeSpans();
}

CommandTimer::CommandTimer(DeviceRef device) : device_(std::move(device)) {
  if (!device_->hasBytes())
    throw Error(ErrorCode::Unsupported,
                "device \"" + device_->name() + "\" computes nothing: its commands take what its spec says");
  device_->drain(); // what was queued before is not in the times, not even of a timer that did not wait
  if (!device_->lane().beginTiming())
    throw Error(ErrorCode::InvalidArgument, "the commands of device \"" + device_->name() +
                                                "\" are being timed already; end that first, or use another device");
}

CommandTimer::~CommandTimer() {
  if (isOn_)
    device_->lane().endTiming();
}

void CommandTimer::stop() {
  if (!isOn_)
    return;
  device_->drain();
  times_ = device_->lane().endTiming();
  isOn_ = false;
}

} // namespace segue::inline runtime
