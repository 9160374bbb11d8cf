//===- Item.cpp - bytes that may be away ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Residency/Item.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

std::string_view name(Tier tier) { return tierNames[size_t(tier)]; }

std::string_view name(CopyState state) {
  switch (state) {
  case CopyState::Absent:
    return "ABSENT";
  case CopyState::Coming:
    return "COMING";
  case CopyState::Present:
    return "PRESENT";
  case CopyState::Leaving:
    return "LEAVING";
  }
  return "?";
}

bool canFollow(CopyState now, CopyState next) {
  switch (now) {
  case CopyState::Absent:
    return next == CopyState::Coming;
  case CopyState::Coming:
    return next == CopyState::Present || next == CopyState::Absent;
  case CopyState::Present:
    return next == CopyState::Leaving || next == CopyState::Absent;
  case CopyState::Leaving:
    return next == CopyState::Present || next == CopyState::Absent;
  }
  return false;
}

void Item::enter(Tier tier, CopyState next) {
  ItemCopy &now = copy(tier);
  auto refuse = [&](const std::string &why) {
    throw Error(ErrorCode::StateTransition, "\"" + name + "\" cannot go from " + std::string(segue::name(now.state)) +
                                                " to " + std::string(segue::name(next)) + " on the " +
                                                std::string(segue::name(tier)) + why);
  };
  if (!canFollow(now.state, next))
    refuse("");
  CopyState before = std::exchange(now.state, next);
  if (isStale(tier) && !isBeside(tier)) {
    now.state = before;
    refuse(": no other copy has its value");
  }
}

bool Item::isBeside(Tier tier) const {
  for (size_t other = 0; other < copies_.size(); ++other)
    if (other != size_t(tier) && !isStale(Tier(other)))
      return true;
  return false;
}

void Item::put(Tier tier, Tensor tensor, CopyState state) {
  copy(tier) = {state, std::move(tensor), version_};
}

void Item::write() {
  ItemCopy &device = copy(Tier::Device);
  if (!device.exists())
    throw Error(ErrorCode::StateTransition, "\"" + name + "\" is written where it has no copy, on the device");
  if (device.state == CopyState::Coming) // the writer waits for it in its queue
    device.state = CopyState::Present;
  device.version = ++version_;
}

} // namespace segue::inline runtime
