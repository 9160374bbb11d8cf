//===- BlockKernels.h - loops that move elements ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loops that move elements of 1, 2, 4 or 8 bytes without changing them: rows of
// runs, single elements at a step, transposed blocks. BlockKernels.cpp is
// compiled for x86-64, x86-64-v3 and x86-64-v4.
//
// Steps are in bytes, may be 0 for a source, and need not be aligned. A kernel
// that streams writes around the caches; the caller orders such stores with a
// fence before it tells anyone that the copy is done.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_TRANSFER_BLOCKKERNELS_H
#define SEGUE_RUNTIME_LIB_TRANSFER_BLOCKKERNELS_H

#include <cstddef>
#include <cstdint>

namespace segue::inline runtime {

/// Runs of memory that somebody will read soon, `step` bytes apart.
struct ReadSoon {
  const std::byte *source = nullptr;
  int64_t step = 0, rows = 0, bytes = 0;
};

struct BlockKernels {
  const char *name;

  /// Copies `rows` runs of `bytes` adjacent bytes.
  void (*copyRows)(int64_t rows, int64_t bytes, const std::byte *source, int64_t sourceStep, std::byte *target,
                   int64_t targetStep, bool stream);

  /// Copies one run around the caches.
  void (*stream)(int64_t bytes, const std::byte *source, std::byte *target);

  /// These and the following tables are by log2 of the bytes of an element. `move` copies
  /// one element after the other, each side at its step.
  void (*move[4])(int64_t count, const std::byte *source, int64_t sourceStep, std::byte *target, int64_t targetStep);
  /// Writes one element `count` times, side by side.
  void (*fill[4])(int64_t count, const std::byte *value, std::byte *target);
  /// Does target[c * targetStep + r * size] = source[r * sourceStep + c * size]. While it writes at last, `next` may be
  /// asked for, which the caller reads after the call.
  void (*transpose[4])(int64_t rows, int64_t columns, const std::byte *source, int64_t sourceStep, std::byte *target,
                       int64_t targetStep, bool stream, const ReadSoon &next);
};

extern const BlockKernels blockKernelsV1, blockKernelsV3, blockKernelsV4;

enum class InstructionSet : int8_t;

/// Returns the best table up to `most` that this processor runs.
const BlockKernels &blockKernels(InstructionSet most);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_TRANSFER_BLOCKKERNELS_H
