//===- Collectives.h - what ranks do together -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rank is one of several processes (in tests, threads) that train one model, each with
// a device of its own. What they do together, they do in one order: every rank calls the
// same operations with tensors of the same extents.
//
//   std::shared_ptr<Transport> transport = mpiTransport();   // or InProcess.h
//   SessionOptions options;
//   options.collectives = makeCollectives(device, transport);
//
// The operations work on the device's memory, or on its home on the host. Each is appended
// to Queue::Network and returns the fence of its end; readers that are queued behind it wait
// for it as for any work, and a failure is told by the storage that it was to write. A rank
// whose own tensor was never written takes part all the same, since others wait for it: in
// sums and gatherings with bytes of 0xff (NaN of every float); what it alone has fails on
// the ranks that were to get it. One thread submits to a device, and calls this.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_COLLECTIVES_COLLECTIVES_H
#define SEGUE_RUNTIME_COLLECTIVES_COLLECTIVES_H

#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace segue::inline runtime {

class SessionRanks;
struct SessionState;

/// CollectiveFigures say what a rank has given others, and how long it has waited for them, since its collectives were made.
struct CollectiveFigures {
  /// Messages with tensors, and the bytes that were sent in them.
  uint64_t messages = 0, sentBytes = 0;
  /// The most bytes of the host's memory that messages have taken at once.
  uint64_t peakBytes = 0;
  /// How often ranks have met (exchange), and how long this one has waited there: for messages that it had given
  /// before, and for the others.
  uint64_t meetings = 0;
  double meetingSeconds = 0;
};

/// A NotSent is what an error knows of a tensor that another rank was to send, and never had.
struct __attribute__((visibility("default"))) NotSent : ErrorDetails {
  explicit NotSent(int rank) : rank(rank) {}
  int rank;
};

class Collectives {
public:
  virtual ~Collectives() = default;

  /// Return the number of this rank, from 0, and how many there are.
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// Returns the bytes of a message that are worth its cost.
  virtual uint64_t bucketBytes() const = 0;
  virtual CollectiveFigures figures() const = 0;
  /// Returns the bytes of the host's memory that messages take at most between two meetings. `calls`: the bytes of the
  /// tensors of each call.
  virtual uint64_t memoryFor(std::span<const std::vector<uint64_t>> calls) const = 0;

  /// Puts the sum over ranks in place of each tensor, which is dense, of f32, and no one else's. Several that are
  /// given at once go in few messages.
  virtual Fence allReduce(std::span<const Tensor> tensors) = 0;
  /// Puts that sum in place of the tensors of rank `root`. What the others have there is undefined then, as the call may
  /// have used it to add in.
  virtual Fence reduce(std::span<const Tensor> tensors, int root) = 0;
  /// Puts what rank `root` has in place of each tensor, which is dense.
  virtual Fence broadcast(std::span<const Tensor> tensors, int root) = 0;
  /// Writes to `part` this rank's part of the sum of `whole`, which is not changed. `whole` has `ranks()` times the
  /// elements of `part`, in the order of ranks; both are dense, of f32.
  virtual Fence reduceScatter(const Tensor &whole, const Tensor &part) = 0;
  /// Writes to `whole` the parts of all ranks, in their order. Both are dense, of one type.
  virtual Fence allGather(const Tensor &part, const Tensor &whole) = 0;
  /// Bring a dense tensor to one other rank, which receives it.
  virtual Fence send(const Tensor &tensor, int to) = 0;
  virtual Fence receive(const Tensor &tensor, int from) = 0;

  /// Returns one message of each rank, in their order, and blocks until they are there. `what` says what the messages
  /// are: where ranks are at different things, each throws RankFailed with what they are at.
  virtual std::vector<std::string> exchange(std::string_view what, std::string_view message) = 0;

  /// Returns operations of the same rank on `device`, of virtual time, that reach nobody and take none: their messages
  /// take the memory that they would take, and the links of the device. Throws InvalidArgument for another device.
  virtual std::shared_ptr<Collectives> twin(DeviceRef device) const = 0;

  /// Ends the group, as this rank cannot go on with what others wait for: their calls end, too. `why` is said to
  /// them, where the transport can. Throws nothing.
  virtual void abandon(std::string_view why) noexcept = 0;

  /// Makes what `session`, which has these in its options, does with the other ranks. It is virtual so that a session that
  /// is alone does not link it; nobody overrides it. Is called by the session.
  virtual std::unique_ptr<SessionRanks> join(SessionState &session);
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_COLLECTIVES_COLLECTIVES_H
