//===- BlockClock.cpp - measures the parts of a step ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BlockClock.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

static bool hasClock(const Device &device) { return device.hasBytes() && !device.runsInline(); }

std::shared_ptr<CopyWait> watchCopy(Device &device, const Tensor &tensor, uint64_t &mark) {
  if (!hasClock(device))
    return nullptr;
  auto wait = std::make_shared<CopyWait>();
  Fence copy = tensor.storage()->writes();
  Work need;
  need.label = "need";
  need.run = [wait, copy, device = &device] {
    device->call([wait, copy, device] { wait->isLate = !device->isDone(copy); });
    device->stamp(TimestampRef(wait, &wait->begin));
  };
  device.enqueue(Queue::Compute, Fence(), std::move(need));
  mark = device.enqueueStamp(Queue::Compute, copy, TimestampRef(wait, &wait->end), "needed");
  return wait;
}

std::shared_ptr<CopyWait> waitForCopy(Device &device, const Fence &copy, uint64_t &mark) {
  if (!hasClock(device) || device.isDone(copy)) {
    device.wait(copy);
    return nullptr;
  }
  auto wait = std::make_shared<CopyWait>();
  wait->isLate = true;
  device.enqueueStamp(Queue::Compute, Fence(), TimestampRef(wait, &wait->begin), "need");
  device.wait(copy);
  mark = device.enqueueStamp(Queue::Compute, Fence(), TimestampRef(wait, &wait->end), "needed");
  return wait;
}

std::shared_ptr<CopyWait> beginRun(Device &device) {
  if (!hasClock(device))
    return nullptr;
  auto run = std::make_shared<CopyWait>();
  run->isLate = true;
  device.enqueueStamp(Queue::Compute, Fence(), TimestampRef(run, &run->begin), "make again");
  return run;
}

void BlockClock::beginStep() {
  isOn_ = (steps_ == next_ || steps_ == next_ + 1) && hasClock(device_);
  if (steps_ == next_ || !isOn_)
    before_.clear();
  if (steps_++ == next_ + 1) {
    next_ = steps_ + pause_;
    pause_ *= 2;
  }
  marks_.clear();
  parts_.clear();
  open_.clear();
  measured_.clear();
  waits_.clear();
}

void BlockClock::mark(size_t part) {
  parts_.push_back(part);
  marks_.push_back(std::make_shared<Timestamp>());
  lastMark_ = device_.enqueueStamp(Queue::Compute, Fence(), marks_.back(), "clock");
}

void BlockClock::onPhase() {
  if (!isOn_)
    return;
  open_.assign(1, measured_.size());
  measured_.push_back({.isBlock = false});
  mark(open_.back());
}

void BlockClock::onBlockBegin() {
  if (!isOn_)
    return;
  open_.push_back(measured_.size());
  measured_.push_back({.isBlock = true});
  mark(open_.back());
}

void BlockClock::onBlockEnd() {
  if (!isOn_ || open_.size() < 2)
    return;
  open_.pop_back();
  mark(open_.back());
}

void BlockClock::onNeed(const Tensor &tensor) {
  if (isOn_)
    addWait(watchCopy(device_, tensor, lastMark_));
}

void BlockClock::addWait(std::shared_ptr<const CopyWait> wait) {
  if (isOn_ && wait && !open_.empty())
    waits_.emplace_back(open_.back(), std::move(wait));
}

void BlockClock::addRun(std::shared_ptr<CopyWait> run) {
  if (!run || !isOn_)
    return;
  lastMark_ = device_.enqueueStamp(Queue::Compute, Fence(), TimestampRef(run, &run->end), "made again");
  addWait(std::move(run));
}

void BlockClock::endStep() {
  if (!std::exchange(isOn_, false) || marks_.empty())
    return;
  mark(open_.front()); // the end of the last part
  device_.wait(Fence(Queue::Compute, lastMark_));
  for (size_t i = 0; i + 1 < marks_.size(); ++i)
    measured_[parts_[i]].seconds += marks_[i + 1]->seconds() - marks_[i]->seconds();
  for (const auto &[part, wait] : waits_)
    measured_[part].seconds = std::max(0.0, measured_[part].seconds - wait->seconds());
  if (before_.empty()) {
    before_ = std::move(measured_);
    return;
  }
  if (before_.size() == measured_.size()) {
    MeasuredStep &measured = ready_.emplace();
    for (size_t i = 0; i < measured_.size(); ++i)
      (measured_[i].isBlock ? measured.blocks : measured.phases)
          .push_back(std::min(measured_[i].seconds, before_[i].seconds));
  }
  before_.clear();
}

void BlockClock::forget() {
  isOn_ = false;
  before_.clear();
  ready_.reset();
}

std::optional<MeasuredStep> BlockClock::take() { return std::exchange(ready_, std::nullopt); }

} // namespace segue::inline runtime
