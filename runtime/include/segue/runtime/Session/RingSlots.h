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

/// Returns the number in [least, most] with which a step takes the fewest `seconds`. Asks
/// for at most five numbers, both ends among them: the longer stretch beside the best one
/// so far is halved. `seconds` returns infinity if no step fits. Of several numbers that
/// are as fast it returns the greatest. Pure.
int64_t fastestSlots(int64_t least, int64_t most, const std::function<double(int64_t slots)> &seconds);

/// A planned step beside a ring.
struct StepWithRing {
  /// Makes a twin whose ring has so many slots.
  std::function<StepTwin(int64_t slots)> twin;
  /// The slots that the ring has; fewer may be chosen, more are not.
  int64_t slots = 0;
  /// The budget that the step must keep to, with all that the device holds beside it.
  uint64_t budgetBytes = 0;
  /// The bytes that the device holds when the step begins, with the ring as it is; nothing
  /// for as many as the twin holds.
  std::optional<uint64_t> liveBytes;
  /// The times of real steps; null for those of the twin's device.
  const MeasuredStep *measured = nullptr;
};

/// Returns the number of slots with which a step by the plan for its budget goes fastest:
/// all that there are, or fewer, down to where nothing leaves any more. Addresses are not
/// packed here; a step that fits by its bytes may need a little more. Plays two steps on at
/// most five twins, or on one where nothing leaves or compute never waits.
int64_t fastestSlots(const StepWithRing &step);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_RINGSLOTS_H
