//===- SpillEngine.h - what performs the pieces of a transfer ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A spill file gives single operations to an engine and hears how they ended, as the
// system says it. What to do about that (to go on after a short read, to try again)
// is the file's. Tests put an engine of their own between.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_DISK_SPILLENGINE_H
#define SEGUE_RUNTIME_LIB_DISK_SPILLENGINE_H

#include "segue/runtime/Disk/SpillFile.h"
#include <functional>

namespace segue::inline runtime {

/// One read or write of a range, or the writing out of what the page cache holds of it.
struct SpillOperation {
  enum class Kind { Read, Write, Settle };

  Kind kind = Kind::Read;
  /// True for the descriptor that goes through the page cache.
  bool isCached = false;
  std::byte *memory = nullptr;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  /// A number that comes back with the end.
  uint32_t tag = 0;
};

/// The end of an operation: a count of bytes, which may be short (0 for Settle), or an
/// errno below zero.
struct SpillEnd {
  uint32_t tag = 0;
  int result = 0;
};

/// The descriptors of one file; `direct` is -1 without O_DIRECT. The engine does not
/// own them.
struct SpillDescriptors {
  int cached = -1;
  int direct = -1;
  int of(const SpillOperation &operation) const { return operation.isCached ? cached : direct; }
};

/// Performs the operations of one direction. Used by one thread at a time. Destroyed
/// with nothing in flight.
class SpillEngine {
public:
  virtual ~SpillEngine() = default;

  virtual std::string_view name() const = 0;
  /// The number of operations that may be in flight.
  virtual uint32_t depth() const = 0;
  /// Takes an operation, beyond at most depth() - 1 others in flight. Does not block
  /// for the disk, and never fails: what the system refuses ends with its errno.
  virtual void begin(const SpillOperation &operation) = 0;
  /// Blocks until an operation in flight has ended, in whatever order.
  virtual SpillEnd waitForOne() = 0;
};

/// Performs an operation on the calling thread; returns what SpillEnd::result holds.
int performSpillOperation(const SpillDescriptors &descriptors, const SpillOperation &operation);

/// Returns null where the kernel refuses io_uring or the build has no liburing, with the
/// reason in `refusal`.
std::unique_ptr<SpillEngine> makeRingEngine(const SpillDescriptors &descriptors, uint32_t depth, std::string &refusal);
/// Makes an engine of as many threads as pay, at most `depth`. Throws IoFailed if not one can be started.
std::unique_ptr<SpillEngine> makeThreadEngine(const SpillDescriptors &descriptors, uint32_t depth);

/// A SpillSeam lets tests change a file and its system.
struct SpillSeam {
  /// Returns the engine that takes the place of `engine`, for writes or for reads.
  std::function<std::unique_ptr<SpillEngine>(std::unique_ptr<SpillEngine> engine, bool isForWrites)> replaceEngine;
  /// With false, the file behaves as on a file system without O_TMPFILE, or without fallocate.
  bool hasUnnamedFiles = true;
  bool hasReservation = true;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_DISK_SPILLENGINE_H
