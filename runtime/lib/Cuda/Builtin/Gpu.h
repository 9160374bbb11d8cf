//===- Gpu.h - a thread of a GPU, or of its twin ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the kernels of this folder are written with. A kernel takes one struct:
//
//   GPU_KERNEL(addFloats, AddArgs) {
//     for (int64_t i = gpu::firstIndex(); i < args.count; i += gpu::indexStep())
//       args.sum[i] += args.addend[i];
//   }
//
// tools/gpu-kernels compiles a file to PTX, by clang, which needs no toolkit of NVIDIA for
// that. Compiled for a processor, as C++, the same file is the kernels' twins: functions
// `NAME_twin` of one thread of one block, which the fake driver runs (schemas/TwinBlocks.h).
//
// Blocks have `gpu::blockThreads` threads along x.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_GPU_H
#define SEGUE_LIB_CUDA_BUILTIN_GPU_H

#include <cstddef>
#include <cstdint>

namespace gpu {
inline constexpr unsigned blockThreads = 256, warpThreads = 32;
} // namespace gpu

#ifdef __CUDA_ARCH__

#define GPU_KERNEL(name, Args)                                                                                         \
  extern "C" __attribute__((global, launch_bounds(256, 2))) void name(const __attribute__((grid_constant)) Args args)
#define GPU_FUNCTION [[gnu::always_inline]] __attribute__((device)) static inline
/// Before a member function.
#define GPU_MEMBER [[gnu::always_inline]] __attribute__((device)) inline
/// Memory that the threads of a block share.
#define GPU_SHARED static __attribute__((shared))
/// Before a loop over an array of a thread, so that its elements are registers.
#define GPU_UNROLL _Pragma("unroll")
/// Before a loop that would take too many registers if it were unrolled wholly.
#define GPU_UNROLL_4 _Pragma("unroll 4")
#define GPU_KEEP_LOOP _Pragma("unroll 1")

namespace gpu {
GPU_FUNCTION unsigned thread() { return __nvvm_read_ptx_sreg_tid_x(); }
GPU_FUNCTION unsigned block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
GPU_FUNCTION unsigned blocks() { return __nvvm_read_ptx_sreg_nctaid_x(); }
/// Waits for all threads of the block.
GPU_FUNCTION void waitForBlock() { __syncthreads(); }
/// Returns `value`. What is computed of the result is computed there, and takes no registers over a loop.
GPU_FUNCTION int kept(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
/// Returns the word of the thread of the warp whose number differs by `distance` (exclusive or).
GPU_FUNCTION uint32_t shuffle(uint32_t word, int distance) {
  return uint32_t(__nvvm_shfl_sync_bfly_i32(~0u, int(word), distance, 0x1f));
}
/// Lowers a word of the host's memory, which blocks of several kernels may do at once.
GPU_FUNCTION void lower(uint64_t *word, uint64_t value) {
  __scoped_atomic_fetch_min(word, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
GPU_FUNCTION void add(uint64_t *word, uint64_t value) {
  __scoped_atomic_fetch_add(word, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
} // namespace gpu

#else

#include "TwinBlocks.h"

#define GPU_KERNEL(name, Args)                                                                                         \
  static void name(const Args &args);                                                                                  \
  extern "C" void name##_twin(void *const *parameters) { name(*static_cast<const Args *>(parameters[0])); }            \
  static void name(const Args &args)
#define GPU_FUNCTION static inline
#define GPU_MEMBER inline
// The threads of a block of a twin are one thread of this machine.
#define GPU_SHARED static thread_local
#define GPU_UNROLL
#define GPU_UNROLL_4
#define GPU_KEEP_LOOP

namespace gpu {
GPU_FUNCTION unsigned thread() { return segue::twinCalls().thread(); }
GPU_FUNCTION unsigned block() { return segue::twinCalls().block(); }
GPU_FUNCTION unsigned blocks() { return segue::twinCalls().blocks(); }
GPU_FUNCTION void waitForBlock() { segue::twinCalls().waitForBlock(); }
GPU_FUNCTION int kept(int value) { return value; }
GPU_FUNCTION uint32_t shuffle(uint32_t word, int distance) {
  return segue::twinCalls().shuffle(word, uint32_t(distance));
}
GPU_FUNCTION void lower(uint64_t *word, uint64_t value) { *word = value < *word ? value : *word; }
GPU_FUNCTION void add(uint64_t *word, uint64_t value) { *word += value; }
} // namespace gpu

#endif

namespace gpu {
/// The indices of a thread where those of all blocks share [0, n).
GPU_FUNCTION int64_t firstIndex() { return int64_t(block()) * blockThreads + thread(); }
GPU_FUNCTION int64_t indexStep() { return int64_t(blocks()) * blockThreads; }

/// Returns the largest word of the block to all of its threads.
GPU_FUNCTION uint32_t largestOfBlock(uint32_t word) {
  GPU_SHARED uint32_t words[blockThreads / warpThreads];
  for (int distance = 16; distance; distance /= 2) {
    uint32_t other = shuffle(word, distance);
    word = word > other ? word : other;
  }
  if (thread() % warpThreads == 0)
    words[thread() / warpThreads] = word;
  waitForBlock();
  for (uint32_t other : words)
    word = word > other ? word : other;
  waitForBlock(); // the next call writes there
  return word;
}
} // namespace gpu

#endif // SEGUE_LIB_CUDA_BUILTIN_GPU_H
