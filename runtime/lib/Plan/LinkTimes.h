//===- LinkTimes.h - how long a tensor is on the link -----------*- C++ -*-===//
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

inline double outSeconds(const ResidencyGap &gap, const LinkSpeed &link) {
  return linkSeconds(gap.outBytes, link.d2hBytesPerSecond, link.latencySeconds);
}

inline double inSeconds(const ResidencyGap &gap, const LinkSpeed &link) {
  return linkSeconds(gap.inBytes, link.h2dBytesPerSecond, link.latencySeconds);
}

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PLAN_LINKTIMES_H
