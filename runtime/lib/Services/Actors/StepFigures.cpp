//===- StepFigures.cpp - what a step has measured -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StepFigures.h"
#include <algorithm>

namespace segue::inline runtime {

void StepFigures::beginStep() {
  before_ = current_ = 0;
  past_ = parts_ = 0;
  peakHeld_ = 0;
  saved_.clear();
  again_.clear();
  byPlace_.clear();
  last_.reset();
}

void StepFigures::onSubmit(const Program &program, double cost) {
  before_ += current_;
  current_ = cost;
  past_ = 0;
  parts_ = int64_t(program.savePoints().size());
  if (!parts_)
    parts_ = std::ranges::count(program.inputs(), Role::Saved, &Value::role);
}

/// Returns the present time in units of cost: saves or needs divide the current program evenly.
double StepFigures::within() const {
  return before_ + (parts_ ? current_ * double(std::min(past_, parts_)) / double(parts_) : 0);
}

void StepFigures::onTurn(int64_t heldBytes) {
  before_ += current_;
  current_ = 0;
  peakHeld_ = std::max(peakHeld_, heldBytes);
  for (SavedCost &saved : saved_)
    if (saved.turn == 0)
      saved.turn = before_;
}

void StepFigures::onSave(SavedPlace place, int64_t bytes, int64_t heldBytes, std::optional<MadeAgain> again) {
  ++past_;
  last_.reset();
  SavedCost &saved = saved_.emplace_back();
  saved.bytes = bytes;
  saved.heldAtSave = heldBytes;
  saved.savedAt = within();
  if (bytes)
    byPlace_[place] = saved_.size() - 1;
  if (again) {
    saved.recomputeSeconds = again->cost;
    saved.runBytes = again->runBytes;
  }
  again_.push_back(again ? std::move(*again) : MadeAgain());
}

void StepFigures::onNeed(size_t record, int64_t heldBytes, uint64_t broughtBytes) {
  ++past_;
  last_ = record;
  if (saved_[record].neededAt != 0)
    return see(heldBytes);
  saved_[record].neededAt = within();
  saved_[record].heldAtNeed = heldBytes;
  again_[record].broughtBytes = broughtBytes;
}

void StepFigures::see(int64_t heldBytes) {
  if (last_)
    saved_[*last_].heldAfter = std::max(saved_[*last_].heldAfter, heldBytes);
}

std::vector<bool> StepFigures::toRecompute(double seconds, const LinkRates &link, const DeviceRoom &room) {
  double total = before_ + current_;
  if (total > 0 && seconds > 0)
    scale_ = scale_ > 0 ? std::min(scale_, seconds / total) : seconds / total;
  if (scale_ <= 0 || link.d2hBytesPerSecond <= 0 || link.h2dBytesPerSecond <= 0 || peakHeld_ <= room.highBytes)
    return {};
  auto numbersOf = [&](const std::vector<SavedPlace> &places) {
    std::vector<size_t> numbers;
    for (SavedPlace place : places)
      if (auto it = byPlace_.find(place); it != byPlace_.end())
        numbers.push_back(it->second);
    return numbers;
  };
  for (size_t i = 0; i < saved_.size(); ++i) {
    SavedCost &saved = saved_[i];
    saved.sources = numbersOf(again_[i].sources);
    saved.together = numbersOf(again_[i].together);
    saved.savedAt *= scale_;
    saved.turn *= scale_;
    saved.neededAt *= scale_;
    if (saved.recomputeSeconds)
      *saved.recomputeSeconds = *saved.recomputeSeconds * scale_ + double(again_[i].broughtBytes) / link.h2dBytesPerSecond;
  }
  std::vector<bool> chosen;
  for (Residence residence : chooseResidence(saved_, link, peakHeld_ - room.highBytes, room))
    chosen.push_back(residence == Residence::Recompute);
  beginStep();
  return chosen;
}

} // namespace segue::inline runtime
