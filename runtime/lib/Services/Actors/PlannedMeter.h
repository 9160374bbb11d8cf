//===- PlannedMeter.h - what a plan does with activations -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Counts, for telemetry, what became of each saved tensor in `mode: planned`, by
// what lay there before an event and what lies there after it. Nothing waits in
// that mode but the compute queue, for copies: two entries of that queue, before
// and behind the copy's fence, tell for how long. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_PLANNEDMETER_H
#define SEGUE_LIB_SERVICES_ACTORS_PLANNEDMETER_H

#include "BlockClock.h"
#include "segue/runtime/Services/ActivationRecord.h"
#include <algorithm>
#include <memory>
#include <set>
#include <vector>

namespace segue::inline runtime {

class PlannedMeter {
public:
  explicit PlannedMeter(Device &device) : device_(device) {}

  void beginStep(int64_t step);
  int64_t step() const { return record_.step; }
  /// Looks at memory. Called at every event.
  void see();
  /// Notes a save. `before` is the tensor as the program saved it, `after` what stands for
  /// it: a placeholder if it `isDropped`. With `isPlanned` the step has gone as planned so
  /// far.
  void noteSave(const Tensor &before, const Tensor &after, bool isDropped, bool isPlanned);
  /// The way of a return: it began before the tensor was needed, or only then, or its way
  /// out had not ended.
  enum class Return : uint8_t { Ahead, Late, Rescued };
  /// Notes a return; returns the wait of compute for it, or null.
  std::shared_ptr<const CopyWait> noteRestore(const Tensor &before, const Tensor &after, Return how);
  /// Returns the record of the step. Blocks until the compute queue has come to the last
  /// need, which a step's end has waited for anyway.
  ActivationRecord endStep(bool aborted);

private:
  struct Need {
    std::shared_ptr<const CopyWait> wait;
    bool isAhead;
  };

  Device &device_;
  ActivationRecord record_;
  /// The storages that were saved in this step.
  std::set<uint64_t> saved_;
  std::vector<Need> needs_;
  uint64_t lastMark_ = 0;
  int64_t away_ = 0, pinnedBytes_ = 0, unpinnedBytes_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_PLANNEDMETER_H
