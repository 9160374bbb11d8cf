//===- DiskOptions.h - the disk of a device's spec --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What stands behind disk= in the spec of a device, the same for every device that has one:
//
//   disk=FOLDER     with, behind a question mark and parted by &:
//     capacity=       reserved when the device is opened (default: half of what is free)
//     read=2GB/s, write=1GB/s   what plans expect of the disk at first, before what a
//                     profile says; they go on with measured times. Nothing is measured
//                     before, so that the same run has the same plan, and a refusal
//                     names the same budget
//     direct=0        through the page cache
//     engine=         ring or threads (default: the best there is)
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_DISKOPTIONS_H
#define SEGUE_LIB_DRIVERS_DISKOPTIONS_H

#include "DeviceOptions.h"
#include "segue/runtime/Device/LinkSpeed.h"
#include "segue/runtime/Disk/SpillFile.h"

namespace segue::inline runtime {

struct DiskOptions {
  /// Reads disk= of `options`, which has it. `speed`: where the text says none. Nothing is made or
  /// reserved; a folder that is none is found when the file is opened. Throws InvalidArgument.
  DiskOptions(const DeviceOptions &options, const LinkSpeed &speed);

  /// The capacity in whole blocks of a file.
  uint64_t wholeBytes() const { return SpillFile::inBlocks(capacityBytes); }

  std::string folder;
  uint64_t capacityBytes = 0;
  /// Reading is h2d, writing d2h.
  LinkSpeed speed;
  SpillOptions spill;
};

/// Returns the bytes of page-locked memory above a disk that lies below the host's memory: what host= says, all that
/// may stay there, or else `pinnedBytes`. Throws InvalidArgument where both are given, or too little.
uint64_t hostAboveDisk(const DeviceOptions &options, uint64_t pinnedBytes);
/// Throws InvalidArgument if page-locked memory, which `option` says, is too little above a disk.
void requireHostAboveDisk(const DeviceOptions &options, std::string_view option, uint64_t bytes);
/// Copies of blocks that are no smaller than one of the disk are fastest from such addresses of the memory above it:
/// from others each byte is copied once more.
inline uint32_t alignmentAboveDisk(uint64_t bytes) { return bytes >= SpillFile::block ? 512 : 1; }

/// A call to a disk is expected to take so long besides its bytes.
inline constexpr double diskLatencySeconds = 100e-6;
/// What plans expect of a disk of which nothing is said.
inline constexpr LinkSpeed usualDisk{2e9, 1e9, diskLatencySeconds};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DISKOPTIONS_H
