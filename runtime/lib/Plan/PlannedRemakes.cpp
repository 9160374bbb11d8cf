//===- PlannedRemakes.cpp - saved tensors that are made again -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/PlannedRemakes.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

PlannedRemakes::PlannedRemakes(DeviceRef device, Residency &residency)
    : residency_(residency), lender_(residency), recomputer_(std::move(device)) {
  recomputer_.setLender(&lender_);
}

std::vector<Tensor> PlannedRemakes::PlannedLender::lend(std::span<const Tensor> homes) {
  std::vector<Tensor> lent;
  for (const Tensor &home : homes) {
    Item *item = residency_.findHome(home);
    lent.push_back(item ? residency_.need(*item) : home); // the program's own copy of it, then
  }
  return lent;
}

void PlannedRemakes::onSave(const Program &program, uint32_t output, const Tensor &saved) {
  SavedPlace place = recomputer_.placeOf(program, output);
  saved_[place] = {.id = program.output(output).name, .storage = saved.storage(), .desc = saved.sharedDesc()};
  byStorage_[saved.storage()->id()] = place;
}

std::optional<SavedPlace> PlannedRemakes::placeOf(const Tensor &saved) const {
  auto found = byStorage_.find(saved.storage()->id());
  return found == byStorage_.end() ? std::nullopt : std::optional(found->second);
}

void PlannedRemakes::onLeft(const Program &program, uint32_t output, const Item &item) {
  SavedPlace place = recomputer_.placeOf(program, output);
  saved_[place].item = item.id;
  byStorage_[item.host().tensor.storage()->id()] = place;
}

void PlannedRemakes::onRestore(const Tensor &given, const Tensor &now) {
  std::optional<SavedPlace> place = placeOf(given);
  if (!place)
    return;
  saved_[*place].item.reset();
  saved_[*place].isDropped = false;
  onMoved(given, now);
}

void PlannedRemakes::onMoved(const Tensor &before, const Tensor &now) {
  std::optional<SavedPlace> place = placeOf(before);
  if (!place)
    return;
  Saved &saved = saved_[*place];
  saved.storage = now.storage();
  saved.desc = now.sharedDesc();
  byStorage_[now.storage()->id()] = *place;
}

bool PlannedRemakes::drop(Tensor &tensor) {
  std::optional<SavedPlace> place = placeOf(tensor);
  if (!place || !recomputer_.canDrop(*place))
    return false;
  recomputer_.keepRoom(*place);
  Saved &saved = saved_[*place];
  saved.isDropped = true;
  tensor = Recomputer::placeholder(tensor, saved.id);
  byStorage_[tensor.storage()->id()] = *place;
  return true;
}

bool PlannedRemakes::isDropped(const Tensor &placeholder) const {
  std::optional<SavedPlace> place = placeOf(placeholder);
  return place && saved_.at(*place).isDropped;
}

bool PlannedRemakes::hasSources(SavedPlace place) const {
  return std::ranges::all_of(recomputer_.sourcesOf(place), [&](SavedPlace source) {
    auto found = saved_.find(source);
    return found != saved_.end() && (found->second.item || !found->second.storage.expired());
  });
}

Tensor PlannedRemakes::current(SavedPlace place) {
  auto found = saved_.find(place);
  Saved *saved = found == saved_.end() ? nullptr : &found->second;
  if (saved && saved->isDropped) {
    if (!saved->made)
      run(place);
    return saved->made;
  }
  if (Item *item = saved && saved->item ? residency_.find(*saved->item) : nullptr)
    return residency_.need(*item);
  std::shared_ptr<Storage> storage = saved ? saved->storage.lock() : nullptr;
  if (!storage)
    throw Error(ErrorCode::StateTransition, "saved value " + (saved ? "\"" + saved->id + "\"" : "of a step before") +
                                                ", from which another is to be computed again, is gone; backward "
                                                "must keep it until then");
  return Tensor::in(std::move(storage), saved->desc);
}

std::vector<Tensor> PlannedRemakes::run(SavedPlace place) {
  std::vector<Tensor> sources;
  for (SavedPlace source : recomputer_.sourcesOf(place))
    sources.push_back(current(source));
  std::vector<Tensor> outputs = recomputer_.run(place, std::move(sources));
  for (const auto &[other, output] : recomputer_.madeWith(place))
    if (auto found = saved_.find(other); found != saved_.end() && found->second.isDropped && !found->second.made)
      found->second.made = outputs[output];
  return outputs;
}

Tensor PlannedRemakes::make(const Tensor &placeholder) {
  SavedPlace place = *placeOf(placeholder);
  current(place);
  return std::exchange(saved_.at(place).made, Tensor());
}

void PlannedRemakes::forget() {
  saved_.clear();
  byStorage_.clear();
  recomputer_.forget();
}

} // namespace segue::inline runtime
