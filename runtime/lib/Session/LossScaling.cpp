//===- LossScaling.cpp - losses that are scaled for f16 -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/LossScaling.h"
#include "segue/runtime/Error.h"
#include <charconv>
#include <cmath>

namespace segue::inline runtime {

static bool isScale(double scale) { return scale > 0 && std::isfinite(float(scale)); }

void LossScaling::check() const {
  if (isScale(scale) && growth > 1 && std::isfinite(growth) && backoff > 0 && backoff < 1 && interval >= 1)
    return;
  throw Error(ErrorCode::InvalidArgument,
              "loss scaling: scale " + std::to_string(scale) + ", growth " + std::to_string(growth) + ", backoff " +
                  std::to_string(backoff) + " and interval " + std::to_string(interval) +
                  "; they must be above 0 and finite, above 1, between 0 and 1, and at least 1");
}

void LossScaling::stepEnded(bool isFinite) {
  if (!isFinite) {
    scale *= backoff;
    finiteSteps = 0;
  } else if (++finiteSteps == interval) {
    if (isScale(scale * growth))
      scale *= growth;
    finiteSteps = 0;
  }
}

std::string LossScaling::state() const {
  char text[32];
  auto [end, error] = std::to_chars(text, text + sizeof text, scale);
  return std::string(text, end) + " " + std::to_string(finiteSteps);
}

void LossScaling::restore(std::string_view state) {
  double readScale = 0;
  int64_t readSteps = 0;
  const char *end = state.data() + state.size();
  auto first = std::from_chars(state.data(), end, readScale);
  bool isWhole = first.ec == std::errc() && first.ptr != end && *first.ptr == ' ';
  auto second = isWhole ? std::from_chars(first.ptr + 1, end, readSteps) : first;
  if (!isWhole || second.ec != std::errc() || second.ptr != end || !isScale(readScale) || readSteps < 0)
    throw Error(ErrorCode::FileCorrupt, "the loss scale of the checkpoint is \"" + std::string(state) +
                                            "\", not a factor and a number of steps; use another checkpoint");
  scale = readScale;
  finiteSteps = readSteps;
}

} // namespace segue::inline runtime
