//===- RecomputeChoice.h - recompute or spill, by cost ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Where the saved tensors of a step cannot all stay, RecomputeChoice says which to compute
// again and which to move over the link. With bandwidths d and h and the time that the
// link is idle before the bytes must be gone (f) and before they are needed (b),
//
//   spill = max(0, bytes / d - f) + max(0, bytes / h - b)
//
// is what moving one adds to the step; computing it again adds its run. The link
// works in order, so that what one takes is not idle for another: of those that
// gain by it, the one that gains most is taken off the link first, and the rest
// looked at anew. What costs least per byte leaves first, until the rest fits.
//
// Computing again takes memory, too: scratch, what comes from the same run, and
// what it is made from, which is there from then until its own need. It is chosen
// only where all needs of the step still find room.
//
// Pure: figures in, a choice out.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_RECOMPUTECHOICE_H
#define SEGUE_RUNTIME_SERVICES_RECOMPUTECHOICE_H

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace segue::inline runtime {

struct SavedCost {
  int64_t bytes = 0;
  /// Seconds since the step began at which it is saved, at which its bytes must be gone
  /// (forward ends, backward begins), and at which it is needed.
  double savedAt = 0, turn = 0, neededAt = 0;
  /// Seconds of a run that makes it again; nothing if no program does.
  std::optional<double> recomputeSeconds;
  /// The bytes of the device that this run takes: all outputs, and scratch.
  int64_t runBytes = 0;
  /// Indices of the entries that it is made from, and of those that come from the same run.
  std::vector<size_t> sources, together;
  /// The bytes in use without other saved tensors that wait for their need: when it is
  /// saved, when it is needed, and at most from then to the next need.
  int64_t heldAtSave = 0, heldAtNeed = 0, heldAfter = 0;
};

/// The limits of what a step may hold, in bytes. Between the watermarks saved tensors stay.
struct DeviceRoom {
  int64_t budgetBytes = std::numeric_limits<int64_t>::max(), highBytes = 0, lowBytes = 0;
};

struct LinkRates {
  double d2hBytesPerSecond = 0, h2dBytesPerSecond = 0;
};

enum class Residence : uint8_t { Keep, Spill, Recompute };

/// Returns the seconds that moving `bytes` out and back adds to a step.
double spillSeconds(int64_t bytes, const LinkRates &link, double idleBefore, double idleAfter);

/// Returns a choice per entry of `saved`, which are in the order of saves. `excessBytes` of
/// them have to leave.
std::vector<Residence> chooseResidence(std::span<const SavedCost> saved, const LinkRates &link, int64_t excessBytes,
                                       const DeviceRoom &room = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_RECOMPUTECHOICE_H
