//===- GpuSchedule.h - how threads share a kernel ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// docs/cuda.md has the measurements that the numbers come from: 16 bytes per thread and
// access, a block per row, no grid loop.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOLOOPS_GPUSCHEDULE_H
#define SEGUE_LIB_CONVERSION_SEGUETOLOOPS_GPUSCHEDULE_H

#include "LoopPlan.h"

namespace segue {

struct GpuSchedule {
  /// The threads of a block.
  int64_t threads = 256;
  /// The threads that share a row: 1, or whole warps. They are neighbours.
  int64_t team = 1;
  /// The neighbouring elements that a thread computes at once.
  int64_t lanes = 1;
  /// The units of the range that a block does.
  int64_t units = 1;
  /// The columns that a block of a column kernel sums up, side by side; threads / columns of it share the rows.
  int64_t columns = 32;

  int64_t teams() const { return threads / team; }
  static GpuSchedule of(FusedOp fused, const LoopPlan &plan);
};

/// The threads that run in step.
inline constexpr int64_t kWarp = 32;

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOLOOPS_GPUSCHEDULE_H
