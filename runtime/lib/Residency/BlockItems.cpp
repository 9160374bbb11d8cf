//===- BlockItems.cpp - items that come with a block ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Residency/BlockItems.h"

namespace segue::inline runtime {

bool BlockItems::brings(const Program &program, uint32_t input, const Tensor &value) const {
  Role role = program.inputs()[input].role;
  return residency_.isHome(value) && (bringsParameters_ || role == Role::Gradient || role == Role::State);
}

void BlockItems::offer(const event::OfferInput &offer) {
  brought_.clear();
  offer.isDeferred |= brings(offer.program, offer.input, offer.value);
}

Item *BlockItems::find(const event::BlockInput &need) {
  const auto &[program, input, value] = need;
  if (!brings(program, input, value))
    return nullptr;
  const Value &declared = program.inputs()[input];
  Item *item = residency_.findHome(value);
  if (!item)
    item = &residency_.adopt(value, declared.name, /*owner=*/0, declared.sharedDesc);
  if (!item->owner)
    item->owner = device_->memory().intern({.value = declared.name, .role = std::string(name(declared.role))});
  brought_[input] = item->id;
  return item;
}

void BlockItems::bring(const event::BlockInput &need, Item &item) {
  // The host waits for a tensor that the program writes in place: half of an update is none.
  bool isWritten = cursor_.usesOf(need.program).written[need.input];
  need.value = residency_.need(item, isWritten, /*mustArrive=*/isOptimizing_ || isWritten);
}

std::span<const BlockItems::Touched> BlockItems::end(const event::BlockEnd &end) {
  const BlockUses &uses = cursor_.usesOf(end.program);
  lastBlock_ = cursor_.end(end.program);
  touched_.clear();
  for (uint32_t input : uses.blocks[lastBlock_].lastTouched)
    if (auto found = brought_.find(input); found != brought_.end())
      touched_.push_back({input, found->second});
  return touched_;
}

void BlockItems::take(const event::Accumulate &addition) {
  for (Tensor *tensor : {&addition.sum, &addition.gradient})
    if (Item *item = residency_.findHome(*tensor))
      *tensor = residency_.take(*item);
}

void BlockItems::reset() {
  cursor_.reset();
  isOptimizing_ = false;
}

} // namespace segue::inline runtime
