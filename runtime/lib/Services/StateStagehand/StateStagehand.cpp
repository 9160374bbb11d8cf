//===- StateStagehand.cpp - states leave under pressure -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/StateStagehand.h"
#include "../../JsonFields.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace segue::inline runtime {

StateStagehand::Moves StateStagehand::tell(const StateEvent &event) {
  using Kind = StateEvent::Kind;
  Moves moves;
  switch (event.kind) {
  case Kind::StepBegin:
    beginStep(event.number);
    break;
  case Kind::Program:
    forgetProgram();
    break;
  case Kind::Block:
    addBlock(event);
    break;
  case Kind::Know:
    know(event);
    break;
  case Kind::Forget:
    forget(find(event.id));
    break;
  case Kind::Watch:
    return watch(event.usedBytes);
  case Kind::BlockBegin:
    position_ = event.number;
    fetchAhead(event.number, event.usedBytes, moves);
    break;
  case Kind::BlockEnd:
    return endBlock(event.number, event.usedBytes);
  case Kind::Need:
    need(find(event.id));
    break;
  case Kind::Pressure:
    return makeRoom(event.bytes);
  case Kind::Left:
    if (Known &item = find(event.id); item.where == Where::Leaving) {
      leavingBytes_ -= item.bytes;
      item.where = Where::Host;
    }
    break;
  case Kind::Stayed:
    stay(find(event.id));
    break;
  case Kind::Denied:
    find(event.id).where = Where::Host;
    figures_.fetchedAhead -= 1;
    break;
  case Kind::AbortStep:
  case Kind::StepEnd:
    figures_.isAborted = event.kind == Kind::AbortStep;
    forgetProgram();
    moves.hasEnded = true;
    break;
  }
  return moves;
}

StateStagehand::Known &StateStagehand::find(const std::string &id) {
  auto found = items_.find(id);
  if (found == items_.end())
    throw Error(ErrorCode::StateTransition, "\"" + id + "\" is no gradient or state that is known");
  return found->second;
}

void StateStagehand::beginStep(int64_t step) {
  made_ = 0;
  figures_ = {.step = step};
  forgetProgram();
  for (auto &[id, item] : items_)
    item.isInUse = item.isKept = false;
}

void StateStagehand::forgetProgram() {
  blocks_.clear();
  position_ = -1;
  for (auto &[id, item] : items_)
    item.block = -1;
}

void StateStagehand::addBlock(const StateEvent &event) {
  for (const std::string &id : event.last)
    find(id);
  for (const std::string &id : event.first) {
    Known &item = find(id);
    item.block = int64_t(blocks_.size());
    if (item.isState)
      item.place = item.block;
  }
  blocks_.push_back({event.first, event.last});
}

void StateStagehand::know(const StateEvent &event) {
  Known &item = items_[event.id];
  item.bytes = event.bytes;
  item.isState = event.isState;
  item.where = event.isOnDevice ? Where::Device : Where::Host;
  item.isInUse = false;
  item.block = -1;
  if (!item.isState)
    item.place = made_++;
}

void StateStagehand::forget(Known &item) {
  if (std::exchange(item.where, Where::Nowhere) == Where::Leaving)
    leavingBytes_ -= item.bytes;
  item.isInUse = false;
  item.block = -1;
}

/// Returns the item that is needed last, of those that may leave: one that the current program does not
/// need any more, or not at all, states before gradients, as these are needed by the next
/// backward or the norm before any state is; then what the program needs last.
StateStagehand::Items::iterator StateStagehand::last(bool laterOnly) {
  Items::iterator found = items_.end();
  std::tuple<bool, bool, int64_t> latest;
  for (auto it = items_.begin(); it != items_.end(); ++it) {
    const Known &item = it->second;
    bool isLater = item.block <= position_;
    if (item.where != Where::Device || item.isInUse || item.isKept || (laterOnly && !isLater))
      continue;
    // Gradients are made from the last layer to the first, and updated the other way.
    int64_t place = !isLater ? item.block : item.isState ? item.place : -item.place;
    std::tuple next(isLater, isLater && item.isState, place);
    if (found == items_.end() || next > latest) {
      found = it;
      latest = next;
    }
  }
  return found;
}

