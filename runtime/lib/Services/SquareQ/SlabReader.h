//===- SlabReader.h - reads layers before they are asked for ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The staging side of a SlabServer: a ring of buffers of the host, one worker
// that fills them in the order it was told, and the thread of the server, which
// takes what is filled and gives the buffer back with the fence of the copy
// that reads it. The worker waits for that fence before it writes again.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_SLABREADER_H
#define SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_SLABREADER_H

#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <thread>

namespace segue::inline runtime {

class SlabServer::Reader {
public:
  struct Result {
    std::string layer;
    /// Memory of the host, with the layer as Slab::copyLayer writes it from its start.
    std::shared_ptr<Storage> storage;
    /// The error, if it could not be read.
    std::exception_ptr failure;
    bool wasReadAhead = false;
    /// True if the storage is one of the ring.
    bool isBuffer = false;
  };

  Reader(DeviceRef device, std::shared_ptr<const Slab> slab) : device_(std::move(device)), slab_(std::move(slab)) {}
  ~Reader();

  void takeBuffers(uint64_t bytes, const std::function<bool(uint64_t bytes)> &reserve);

  size_t buffers() const { return bufferCount_; }
  void readAhead(std::vector<std::string> layers);
  /// Blocks until the worker has filled the buffers there are, or all is read.
  void waitUntilIdle();
  /// Returns the layer, which is read now if nobody has before. Throws DeviceOom.
  Result take(const std::string &layer);
  /// Gives a result back that was copied: its buffer serves again once its queued reader is done.
  void give(Result result);
  /// Gives a result back that was not copied, and is to be taken again.
  void putBack(Result result);

private:
  void work();
  void fill(Result &result) const;
  Result stagingFor(const std::string &layer);

  DeviceRef device_;
  std::shared_ptr<const Slab> slab_;
  size_t bufferCount_ = 0;
  /// True if somebody keeps the books of page-locked memory: none is taken beside the
  /// buffers.
  bool isReserved_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::deque<std::string> wanted_;
  /// The layer that the worker reads now; empty for none.
  std::string reading_;
  std::list<Result> ready_;
  struct Free {
    std::shared_ptr<Storage> storage;
    Fence lastUse;
  };
  std::deque<Free> free_;
  std::thread worker_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_SLABREADER_H
