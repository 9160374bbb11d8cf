//===- SimProfile.h - what a simulated device is like -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The figures behind a spec `sim:...`: capacities, the link, and how fast the
// device of `sim:virtual` computes. Options, each with its default:
//
//   host=<this machine's>   dram=512MiB   pinned=256MiB   l1=1MiB
//   disk=FOLDER?...         a disk below the host's memory (DiskOptions.h). host= is then what
//                           may stay in that memory, all of it page-locked, in the place of
//                           pinned=; the rest goes on to the disk
//   link=16GB/s             both directions; h2d= and d2h= set one each
//   latency=10us            of each copy over the link
//   threads=N               kernels run on N threads (default: all)
//   profile=FILE.json       figures in a file (DeviceProfile.h); those given here win
//   fail-h2d=N, fail-d2h=N  the N-th copy of that direction since the device was
//                           opened fails; NxK: K from it on, N+: all from it on
//   fail-dram=N             so does the N-th try to take memory of dram
//   adversarial[=SEED]      any order that fences allow; with it, fail-copy=0.1
//                           and fail-alloc=0.1 (chances), shrink=0.5 (the part
//                           of dram that is left at times), stall=0.1 (the
//                           chance that a wait with a limit runs out of time)
//   streams                 bodies of work run when they are enqueued, and what
//                           they give to the device when its turn comes, as on
//                           the streams of a GPU; also with adversarial
//   virtual                 no bytes and no kernels, virtual time; with it,
//                           flops=100TFLOP/s, membw=1000GB/s, launch=5us,
//                           hostmem=8GB/s (memcpy of the host, on one thread),
//                           disk=0B, a size: where what leaves then goes, over the link,
//                           or from the host's memory with diskread=2GB/s,diskwrite=1GB/s
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMPROFILE_H
#define SEGUE_LIB_DRIVERS_SIMPROFILE_H

#include "DiskOptions.h"
#include <optional>

namespace segue::inline runtime {

struct SimProfile {
  uint64_t hostBytes = 0, dramBytes = 0, pinnedBytes = 0, l1Bytes = 0, diskBytes = 0;
  /// The mapping of the disk's file, if there are bytes; otherwise null.
  std::byte *diskBegin = nullptr;
  /// The file, where there are to be bytes; null without a disk.
  std::shared_ptr<const DiskOptions> disk;
  /// Where the disk lies below the host's memory.
  std::optional<LinkSpeed> diskLink;
  double h2dBytesPerSecond = 0, d2hBytesPerSecond = 0, latencySeconds = 0;
  int threads = 0;

  /// The seed, if adversarial.
  std::optional<uint64_t> adversary;
  double failCopy = 0, failAlloc = 0, stall = 0;
  /// The part of dram that is left while it is shrunk; with 1 it never shrinks.
  double shrink = 1;

  /// A run of `count` copies of a direction, or tries to allocate, from the one with the
  /// number `first`; the first of all has number 1.
  struct FaultRange {
    uint64_t first = 0, count = 0;
  };
  FaultRange failToDevice, failToHost, failDram;
  bool hasFaults() const { return adversary || failToDevice.count || failToHost.count || failDram.count; }

  /// True if bodies run when they are enqueued.
  bool streams = false;
  bool isVirtual = false;
  double flopsPerSecond = 0, memoryBytesPerSecond = 0, hostBytesPerSecond = 0, launchSeconds = 0;

  /// The spec that opens the device again, seed included.
  std::string name;

  /// The spec that opens the device of virtual time on which steps for this one are planned.
  std::string twin;

  /// Parses a spec. Throws InvalidArgument for what it cannot use, IoFailed or FileCorrupt
  /// for a profile file.
  static SimProfile parse(DeviceOptions options);
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMPROFILE_H