void StateStagehand::leave(Items::iterator it, Moves &moves) {
  Known &item = it->second;
  item.where = Where::Leaving;
  item.isDisplaced = true;
  leavingBytes_ += item.bytes;
  figures_.left += 1;
  figures_.leftBytes += item.bytes;
  moves.leaves.push_back(it->first);
}

StateStagehand::Moves StateStagehand::watch(int64_t usedBytes) {
  Moves moves;
  for (auto it = items_.begin(); it != items_.end(); ++it)
    if (const Known &item = it->second; item.isDisplaced && item.where == Where::Device && !item.isInUse &&
                                        !item.isKept && item.block <= position_)
      leave(it, moves);
  if (usedBytes - leavingBytes_ < limits_.highBytes)
    return moves;
  while (usedBytes - leavingBytes_ >= limits_.lowBytes) {
    auto next = last(/*laterOnly=*/true);
    if (next == items_.end())
      break;
    leave(next, moves);
  }
  return moves;
}

StateStagehand::Moves StateStagehand::makeRoom(int64_t bytes) {
  Moves moves;
  for (auto next = last(/*laterOnly=*/false); bytes > 0 && next != items_.end(); next = last(/*laterOnly=*/false)) {
    bytes -= next->second.bytes;
    leave(next, moves);
  }
  return moves;
}

/// Fetches what the next blocks need. The first item that does not fit ends it, so that the
/// nearest need is not starved by a later one.
void StateStagehand::fetchAhead(int64_t from, int64_t usedBytes, Moves &moves) {
  int64_t end = std::min<int64_t>(from + limits_.windowBlocks, int64_t(blocks_.size()) - 1);
  for (int64_t block = std::max<int64_t>(from, 0); block <= end; ++block)
    for (const std::string &id : blocks_[size_t(block)].first) {
      Known &item = find(id);
      if (item.where != Where::Host)
        continue;
      usedBytes += item.bytes;
      if (usedBytes >= limits_.highBytes)
        return;
      item.where = Where::Device;
      figures_.fetchedAhead += 1;
      moves.fetches.push_back(id);
    }
}

StateStagehand::Moves StateStagehand::endBlock(int64_t index, int64_t usedBytes) {
  if (index < 0 || size_t(index) >= blocks_.size())
    throw Error(ErrorCode::InvalidArgument, "the program has no block " + std::to_string(index));
  for (const std::string &id : blocks_[size_t(index)].last)
    find(id).isInUse = false;
  Moves moves = watch(usedBytes);
  fetchAhead(index + 1, usedBytes, moves);
  return moves;
}

void StateStagehand::need(Known &item) {
  if (item.where == Where::Leaving) {
    leavingBytes_ -= item.bytes;
    figures_.rescued += 1;
  } else if (item.where != Where::Device) {
    figures_.fetchedLate += 1;
  }
  item.where = Where::Device;
  item.isInUse = true;
}

void StateStagehand::stay(Known &item) {
  if (item.where == Where::Leaving)
    leavingBytes_ -= item.bytes;
  item.where = Where::Device;
  item.isKept = true;
  figures_.kept += 1;
}

Json StateStagehand::telemetry() const {
  return jsonOf({{"step", figures_.step},
                 {"left", figures_.left},
                 {"left_bytes", figures_.leftBytes},
                 {"fetched_ahead", figures_.fetchedAhead},
                 {"fetched_late", figures_.fetchedLate},
                 {"rescued", figures_.rescued},
                 {"kept", figures_.kept},
                 {"aborted", figures_.isAborted}});
}

} // namespace segue::inline runtime
