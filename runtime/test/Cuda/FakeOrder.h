//===- FakeOrder.h - waits that a fake GPU misses ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Says which operations of two streams touch the same bytes with nothing between them that
// makes one wait for the other, whatever order the fake happens to draw: clocks of vectors,
// one count per stream. A stream's clock takes in that of an event that it waits for, and
// what the host has seen the end of comes before all that anybody gives later.
//
// Copies, fills and the library's results are known to write. Of a kernel the fake knows the
// addresses that it was given, and not how much it reads or writes behind them: an address
// within what another operation writes is enough. Two kernels are never compared.
//
// All of this with the lock of FakeGpu.h held.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_CUDA_FAKEORDER_H
#define SEGUE_TEST_CUDA_FAKEORDER_H

#include <cstdint>
#include <map>
#include <vector>

#pragma GCC visibility push(default)
namespace fakecuda {

struct Stream;
struct Event;
struct Device;

/// The number of operations of each stream that come before something.
using Clock = std::map<const Stream *, uint64_t>;

struct Access {
  enum class Kind { Reads, Writes, WasGiven };
  Kind kind;
  uint64_t address, bytes;
};

/// An operation that was given to a stream of a device and that the host has not seen the end of.
struct PendingAccess {
  const Stream *stream;
  /// The operations of the stream up to it.
  uint64_t position;
  const char *call;
  Access access;
};

/// The operation that `stream` is given next. Tells misuse.
void orderOperation(Stream &stream, const char *call, const std::vector<Access> &accesses);
/// `event` stands for all that `stream` has been given.
void orderRecord(Stream &stream, Event &event);
/// What `stream` is given from here on waits for `event`.
void orderWait(Stream &stream, const Event &event);
/// The host has seen the end of what comes before.
void orderSeen(Device &device, const Clock &before);
/// Returns what comes before the next operation of `stream`, and all that it has been given.
Clock orderOf(const Stream &stream);

} // namespace fakecuda
#pragma GCC visibility pop

#endif // SEGUE_TEST_CUDA_FAKEORDER_H
