//===- RateSchedule.h - learning rates that change --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Learning rates as functions of the step, which is 0 at the first of the whole
// training: whoever resumes goes on where the rate was. Python's schedules and
// those of `segue-run train --lr-schedule` are these.
//
//   RateSchedule rate = warmupCosine(3e-4, /*steps=*/1000, /*warmup=*/100);
//   session.step(batch, rate(session.stepCount()));
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_RATESCHEDULE_H
#define SEGUE_RUNTIME_SESSION_RATESCHEDULE_H

#include <cstdint>
#include <functional>
#include <span>

namespace segue::inline runtime {

using RateSchedule = std::function<double(int64_t step)>;

/// Rises to `rate` in a straight line over `warmup` steps, and falls by a cosine to `last` at step `steps`.
RateSchedule warmupCosine(double rate, int64_t steps, int64_t warmup = 0, double last = 0);

/// Rises to `rate` in a straight line over `warmup` steps, and goes in another one to `last` at step `steps`.
RateSchedule warmupLinear(double rate, int64_t steps, int64_t warmup = 0, double last = 0);

/// Rises by a cosine from `start * rate` to `rate` within the share `rise` of all steps, and falls by another one to
/// `last * rate`, as PyTorch's OneCycleLR does. Throws InvalidArgument without a step, or for a share that is not
/// between 0 and 1.
RateSchedule oneCycle(double rate, int64_t steps, double rise = 0.3, double start = 1 / 25., double last = 1 / 25e4);

/// Multiplies `rate` by `factor` for each `every` steps that are done. Throws InvalidArgument for less than one.
RateSchedule stepDecay(double rate, int64_t every, double factor = 0.1);
/// Multiplies `rate` by `factor` for each step of these that has come.
RateSchedule stepDecay(double rate, std::span<const int64_t> at, double factor = 0.1);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_RATESCHEDULE_H
