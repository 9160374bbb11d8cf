//===- LinkSpeed.h - how fast the link is -----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DEVICE_LINKSPEED_H
#define SEGUE_RUNTIME_DEVICE_LINKSPEED_H

#include <algorithm>

namespace segue::inline runtime {

/// The link between host and device: bytes per second of each direction, and the
/// seconds that a copy takes besides.
struct LinkSpeed {
  double h2dBytesPerSecond = 0, d2hBytesPerSecond = 0, latencySeconds = 0;
};

/// Returns the link on which bytes take as long as where they pass both `a` and `b` at once.
constexpr LinkSpeed busiest(const LinkSpeed &a, const LinkSpeed &b) {
  return {std::min(a.h2dBytesPerSecond, b.h2dBytesPerSecond), std::min(a.d2hBytesPerSecond, b.d2hBytesPerSecond),
          std::max(a.latencySeconds, b.latencySeconds)};
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DEVICE_LINKSPEED_H
