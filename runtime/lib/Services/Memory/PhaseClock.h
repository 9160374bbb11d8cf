//===- PhaseClock.h - how long the phases of a step take --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A phase lasts from when the compute queue comes to it until it comes to the
// next: who submits is far ahead, and sees forward in the time that it takes to
// queue it. An entry of the queue per phase. On a device without a queue, or
// without bytes, the time of the call counts. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_MEMORY_PHASECLOCK_H
#define SEGUE_LIB_SERVICES_MEMORY_PHASECLOCK_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Services/ConductorTypes.h"
#include <atomic>
#include <memory>
#include <vector>

namespace segue::inline runtime {

class PhaseClock {
public:
  explicit PhaseClock(Device &device) : device_(device) {}

  /// Forgets the step before.
  void beginStep();
  /// `phase` begins; may be entered again.
  void enter(StepPhase phase) { marks_.push_back({phase, mark()}); }
  /// Seconds of all that was entered, which end now. With `waits`, blocks until
  /// the compute queue has come here; without, what it has not come to lasts
  /// until the time of the call.
  std::vector<PhaseSeconds> durations(bool waits);

private:
  /// Written when the queue comes to it; NaN until then.
  using Moment = std::shared_ptr<std::atomic<double>>;
  Moment mark();

  Device &device_;
  std::vector<std::pair<StepPhase, Moment>> marks_;
  uint64_t lastEntry_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_MEMORY_PHASECLOCK_H
