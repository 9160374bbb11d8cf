//===- DiskOptions.cpp - the disk of a device's spec ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DiskOptions.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <filesystem>

namespace segue::inline runtime {

DiskOptions::DiskOptions(const DeviceOptions &options, const LinkSpeed &speed) : speed(speed) {
  std::string text = options.text("disk", ""), details;
  if (size_t mark = text.rfind('?'); mark != std::string::npos) {
    details = text.substr(mark + 1);
    text.resize(mark);
  }
  folder = std::move(text);
  if (folder.empty())
    options.fail("disk= needs a folder");
  std::ranges::replace(details, '&', ',');
  DeviceOptions disk(options.driver() + ":disk", details);
  static constexpr std::string_view keys[] = {"capacity", "read", "write", "direct", "engine"};
  disk.requireKnown(keys);
  std::error_code unknown;
  std::filesystem::space_info room = std::filesystem::space(folder, unknown);
  capacityBytes = disk.bytes("capacity", unknown ? uint64_t(1) : std::max<uint64_t>(room.available / 2, 1));
  this->speed.h2dBytesPerSecond = disk.bytesPerSecond("read", speed.h2dBytesPerSecond);
  this->speed.d2hBytesPerSecond = disk.bytesPerSecond("write", speed.d2hBytesPerSecond);
  spill.mayBeDirect = disk.integer("direct", 1, 0, 1);
  std::string engine = disk.text("engine", "");
  if (!engine.empty() && engine != "ring" && engine != "threads")
    disk.fail("option \"engine\" is ring or threads, not \"" + engine + "\"");
  if (!engine.empty())
    spill.engine = engine == "ring" ? SpillOptions::Engine::Ring : SpillOptions::Engine::Threads;
  // A model has many small tensors, each of which would wait for the disk by itself.
  spill.cachedBelow = 64 << 10;
}

uint64_t hostAboveDisk(const DeviceOptions &options, uint64_t pinnedBytes) {
  if (options.has("host") && options.has("pinned"))
    options.fail("with a disk, host= is page-locked memory; leave pinned= out");
  uint64_t bytes = options.bytes("host", pinnedBytes);
  requireHostAboveDisk(options, options.has("host") ? "host=" : "pinned=", bytes);
  return bytes;
}

void requireHostAboveDisk(const DeviceOptions &options, std::string_view option, uint64_t bytes) {
  if (bytes < leastHostAboveDisk)
    options.fail(std::string(option) + std::to_string(bytes) +
                 " is too little memory of the host above a disk: buffers to and from the disk need " +
                 std::to_string(leastHostAboveDisk) + " bytes at least");
}

} // namespace segue::inline runtime
