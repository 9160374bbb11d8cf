//===- PhaseClock.h - how long the phases of a step take --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A phase lasts from when the compute queue comes to it until it comes to the next:
// the thread that submits is far ahead, and sees forward in the time that it takes
// to queue it. The queue stamps an entry per phase; a device of virtual time says
// when it will come there. Nobody waits: the times of a step are known once its
// last stamp is. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_PHASECLOCK_H
#define SEGUE_LIB_SERVICES_ACTORS_PHASECLOCK_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Services/ConductorTypes.h"
#include <memory>
#include <vector>

namespace segue::inline runtime {

class PhaseClock {
public:
  /// The times of one step's phases.
  class Times {
  public:
    /// Returns true if the queue has come to the end.
    bool areKnown() const;
    /// Sets `phase_durations` of a record of Conductor's, for the phases that it names. A
    /// phase that the queue has not come to the end of lasts until `now`.
    void putInto(Json &record, double now) const;

  private:
    friend class PhaseClock;
    using Moment = TimestampRef;
    std::vector<std::pair<StepPhase, Moment>> marks_;
    Moment end_;
  };

  explicit PhaseClock(Device &device) : device_(device) {}

  /// Forgets the step before.
  void beginStep();
  /// Notes that `phase` begins; it may be entered again.
  void enter(StepPhase phase) { times_.marks_.emplace_back(phase, mark()); }
  void endStep();
  /// Returns the times of the step under way, or of the last one.
  const Times &times() const { return times_; }
  /// Blocks until those of the last step are known.
  void wait() const;

private:
  Times::Moment mark();

  Device &device_;
  Times times_;
  uint64_t lastEntry_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_PHASECLOCK_H
