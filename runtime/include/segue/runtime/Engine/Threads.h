//===- Threads.h - ranges over the shared pool of threads -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All parallel work of the runtime on the CPU, launches of kernels as well as
// matmul and attention, goes through one object of this class per device. All of
// them share the workers of the process, which also serve several callers at once.
//
//   Threads threads(2);
//   threads.parallelFor(rows, 64, [&](int64_t begin, int64_t end) { ... });
//
// Denormals: while a piece runs, its thread flushes denormal results to zero
// and reads denormal operands as zero (FTZ and DAZ); the caller's mode is put
// back afterwards. A denormal gradient costs a hundred cycles per operation
// and carries no information at training precision. All pieces do so, at every
// thread count, hence results do not depend on the number of threads.
//
// Other programs: a thread that waits looks at memory for half a millisecond before
// it sleeps, and hardly at all while others want the processors. A caller waits for pieces that
// have begun and does all others itself: a thread that the system takes a processor from
// holds up one piece. A process that was forked has threads of its own.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_THREADS_H
#define SEGUE_RUNTIME_ENGINE_THREADS_H

#include <cstdint>
#include <type_traits>

namespace segue::inline runtime {

/// Flushes denormals in this thread while it lives; see the head of the file.
class FlushDenormals {
public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals &) = delete;
  FlushDenormals &operator=(const FlushDenormals &) = delete;

private:
  unsigned saved_;
};

/// The number of threads that a device may use, and the ways to use them. A value without
/// state besides the count. Any thread may call; a call from inside a piece runs serially
/// in place. Functions given must not throw.
class Threads {
public:
  /// Takes `count` threads; 0 takes OpenMP's default
  /// (OMP_NUM_THREADS, or as many as the process may run on).
  explicit Threads(int count = 0);

  int count() const { return count_; }

  /// Calls `fn(begin, end)` for pieces that cover [0, range) once. Pieces are
  /// multiples of `grain` (at least 1; the last may be short), one per thread as a rule
  /// and several where threads may come late. Returns when all are done.
  /// Cost: no allocation; a range of one grain runs in the caller.
  template <typename Fn> void parallelFor(int64_t range, int64_t grain, Fn &&fn) const {
    using Function = std::remove_reference_t<Fn>;
    splitRange(
        range, grain,
        [](void *context, int64_t begin, int64_t end) { (*static_cast<Function *>(context))(begin, end); },
        const_cast<void *>(static_cast<const void *>(&fn)));
  }

  /// Calls `fn(item, thread)` for each item of [0, items): a thread takes the
  /// next item when it has done its last, so items may cost differently. An
  /// item must not depend on `thread` (0 <= thread < count()) in its result.
  template <typename Fn> void forEachItem(int64_t items, Fn &&fn) const {
    using Function = std::remove_reference_t<Fn>;
    takeItems(
        items, [](void *context, int64_t item, int64_t thread) { (*static_cast<Function *>(context))(item, thread); },
        const_cast<void *>(static_cast<const void *>(&fn)));
  }

private:
  using Piece = void (*)(void *context, int64_t first, int64_t second);
  void splitRange(int64_t range, int64_t grain, Piece piece, void *context) const;
  void takeItems(int64_t items, Piece piece, void *context) const;

  int count_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_THREADS_H
