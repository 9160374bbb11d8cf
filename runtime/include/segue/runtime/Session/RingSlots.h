//===- RingSlots.h - how large a ring a step goes fastest with --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Weight Stagehand's ring is a cache of weights: each slot spares loads, and takes
// memory that saved tensors must leave for. Which of the two costs less depends on
// the link, on page-locked memory and on how long a block computes, so twins of the
// step play it with several sizes of the ring, and the fastest is taken.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_RINGSLOTS_H
#define SEGUE_RUNTIME_SESSION_RINGSLOTS_H

#include "segue/runtime/Plan/MeasuredStep.h"
#include "segue/runtime/Session/StepTwin.h"
#include <functional>

namespace segue::inline runtime {

/// The number in [least, most] with which a step takes the fewest `seconds`, which is
/// asked for at most five numbers, both ends among them: the longer stretch beside
/// the best one so far is halved. Infinity where no step fits. Of several that are as
/// fast the greatest. Pure.
int64_t fastestSlots(int64_t least, int64_t most, const std::function<double(int64_t slots)> &seconds);

/// A planned step beside a ring.
struct StepWithRing {
  /// Makes a twin whose ring has so many slots.
  std::function<StepTwin(int64_t slots)> twin;
  /// Slots that the ring has; fewer may be chosen, more are not.
  int64_t slots = 0;
  /// The budget that the step must keep to, with all that the device holds beside it.
  uint64_t budgetBytes = 0;
  /// Bytes that the device holds when the step begins, with the ring as it is; none: as
  /// many as the twin does.
  std::optional<uint64_t> liveBytes;
  /// Times of real steps; null: those of the twin's device count.
  const MeasuredStep *measured = nullptr;
};

/// With how many slots a step by the plan for its budget goes fastest: all that there
/// are, or fewer, down to where nothing leaves any more. Addresses are not packed
/// here; a step that fits by its bytes may need a little more. Plays two steps on at
/// most five twins, on one where nothing leaves or compute never waits.
int64_t fastestSlots(const StepWithRing &step);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_RINGSLOTS_H
