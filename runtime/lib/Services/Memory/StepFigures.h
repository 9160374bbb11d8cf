//===- StepFigures.h - what a step has measured -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The figures that recompute or spill is decided by between steps: when each
// tensor is saved and needed, and what computing again takes. The thread that
// submits runs ahead of a device with queues, so that its clock does not tell
// when a command runs: times are the costs of the commands before it, as the
// programs state them, and the clock of the whole step tells what they are in
// seconds.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_MEMORY_STEPFIGURES_H
#define SEGUE_LIB_SERVICES_MEMORY_STEPFIGURES_H

#include "segue/runtime/Program/Recomputation.h"
#include "segue/runtime/Services/RecomputeChoice.h"
#include <vector>

namespace segue::inline runtime {

class StepFigures {
public:
  void beginStep();
  /// `cost`: relativeCost of it.
  void onSubmit(const Program &program, double cost);
  /// Backward begins with `heldBytes` of device_dram in use, were nothing away.
  void onTurn(int64_t heldBytes);
  /// Returns the number of the record. `cost`: of the program that makes it again;
  /// absent where there is none.
  size_t onSave(int64_t bytes, std::optional<double> cost);
  void onNeed(size_t record);

  /// The records to compute again in steps like the one that ends, which computed
  /// for `seconds`, so that it fits `limitBytes`. The fastest step so far says
  /// what a unit of cost takes: others were disturbed. None where the link has
  /// carried nothing yet.
  std::vector<bool> toRecompute(double seconds, const LinkRates &link, int64_t limitBytes);

private:
  double within() const;

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
