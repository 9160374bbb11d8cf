//===- GpuFigures.h - how fast a GPU is taken to be -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Figures that a step is planned with before one has run: those of the profile that
// `profile=FILE` names, otherwise what follows from the driver's numbers of clocks and
// multiprocessors, otherwise those that were measured on an H100 (docs/cuda.md).
// A session plans again with the times that its steps take.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_GPUFIGURES_H
#define SEGUE_LIB_CUDA_GPUFIGURES_H

#include "../Drivers/DiskOptions.h"
#include "Context.h"

namespace segue::inline runtime::cuda {

struct GpuFigures {
  LinkSpeed link{25e9, 25e9, 7.6e-6};
  /// Of a disk below the host's memory, where its spec says nothing of it.
  LinkSpeed disk = usualDisk;
  double flopsPerSecond = 684e12, memoryBytesPerSecond = 3028e9, hostBytesPerSecond = 12e9, launchSeconds = 2e-6;

  /// Asks the driver, and then the profile; without one `profile` is empty. Throws what
  /// readDeviceProfile does.
  GpuFigures(const Context &context, const std::string &profile);

  /// Returns the spec of the device of virtual time for a GPU with so much memory.
  std::string twin(uint64_t dramBytes, uint64_t l1Bytes, uint64_t pinnedBytes, uint64_t hostBytes) const;
  /// The same with a disk of this size and speed below the page-locked memory.
  std::string twinAboveDisk(uint64_t dramBytes, uint64_t l1Bytes, uint64_t pinnedBytes, uint64_t diskBytes,
                            const LinkSpeed &speed) const;

private:
  std::string speeds() const;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_GPUFIGURES_H
