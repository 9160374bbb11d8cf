//===- Measured.h - how a figure is measured and written --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the measurements of a cpu and of a GPU share. Private to SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_REPORTS_MEASURED_H
#define SEGUE_LIB_REPORTS_MEASURED_H

#include "segue/runtime/Engine/Threads.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Reports/MeasureDevice.h"
#include <chrono>
#include <functional>
#include <string>

namespace segue::inline runtime {

class DeviceOptions;

inline double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs `work` until `seconds` have passed, twice at least, and returns the least that one
/// run took.
double leastSeconds(double seconds, const std::function<void()> &work);

/// Writes a figure as the options of a device are written: four digits, and the unit.
std::string figure(double value, const char *unit);

/// Returns the processor's name, as the system says it.
std::string processor();

/// Measures products as large as those of a layer of a small transformer.
double flopsPerSecond(Threads threads, double seconds);
/// Measures memory beyond all caches: each byte that a kernel reads or writes counts.
double memoryBytesPerSecond(Threads threads, double seconds);
/// Returns the rate of memcpy on one thread.
double copyBytesPerSecond(double seconds);

struct DiskFigures {
  double readBytesPerSecond, writeBytesPerSecond, latencySeconds;
};
/// Measures the disk in `folder`, as a device uses one.
DiskFigures measureDisk(const std::string &folder, uint64_t mostBytes, double seconds);

/// Measures a GPU, into a profile that has its version and `about`; `folder` is that of its
/// disk, or empty.
void measureGpu(const DeviceOptions &given, const std::string &folder, const MeasureOptions &options, Json &profile);
/// Measures the flops and membw of a GPU alone, into a profile.
void measureGpuSpeed(const DeviceOptions &given, double seconds, Json &profile);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_REPORTS_MEASURED_H
