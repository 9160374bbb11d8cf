//===- SpillLane.h - the transfers of one direction -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A transfer is cut into operations: whole blocks go past the page cache, in pieces,
// and what is left of a block at either end goes through it. The page cache joins the
// bytes of several callers in one block, under the kernel's lock of the page; a read,
// change and write of our own would lose what another writes at the same time.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_DISK_SPILLLANE_H
#define SEGUE_RUNTIME_LIB_DISK_SPILLLANE_H

#include "SpillEngine.h"
#include <mutex>
#include <span>
#include <vector>

namespace segue::inline runtime {

/// Writes out what the page cache holds of a range; returns 0 or an errno.
int settlePages(int descriptor, uint64_t offset, uint64_t bytes);
/// Drops the clean pages of a range that no mapping shows, at both ends whole ones.
void dropPages(int descriptor, uint64_t offset, uint64_t bytes);

/// The errno of a transfer that failed, or 0, and the offset in the file where it did.
struct SpillFailure {
  int cause = 0;
  uint64_t offset = 0;
};

/// Carries the transfers of one direction, which take turns. Any thread may call.
class SpillLane {
public:
  SpillLane(std::filesystem::path folder, const SpillDescriptors &descriptors, uint64_t addressAlignment,
            uint32_t pieceBytes, std::unique_ptr<SpillEngine> engine, bool isForWrites, uint64_t cachedBelow);
  ~SpillLane();
  SpillLane(SpillLane &&other) noexcept;

  const SpillEngine &engine() const;
  /// In a child of fork, forgets the engine, whose threads are the parent's.
  void abandon();
  /// Blocks until these parts of the file are read or written, one behind the other in memory. All parts but
  /// the first begin with a block, and all but the last end with one. `offset` is the one that messages name.
  /// Throws IoFailed, with nothing in flight.
  void transfer(std::byte *memory, std::span<const SpillExtent> extents, uint64_t offset);
  /// Returns the failure instead of throwing it.
  SpillFailure tryTransfer(std::byte *memory, std::span<const SpillExtent> extents);
  SpillTraffic traffic() const;
  void forgetTraffic();

private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_DISK_SPILLLANE_H
