//===- GpuFigures.cpp - how fast a GPU is taken to be ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GpuFigures.h"
#include "../Drivers/DeviceProfile.h"
#include <cstdio>

namespace segue::inline runtime::cuda {

/// Operations of bf16 that a multiprocessor does in a cycle: an A100's.
static constexpr double flopsPerCycle = 2048;
/// The part of the memory's rate by its clock that a copy was seen to reach (an H100's 3028 of 3352 GB/s).
static constexpr double partOfMemoryRate = 0.9;

/// Returns an attribute that a driver may not know, or 0.
static double attributeOr0(const Context &context, int which) {
  try {
    return context.attribute(which);
  } catch (const Error &) {
    context.throwIfLost();
    return 0;
  }
}

GpuFigures::GpuFigures(const Context &context, const std::string &profile) {
  double kilohertz = attributeOr0(context, attributeClockRate);
  double memoryKilohertz = attributeOr0(context, attributeMemoryClockRate);
  if (kilohertz > 0)
    flopsPerSecond = kilohertz * 1e3 * flopsPerCycle * context.attribute(attributeMultiprocessors);
  if (double bits = attributeOr0(context, attributeMemoryBusWidth); bits > 0 && memoryKilohertz > 0)
    memoryBytesPerSecond = 2 * memoryKilohertz * 1e3 * bits / 8 * partOfMemoryRate; // two words in a cycle
  if (profile.empty())
    return;
  DeviceOptions known = readDeviceProfile("cuda", profile);
  double both = known.bytesPerSecond("link", 0);
  link = {known.bytesPerSecond("h2d", both > 0 ? both : link.h2dBytesPerSecond),
          known.bytesPerSecond("d2h", both > 0 ? both : link.d2hBytesPerSecond),
          known.seconds("latency", link.latencySeconds)};
  disk.h2dBytesPerSecond = known.bytesPerSecond("diskread", disk.h2dBytesPerSecond);
  disk.d2hBytesPerSecond = known.bytesPerSecond("diskwrite", disk.d2hBytesPerSecond);
  flopsPerSecond = known.flopsPerSecond("flops", flopsPerSecond);
  memoryBytesPerSecond = known.bytesPerSecond("membw", memoryBytesPerSecond);
  hostBytesPerSecond = known.bytesPerSecond("hostmem", hostBytesPerSecond);
  launchSeconds = known.seconds("launch", launchSeconds);
}

std::string GpuFigures::speeds() const {
  char speeds[256];
  std::snprintf(speeds, sizeof speeds,
                ",h2d=%.12gB/s,d2h=%.12gB/s,latency=%.12gus,flops=%.12gGFLOP/s,membw=%.12gB/s,"
                "hostmem=%.12gB/s,launch=%.12gus",
                link.h2dBytesPerSecond, link.d2hBytesPerSecond, link.latencySeconds * 1e6, flopsPerSecond / 1e9,
                memoryBytesPerSecond, hostBytesPerSecond, launchSeconds * 1e6);
  return speeds;
}

std::string GpuFigures::twin(uint64_t dramBytes, uint64_t l1Bytes, uint64_t pinnedBytes, uint64_t hostBytes) const {
  return "sim:virtual,dram=" + std::to_string(dramBytes) + ",l1=" + std::to_string(l1Bytes) + ",pinned=" +
         std::to_string(pinnedBytes) + ",host=" + std::to_string(hostBytes) + speeds();
}

std::string GpuFigures::twinAboveDisk(uint64_t dramBytes, uint64_t l1Bytes, uint64_t pinnedBytes, uint64_t diskBytes,
                                      const LinkSpeed &speed) const {
  char rates[96];
  std::snprintf(rates, sizeof rates, ",diskread=%.12gB/s,diskwrite=%.12gB/s", speed.h2dBytesPerSecond,
                speed.d2hBytesPerSecond);
  return "sim:virtual,dram=" + std::to_string(dramBytes) + ",l1=" + std::to_string(l1Bytes) + ",pinned=" +
         std::to_string(pinnedBytes) + ",disk=" + std::to_string(diskBytes) + rates + speeds();
}

} // namespace segue::inline runtime::cuda
