//===- DiskTier.cpp - the disk below a device's memory --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DiskTier.h"
#include "DeviceOptions.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include <algorithm>
#include <cstdio>

namespace segue::inline runtime {

DiskTier *diskTier(Device &device) {
  auto *holder = dynamic_cast<DiskHolder *>(&device);
  return holder ? holder->diskTier() : nullptr;
}

static std::string mebibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / (1 << 20));
  return text;
}

/// Returns the spec of a device of virtual time with another size of its disk.
static std::string withDisk(const std::string &spec, uint64_t bytes) {
  size_t colon = spec.find(':');
  DeviceOptions options(spec.substr(0, colon), spec.substr(colon + 1));
  options.set(name(Space::Disk), std::to_string(bytes));
  return options.spec();
}

void DiskTier::require(const SealRoom &room) {
  auto missing = [](uint64_t wanted, uint64_t taken) {
    return SpillFile::inBlocks(wanted - std::min(wanted, taken));
  };
  SealRoom more{missing(room.spareBytes, taken_.spareBytes), missing(room.copyBytes, taken_.copyBytes)};
  if (!more.bytes())
    return;
  DeviceMemory &memory = device_.memory();
  uint64_t budget = memory.budget(Space::Disk), live = memory.liveBytes(Space::Disk);
  uint64_t free = std::min(budget - std::min(budget, live), device_.freeMemory(Space::Disk).bytes);
  if (more.bytes() > free)
    throw Error(ErrorCode::DeviceOom,
                "checkpoints that seal what lies on the disk need " + mebibytes(room.bytes()) +
                    " of it beside what is there (a second place for all that a step changes" +
                    (room.copyBytes ? ", and a copy of what is frozen and lies elsewhere" : "") + "), and " +
                    mebibytes(free) + " of " + mebibytes(file_.capacity()) + " are free in " + file_.folder().string() +
                    "; give it a capacity of " + mebibytes(file_.capacity() + more.bytes() - free) +
                    " (--spill-capacity, spill_capacity=) and what a step wants there, both of which "
                    "segue-run fit --seal counts, or seal nothing");
  memory.setBudget(Space::Disk, budget - more.bytes());
  for (const SpillExtent &extent : take(more.spareBytes))
    file_.addSpare(extent.offset, extent.bytes);
  std::ranges::copy(take(more.copyBytes), std::back_inserter(copyRoom_));
  taken_ = {taken_.spareBytes + more.spareBytes, taken_.copyBytes + more.copyBytes};
  twin_ = withDisk(twin_, memory.budget(Space::Disk));
}

std::vector<SpillExtent> DiskTier::take(uint64_t bytes) {
  std::vector<SpillExtent> extents;
  while (bytes) {
    uint64_t largest = device_.freeMemory(Space::Disk).largestRange / SpillFile::block * SpillFile::block;
    uint64_t size = std::min(bytes, largest);
    MemoryBlock block = size ? device_.takeMemory(Space::Disk, size, uint32_t(SpillFile::block), Lifetime::Long)
                             : MemoryBlock();
    if (!block.data)
      throw Error(ErrorCode::DeviceOom, "the disk has no whole blocks left for checkpoints that seal what lies there");
    device_.wait(block.after);
    extents.push_back({uint64_t(static_cast<std::byte *>(block.data) - file_.data()), size});
    bytes -= size;
  }
  return extents;
}

} // namespace segue::inline runtime
