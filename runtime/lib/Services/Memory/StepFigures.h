//===- StepFigures.h - what a step has measured -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The figures that recompute or spill is decided by between steps: when each
// tensor is saved and needed, what the link carries in a second, what computing
// again takes. The thread that submits runs ahead of a device with queues, so
// that its clock does not tell when a command runs: times are the costs of the
// commands before it, as the programs state them, and the clock of the whole
// step tells what they are in seconds.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_MEMORY_STEPFIGURES_H
#define SEGUE_LIB_SERVICES_MEMORY_STEPFIGURES_H

#include "segue/runtime/Program/Recomputation.h"
#include "segue/runtime/Services/RecomputeChoice.h"
#include <deque>

namespace segue::inline runtime {

/// Bytes per second of one direction of the link, of copies that end in the
/// order in which they start.
class LinkMeter {
public:
  void start(uint64_t bytes, double now) { underWay_.push_back({bytes, now}); }
  void end(double now);
  /// 0 until a copy has ended.
  double bytesPerSecond() const { return seconds_ > 0 ? double(bytes_) / seconds_ : 0; }
  void forget() { underWay_.clear(); }

private:
  struct Copy {
    uint64_t bytes;
    double since;
  };
  std::deque<Copy> underWay_;
  double lastEnd_ = 0, seconds_ = 0;
  uint64_t bytes_ = 0;
};

class StepFigures {
public:
  LinkMeter d2h, h2d;

  void beginStep(double now);
  /// `cost`: relativeCost of it.
  void onSubmit(const Program &program, double cost);
  /// Backward begins with `heldBytes` of device_dram in use, were nothing away.
  void onTurn(int64_t heldBytes);
  /// Returns the number of the record. `cost`: of the program that makes it again;
  /// absent where there is none.
  size_t onSave(int64_t bytes, std::optional<double> cost);
  void onNeed(size_t record);

  /// The records to compute again in steps like the one that ends `now`, of
  /// whose time `stalled` was spent waiting, so that it fits `limitBytes`. The
  /// fastest step so far says what a unit of cost takes: others waited for the
  /// link where no stall shows it. None where the link has carried nothing yet.
  std::vector<bool> toRecompute(double now, double stalled, int64_t limitBytes);

private:
  double within() const;

  double began_ = 0;
  /// Seconds of a unit of cost, the least that was seen; 0: none yet.
  double scale_ = 0;
  /// Costs of the programs before the current one, its own, and how many of the
  /// saves or needs that divide it are past.
  double before_ = 0, current_ = 0;
  int64_t past_ = 0, parts_ = 0;
  int64_t peakHeld_ = 0;
  /// In units of cost.
  std::vector<SavedCost> saved_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_MEMORY_STEPFIGURES_H
