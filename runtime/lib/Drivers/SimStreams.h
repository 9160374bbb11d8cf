//===- SimStreams.h - what bodies give to a device, for later ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `sim:streams` runs the body of an entry when it is enqueued, on the thread that
// enqueues it, and keeps what the body gives to the device: copies, launches, calls of
// the engine, stamps and host functions. These run when the entry's turn comes, as on
// the streams of a GPU. A closure that computes on memory in a body comes too early
// there, and one that keeps an address of its own frame too late.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_SIMSTREAMS_H
#define SEGUE_LIB_DRIVERS_SIMSTREAMS_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include <vector>

namespace segue::inline runtime {

using StreamOperation = std::function<void()>;

/// Returns the list to which the body that runs on this thread gives its operations; null outside of a body.
std::vector<StreamOperation> *&openStream();

/// Does `operation` now, or, in a body, when the entry's turn comes.
template <typename Operation> void giveToStream(Operation operation) {
  if (std::vector<StreamOperation> *stream = openStream())
    stream->push_back(std::move(operation));
  else
    operation();
}

/// Runs the body of `work`. The work that it returns does the operations which the body
/// gave, in vain if the entry may not begin: a stream cannot be told to leave out what it
/// was given.
Work recordBody(Work work);

/// An engine whose runs of plans and operations are given to the stream.
class StreamEngine final : public Engine {
public:
  explicit StreamEngine(Engine &engine) : engine_(engine) {}

  std::shared_ptr<const MatmulPlan> planMatmul(const MatmulSpec &spec) override;
  std::shared_ptr<const QuantizedMatmulPlan> planQuantizedMatmul(const QuantizedMatmulSpec &spec) override;
  std::shared_ptr<const AttentionPlan> planAttention(const AttentionSpec &spec) override;
  std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const AttentionGradSpec &spec) override;
  std::shared_ptr<const LibraryPlan> planLibraryCall(const LibraryCallSpec &spec) override;
  void fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) override;
  void add(float *sum, const float *addend, int64_t count) override;
  void countNonFinite(const NonFiniteRows &rows, const void *data, NonFiniteCount &count) override;
  void scale(float *data, int64_t count, float factor) override;
  void rotate(float *rows, int64_t count, int64_t columns) override;
  void restore(const LowBitRows &rows) override;
  uint64_t fusedCalls() const override { return engine_.fusedCalls(); }

private:
  Engine &engine_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_SIMSTREAMS_H
