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
}

void StepFigures::onSubmit(const Program &program, double cost) {
  before_ += current_;
  current_ = cost;
  past_ = 0;
  parts_ = int64_t(program.savePoints().size());
  if (!parts_)
    parts_ = std::ranges::count(program.inputs(), Role::Saved, &Value::role);
}

/// Now: what divides the current program divides it evenly.
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

size_t StepFigures::onSave(int64_t bytes, std::optional<double> cost) {
  ++past_;
  saved_.push_back({.bytes = bytes, .savedAt = within(), .turn = 0, .neededAt = 0, .recomputeSeconds = cost});
  return saved_.size() - 1;
}

void StepFigures::onNeed(size_t record) {
  ++past_;
  if (saved_[record].neededAt == 0)
    saved_[record].neededAt = within();
}

std::vector<bool> StepFigures::toRecompute(double seconds, const LinkRates &link, int64_t limitBytes) {
  double total = before_ + current_;
  if (total > 0 && seconds > 0)
    scale_ = scale_ > 0 ? std::min(scale_, seconds / total) : seconds / total;
  if (scale_ <= 0 || link.d2hBytesPerSecond <= 0 || link.h2dBytesPerSecond <= 0 || peakHeld_ <= limitBytes)
    return {};
  for (SavedCost &saved : saved_) {
    saved.savedAt *= scale_;
    saved.turn *= scale_;
    saved.neededAt *= scale_;
    if (saved.recomputeSeconds)
      *saved.recomputeSeconds *= scale_;
  }
  std::vector<bool> chosen;
  for (Residence residence : chooseResidence(saved_, link, peakHeld_ - limitBytes))
    chosen.push_back(residence == Residence::Recompute);
  saved_.clear();
  return chosen;
}

} // namespace segue::inline runtime
