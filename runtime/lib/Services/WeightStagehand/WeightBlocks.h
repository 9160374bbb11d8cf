//===- WeightBlocks.h - what the policy keeps of a block --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_WEIGHTSTAGEHAND_WEIGHTBLOCKS_H
#define SEGUE_LIB_SERVICES_WEIGHTSTAGEHAND_WEIGHTBLOCKS_H

#include "segue/runtime/Services/WeightStagehand.h"

namespace segue::inline runtime {

struct WeightStagehand::Block : WeightBlock {
  uint32_t index = 0;
  BlockState state = BlockState::Unloaded;
  int64_t uses = 0, lastUsedStep = INT64_MIN / 2;
  /// The number of scopes that keep it, and whether the plan keeps it.
  int64_t kept = 0;
  bool isPlannedResident = false;
  int64_t changedBytes = 0;
  bool failedOnce = false, saveBackFailed = false;
  /// True if its slot is given back when it has been saved back.
  bool givesSlot = false;
  /// True if it is dropped between steps, since somebody else writes its bytes.
  bool isReadAnew = false;
  /// True if it is in pending_.
  bool isPending = false;
  bool usedInStep = false;
  /// The milliseconds of one run, the mean over the runs of the last step, in all its phases; and those of a load.
  double computeMs = 0, loadMs = 0;
  double stepComputeMs = 0;
  int64_t stepRuns = 0;
  /// The places at which the block occurs in the order of the step, ascending.
  std::vector<int64_t> positions;
};

struct WeightStagehand::Counts {
  int64_t h2dBytes = 0, d2hBytes = 0, saveBackBytes = 0;
  double copyMs = 0, computeMs = 0, stallMs = 0, fileReadMs = 0;
  int64_t stalls = 0, evictions = 0, hits = 0, late = 0, misses = 0, loads = 0, blocksUsed = 0;
  int64_t promotions = 0, nans = 0, infs = 0, deniedSpeculative = 0, rescued = 0, lent = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_WEIGHTSTAGEHAND_WEIGHTBLOCKS_H
