//===- RateSchedule.cpp - learning rates that change ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/RateSchedule.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// A value on a cosine from `begin`, at a progress of 0, to `end` at 1.
static double onCosine(double begin, double end, double progress) {
  return end + (begin - end) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, progress)));
}

/// A straight line up over `warmup` steps, then `later` of the progress from there to `steps`.
template <typename Later> static RateSchedule warmedUp(double rate, int64_t steps, int64_t warmup, Later later) {
  return [=](int64_t step) {
    if (step < warmup)
      return rate * double(step + 1) / double(warmup);
    return later(std::min(1.0, double(step - warmup) / double(std::max<int64_t>(1, steps - warmup))));
  };
}

RateSchedule warmupCosine(double rate, int64_t steps, int64_t warmup, double last) {
  return warmedUp(rate, steps, warmup, [=](double progress) { return onCosine(rate, last, progress); });
}

RateSchedule warmupLinear(double rate, int64_t steps, int64_t warmup, double last) {
  return warmedUp(rate, steps, warmup, [=](double progress) { return rate + (last - rate) * progress; });
}

RateSchedule oneCycle(double rate, int64_t steps, double rise, double start, double last) {
  if (steps < 1)
    throw Error(ErrorCode::InvalidArgument, "one_cycle has " + std::to_string(steps) + " steps; give at least one");
  if (!(rise > 0 && rise < 1)) {
    char text[32];
    throw Error(ErrorCode::InvalidArgument, "one_cycle rises within a share of " +
                                                std::string(text, std::to_chars(text, text + sizeof text, rise).ptr) +
                                                " of its steps; give one between 0 and 1");
  }
  double top = rise * double(steps) - 1;
  return [=](int64_t at) {
    double step = double(at);
    if (step <= top)
      return onCosine(start * rate, rate, top > 0 ? step / top : 1.0);
    return onCosine(rate, last * rate, (step - top) / std::max(double(steps - 1) - top, 1e-9));
  };
}

RateSchedule stepDecay(double rate, int64_t every, double factor) {
  if (every < 1)
    throw Error(ErrorCode::InvalidArgument, "step_decay falls every " + std::to_string(every) + " steps; give at least 1");
  return [=](int64_t step) { return rate * std::pow(factor, double(step / every)); };
}

RateSchedule stepDecay(double rate, std::span<const int64_t> at, double factor) {
  return [rate, factor, at = std::vector(at.begin(), at.end())](int64_t step) {
    auto falls = std::ranges::count_if(at, [step](int64_t each) { return step >= each; });
    return rate * std::pow(factor, double(falls));
  };
}

} // namespace segue::inline runtime
