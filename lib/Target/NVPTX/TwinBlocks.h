//===- TwinBlocks.h - blocks of threads on a processor ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs kernels of a GPU that were compiled for this machine: one block after another, each of its threads on a stack of its own,
// one at a time. A thread that waits for others gives way to them. Blocks and threads come in an order that the caller chooses, so
// that what depends on an order shows.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_NVPTX_TWINBLOCKS_H
#define SEGUE_LIB_TARGET_NVPTX_TWINBLOCKS_H

#include "segue/Target/NVPTX/GpuTwins.h"
#include <cstdint>
#include <string>

namespace segue {

/// What the code of a kernel calls in place of intrinsics, on the thread that runs its blocks. The order is part of the code.
struct TwinCalls {
  uint32_t (*thread)();
  uint32_t (*block)();
  void (*waitForBlock)();
  void (*waitForWarp)();
  /// Gives `word` to the threads of the warp; returns that of the one whose number differs by `distance` (exclusive or).
  uint32_t (*shuffle)(uint32_t word, uint32_t distance);
};
const TwinCalls &twinCalls();

/// A kernel takes its parameters as cuLaunchKernel does: pointers to them.
using TwinEntry = void (*)(void *const *parameters);

/// Runs `blocks` blocks. Returns why they cannot end, or an empty text.
std::string runTwin(TwinEntry entry, unsigned threads, uint64_t blocks, void *const *parameters, TwinOrder order);

} // namespace segue

#endif // SEGUE_LIB_TARGET_NVPTX_TWINBLOCKS_H
