//===- DiskTier.h - the disk below a device's memory ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A device with a disk (Space::Disk) offers this besides its memory: the file behind
// that space, in which a checkpoint seals what lies there, and the part of it that
// seals take.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_DISKTIER_H
#define SEGUE_LIB_DRIVERS_DISKTIER_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Disk/SpillFile.h"
#include <optional>
#include <span>

namespace segue::inline runtime {

/// The bytes of a disk that seals take beside what lies there: a second place for all that a step changes, and room for
/// copies of what never changes and lies elsewhere.
struct SealRoom {
  uint64_t spareBytes = 0, copyBytes = 0;
  uint64_t bytes() const { return spareBytes + copyBytes; }
};

class DiskTier {
public:
  /// `file` is the disk of `device`, both of which outlive this; `twin` is the spec of its twin.
  DiskTier(Device &device, SpillFile &file, std::string twin) : device_(device), file_(file), twin_(std::move(twin)) {}

  /// Returns the file, whose offset 0 is the address file().data().
  SpillFile &file() const { return file_; }
  /// Returns the spec of the device's twin, whose disk is as large as what seals leave of this one.
  const std::string &twin() const { return twin_; }

  /// Takes as much of the space for good as makes `room` in all; plans that are made from here on know that it is gone.
  /// Called on the thread that submits. Throws DeviceOom, with nothing taken, where that is not free, naming the
  /// capacity that would be enough for what is there now.
  void require(const SealRoom &room);
  /// Returns what was taken.
  const SealRoom &taken() const { return taken_; }
  /// Returns the room for copies: offsets of the file that nobody else uses, in whole blocks.
  std::span<const SpillExtent> copyRoom() const { return copyRoom_; }

private:
  std::vector<SpillExtent> take(uint64_t bytes);

  Device &device_;
  SpillFile &file_;
  std::string twin_;
  SealRoom taken_;
  std::vector<SpillExtent> copyRoom_;
};

/// A device that may have a disk is this besides.
class DiskHolder {
public:
  virtual ~DiskHolder() = default;

  /// Returns null without a disk of bytes.
  DiskTier *diskTier() { return diskTier_ ? &*diskTier_ : nullptr; }
  const DiskTier *diskTier() const { return diskTier_ ? &*diskTier_ : nullptr; }

protected:
  /// Says which file is the disk of `device`, and the spec of the device's twin.
  void setDisk(Device &device, SpillFile &file, std::string twin) { diskTier_.emplace(device, file, std::move(twin)); }

private:
  std::optional<DiskTier> diskTier_;
};

/// Returns null for a device without a disk of bytes.
DiskTier *diskTier(Device &device);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DISKTIER_H
