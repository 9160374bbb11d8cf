//===- PlannedOrder.cpp - the compiled order of a step --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlannedOrder.h"
#include <algorithm>
#include <cmath>

namespace segue::inline runtime {

/// Two figures that a person would call equal do not cost a slot.
static constexpr double slack = 1e-9;

void PlannedOrder::enterPhase(StepPhase phase) {
  auto first = std::find_if(blocks_.begin(), blocks_.end(), [&](const PlannedBlock &b) { return b.phase == phase; });
  next_ = first == blocks_.end() ? unknown : size_t(first - blocks_.begin());
}

void PlannedOrder::enterBlock(StepPhase phase, std::string_view block) {
  if (blocks_.empty())
    return;
  auto isHere = [&](const PlannedBlock &b) { return b.phase == phase && b.block == block; };
  // Nearly always the one that was expected.
  size_t here = next_;
  if (here >= blocks_.size() || !isHere(blocks_[here]))
    here = size_t(std::find_if(blocks_.begin(), blocks_.end(), isHere) - blocks_.begin());
  next_ = here + 1 < blocks_.size() && blocks_[here + 1].phase == phase ? here + 1 : unknown;
}

std::optional<int> PlannedOrder::slotsToHide(LinkDirection direction, double bytesPerSecond) const {
  double transfer = 0, compute = 0;
  for (const PlannedBlock &block : blocks_) {
    transfer += double(direction == LinkDirection::H2d ? block.h2dBytes : block.d2hBytes) / bytesPerSecond;
    compute += block.computeSeconds;
  }
  if (!(compute > 0))
    return std::nullopt;
  return int(std::clamp(std::ceil(transfer / compute - slack), 1.0, 64.0));
}

std::optional<int> PlannedOrder::windowToHide(double bytesPerSecond) const {
  int window = 1;
  size_t count = blocks_.size();
  double step = 0;
  for (const PlannedBlock &block : blocks_)
    step += block.computeSeconds;
  if (!(step > 0))
    return std::nullopt;
  for (size_t i = 0; i < count; ++i) {
    double load = double(blocks_[i].h2dBytes) / bytesPerSecond;
    // Back from block i, around the step, until enough is computed meanwhile.
    double hidden = 0;
    int distance = 0;
    while (hidden < load * (1 - slack) && size_t(distance) < count) {
      ++distance;
      hidden += blocks_[(i + count - size_t(distance) % count) % count].computeSeconds;
    }
    window = std::max(window, distance);
  }
  return window;
}

} // namespace segue::inline runtime
