//===- DiskTier.h - the disk below a device's memory ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A device with a disk (Space::Disk) offers this besides its memory: the file behind
// that space, in which a checkpoint seals what lies there.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_DISKTIER_H
#define SEGUE_LIB_DRIVERS_DISKTIER_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Disk/SpillFile.h"

namespace segue::inline runtime {

class DiskTier {
public:
  /// Returns the file, whose offset 0 is the address file().data().
  virtual SpillFile &file() = 0;
  /// Takes as much of the space for good as makes `bytes` of spare blocks in all (SpillFile::addSpare); plans that are
  /// made from here on know that it is gone. Called on the thread that submits. Throws DeviceOom, with nothing taken,
  /// where that is not free, naming the capacity that would be enough for what is there now.
  virtual void requireSpare(uint64_t bytes) = 0;

protected:
  ~DiskTier() = default;
};

/// Returns null for a device without a disk of bytes.
DiskTier *diskTier(Device &device);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DISKTIER_H
