//===- PlannedOrder.h - the compiled order of a step ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Follows a step along its plan, to say what the next block will need, and how
// many slots and blocks ahead hide the transfers of a step, at the bandwidth
// that was measured.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_PLANNEDORDER_H
#define SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_PLANNEDORDER_H

#include "segue/runtime/Services/ConductorTypes.h"

namespace segue::inline runtime {

class PlannedOrder {
public:
  PlannedOrder() = default;
  explicit PlannedOrder(std::vector<PlannedBlock> blocks) : blocks_(std::move(blocks)) {}

  /// Notes that the phase begins: its first block is next.
  void enterPhase(StepPhase phase);
  /// Notes that the block begins: the one behind it in the same phase is next. After a
  /// block that the plan does not know, nothing is known about the next.
  void enterBlock(StepPhase phase, std::string_view block);

  /// Returns the peak bytes of the next block; 0 if none is known.
  int64_t nextPeakBytes() const { return next_ < blocks_.size() ? blocks_[next_].peakBytes : 0; }

  /// Returns the number of transfers of a direction that must be in flight at once so that
  /// the link keeps up with the blocks: by Little's law, seconds of transfer over seconds
  /// of computing, rounded up. Returns nothing without figures.
  std::optional<int> slotsToHide(LinkDirection direction, double bytesPerSecond) const;
  /// Returns the least number of blocks ahead at which every load, started then, is there
  /// in time; nothing without figures.
  std::optional<int> windowToHide(double bytesPerSecond) const;

  size_t next() const { return next_; }

private:
  static constexpr size_t unknown = SIZE_MAX;

  std::vector<PlannedBlock> blocks_;
  size_t next_ = unknown;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_PLANNEDORDER_H
