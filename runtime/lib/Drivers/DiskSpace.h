//===- DiskSpace.h - a spill file as a space of a device --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An address in the mapping of a SpillFile stands for an offset on the disk, so that
// Space::Disk is an arena of addresses as other spaces are. Copies from and to such an
// address are reads and writes of the file.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_DISKSPACE_H
#define SEGUE_LIB_DRIVERS_DISKSPACE_H

#include "DiskOptions.h"
#include <memory>

namespace segue::inline runtime {

class CopyPlan;

class DiskSpace {
public:
  /// Reserves the file. Throws what SpillFile::open throws.
  explicit DiskSpace(const DiskOptions &options)
      : file_(SpillFile::open(options.folder, options.capacityBytes, options.spill)) {}

  SpillFile &file() const { return *file_; }
  bool holds(const void *address) const {
    return address >= file_->data() && address < file_->data() + file_->capacity();
  }
  uint64_t offsetOf(const void *address) const {
    return uint64_t(static_cast<const std::byte *>(address) - file_->data());
  }

  /// Copies bytes, of which both sides, one or none may lie on the disk. Blocks. Throws
  /// TransferFailed where the disk refuses: it is tried again then, as a link that stumbles is.
  void copy(void *target, const void *source, uint64_t bytes) const;
  /// Runs a plan of which a side may lie on the disk.
  void relayout(const CopyPlan &plan, const void *source, void *target, int threads) const;

private:
  std::unique_ptr<SpillFile> file_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DISKSPACE_H
