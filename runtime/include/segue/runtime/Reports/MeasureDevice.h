//===- MeasureDevice.h - how fast this machine is ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Measures what plans and forecasts ask about a cpu or a GPU and the disk below it, by the
// code that trains: its products, its threads or streams, its spill file.
// `segue-run profile-device`.
//
//   Json profile = measureDevice("cpu:threads=4,disk=/mnt/ssd", {.seconds = 5});
//   profile["flops"]                                  // "312.5GFLOP/s"
//
// Part of the library SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_MEASUREDEVICE_H
#define SEGUE_RUNTIME_REPORTS_MEASUREDEVICE_H

#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Json.h"
#include <cstdint>
#include <functional>
#include <string_view>

namespace segue::inline runtime {

struct MeasureOptions {
  /// About how many seconds all of it may take.
  double seconds = 5;
  /// The bytes of the disk that are reserved while it is measured; at most a quarter of
  /// what is free there is taken.
  uint64_t diskBytes = 256 << 20;
  /// Null, or gpuMemory of the library SegueCuda, which this one does not need: without it
  /// nothing is said of what the driver takes for itself.
  std::function<GpuMemory(int)> gpuMemory;
};

/// Returns a profile as `cpu:profile=`, `cuda:0,profile=` and `sim:virtual,profile=` read it. Of
/// a cpu: the memory of this machine and its threads, flops, membw, hostmem and launch; with
/// disk=FOLDER in `spec` also h2d, d2h and latency, of reads and writes there. Of a GPU, for
/// which useCuda() was called: the link's h2d, d2h and latency, flops (of bf16), membw, launch, hostmem,
/// the capacities, with disk=FOLDER diskread and diskwrite, and under `measured` what no plan
/// asks for. Each speed is the best that was seen, so that what else runs on the machine is
/// in the way of few of them. Takes about 100 MiB of memory, and 512 MiB of a GPU's. Throws
/// InvalidArgument for other devices and for options out of range, and what SpillFile and
/// the device throw.
Json measureDevice(std::string_view spec, const MeasureOptions &options = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_MEASUREDEVICE_H
