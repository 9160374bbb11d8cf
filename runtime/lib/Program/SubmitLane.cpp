//===- SubmitLane.cpp - the one thread that submits to a device -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SubmitLane.h"
#include "PreparedProgram.h"

namespace segue::inline runtime {

SubmitLane::SubmitLane(Device &device) : device_(device) {
  device.memory().setExclusively([this](const std::function<void()> &body) {
    if (!tryEnter())
      return false;
    struct Leave {
      SubmitLane &lane;
      ~Leave() { lane.leave(); }
    } guard{*this};
    body();
    return true;
  });
}

uintptr_t SubmitLane::thisThread() {
  static thread_local char here;
  return reinterpret_cast<uintptr_t>(&here);
}

void SubmitLane::enterHeld(uintptr_t self) {
  collisions_.fetch_add(1, std::memory_order_relaxed);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    uintptr_t owner = 0;
    if (owner_.compare_exchange_strong(owner, self, std::memory_order_seq_cst))
      break;
    owner_.wait(owner, std::memory_order_seq_cst);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

bool SubmitLane::tryEnter() {
  uintptr_t self = thisThread(), owner = 0;
  if (owner_.compare_exchange_strong(owner, self, std::memory_order_acquire))
    return true;
  if (owner == self)
    ++depth_;
  return owner == self;
}

std::string_view SubmitLane::intern(const std::string &text) {
  std::lock_guard lock(mutex_);
  return *texts_.insert(text).first;
}

void SubmitLane::enlist(PreparedProgram &program) {
  std::lock_guard lock(mutex_);
  if (programs_.empty())
    roomMaker_ = device_.memory().addRoomMaker(
        "recycled outputs", 0, [this](Space space, uint64_t wanted) { return makeRoom(space, wanted); });
  programs_.push_back(&program);
}

void SubmitLane::remove(PreparedProgram &program) {
  std::lock_guard lock(mutex_);
  std::erase(programs_, &program);
}

std::set<const BinaryImage *> SubmitLane::images() {
  std::lock_guard lock(mutex_);
  std::set<const BinaryImage *> images;
  for (const PreparedProgram *program : programs_)
    images.insert(&program->image());
  return images;
}

/// Makes room on the thread that allocates. The holder of the lane alone touches what is
/// kept, and another thread does not wait for a submit that may be long.
uint64_t SubmitLane::makeRoom(Space space, uint64_t wanted) {
  if (!tryEnter())
    return 0;
  uint64_t freed = 0;
  {
    std::lock_guard lock(mutex_);
    for (PreparedProgram *program : programs_) {
      if (freed >= wanted)
        break;
      freed += program->dropKept(space);
    }
  }
  leave();
  return freed;
}

uint64_t SubmitLane::droppableBytes(Space space) {
  if (!tryEnter())
    return 0;
  uint64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    for (const PreparedProgram *program : programs_)
      bytes += program->droppableBytes(space);
  }
  leave();
  return bytes;
}

std::shared_ptr<SubmitLane> makeSubmitLane(Device &device) { return std::make_shared<SubmitLane>(device); }

StitchReport &stitchReport(Device &device) { return device.lane().report(); }

} // namespace segue::inline runtime
