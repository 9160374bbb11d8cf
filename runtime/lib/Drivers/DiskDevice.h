//===- DiskDevice.h - a cpu with a disk below its memory --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `cpu` where its spec names a folder on a disk:
//
//   cpu:dram=2GiB,disk=/mnt/ssd                    half of what is free there
//   cpu:dram=2GiB,disk=/mnt/ssd?capacity=64GiB&read=3GB/s&write=1GB/s
//
// Programs compute in `dram` bytes of this machine's memory, set aside for them, and what
// leaves it goes to the disk (Space::Disk): the same services, plans and rings as on a
// card, with the disk in the place of the host. Inputs of programs are copied into that
// memory.
//
//   dram=           what programs, and what stays for them, may take; required
//   threads=        of kernels (default: all)
//   pinned=64MiB    buffers that copies between host and device pass through
//   profile=FILE    what plans expect of kernels and of the disk (DeviceProfile.h)
//   disk=FOLDER?... DiskOptions.h
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_DISKDEVICE_H
#define SEGUE_LIB_DRIVERS_DISKDEVICE_H

#include "DeviceOptions.h"
#include "segue/runtime/Device/Device.h"
#include <optional>

namespace segue::inline runtime {

struct SpillSeam;
struct MemoryLimit;

/// Makes a cpu with a disk. Throws InvalidArgument for what it cannot use, and what
/// SpillFile::open throws. `seam` is that of tests, which let the disk fail; it outlives
/// the device.
DeviceRef openDiskDevice(const DeviceOptions &options, const SpillSeam *seam = nullptr);

/// The keys of the options of a cpu.
inline constexpr std::string_view cpuKeys[] = {"disk", "dram", "pinned", "profile", "threads"};

/// Returns the twin of a cpu with a disk, for which nothing is reserved. Without dram= it
/// has what the profile says, or the memory of this machine; without disk=, room for
/// everything.
std::string diskTwin(const DeviceOptions &options);

/// Throws InvalidArgument if memory of `bytes` besides buffers of `pinnedBytes` is more than
/// the system lets the process hold: it would be killed in some step.
void requireWithin(const std::optional<MemoryLimit> &limit, const DeviceOptions &options, uint64_t bytes,
                   uint64_t pinnedBytes);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DISKDEVICE_H
