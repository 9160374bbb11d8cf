//===- LinkTimes.h - how long a tensor is on an edge ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PLAN_LINKTIMES_H
#define SEGUE_LIB_PLAN_LINKTIMES_H

#include "segue/runtime/Plan/StepProfile.h"

namespace segue::inline runtime {

/// Returns latency + bytes / bandwidth (rule R5 of runtime stitching); no bytes take no
/// time.
inline double linkSeconds(uint64_t bytes, double bytesPerSecond, double latency) {
  return bytes ? latency + double(bytes) / bytesPerSecond : 0;
}

inline double outSeconds(const ResidencyGap &gap, const LinkSpeed &edge) {
  return linkSeconds(gap.outBytes, edge.d2hBytesPerSecond, edge.latencySeconds);
}

inline double inSeconds(const ResidencyGap &gap, const LinkSpeed &edge) {
  return linkSeconds(gap.inBytes, edge.h2dBytesPerSecond, edge.latencySeconds);
}

/// Both ways, on the busiest edge of its way.
inline double roundSeconds(const ResidencyGap &gap, const StepProfile &profile, bool isOnDisk) {
  LinkSpeed edge = isOnDisk ? busiest(profile.link, profile.below->disk) : profile.link;
  return outSeconds(gap, edge) + inSeconds(gap, edge);
}

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PLAN_LINKTIMES_H
