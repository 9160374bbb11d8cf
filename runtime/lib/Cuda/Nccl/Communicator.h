//===- Communicator.h - a communicator of NCCL, and its watch ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A call of NCCL in a stream waits on the GPU until the other ranks have come to it, and
// nobody else notices when one never does: the host's calls stand behind it in the stream.
// So a thread watches. It looks when a group of calls has begun on the GPU and whether it has
// ended; what NCCL says of the communicator; and what the transport has heard of the ranks.
// Where a rank is gone it aborts the communicator, which ends what lies in the stream, and
// ends the transport, which names the rank: so messages of the host and those of NCCL end
// with one reason.
//
// The communicator does not block: its calls return before the other ranks have come, and
// are asked for their end here, with a limit of time.
//
// Whoever gives groups is one thread at a time; any thread may ask for the failure.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_NCCL_COMMUNICATOR_H
#define SEGUE_LIB_CUDA_NCCL_COMMUNICATOR_H

#include "../GpuHolder.h"
#include "NcclApi.h"
#include "segue/runtime/Collectives/Transport.h"
#include <deque>
#include <functional>
#include <thread>

namespace segue::inline runtime::cuda {

class Communicator {
public:
  /// Joins the others, who were given the same `id`. Throws RankFailed, when the group has ended, if NCCL cannot or a
  /// rank does not come.
  Communicator(const NcclApi &api, std::shared_ptr<const Context> context, std::shared_ptr<Transport> transport,
               const NcclId &id);
  /// Leaves the others; what was given has ended. One that has not failed waits a moment for the others to leave, too.
  ~Communicator();
  Communicator(const Communicator &) = delete;
  Communicator &operator=(const Communicator &) = delete;

  /// Calls are what `give` does with the communicator, and each returns what NCCL does.
  using Calls = std::function<ncclResult_t(ncclComm_t)>;
  /// Gives calls to `stream` as one group, and returns when they are there. Every rank gives the same groups. Throws
  /// what has ended the communicator.
  void give(CUstream stream, const char *what, const Calls &calls);

  /// Returns the error that ended it, or nothing. Asks NCCL, too: a call that has failed, such as `what`, may have left
  /// the stream before the watch looks. Not for callbacks of the driver.
  std::optional<Error> failure(const char *what);
  /// Ends it and the group, as this rank cannot go on. The first reason stays.
  void fail(const std::string &why) noexcept;

private:
  /// A group of calls in the stream.
  struct Given {
    const char *what;
    EventRef begin, end;
    /// When the watch saw it begin; nothing: it may still wait for what lies before it.
    std::optional<double> begun;
  };

  std::string said(ncclResult_t result, const char *what) const;
  ncclResult_t state() const;
  void await(std::unique_lock<std::mutex> &lock, ncclResult_t result, const char *what);
  void end(std::unique_lock<std::mutex> &lock, const std::string &why) noexcept;
  void throwIfEnded() const;
  void watch();
  /// Looks once; the reason to end everything, or nothing. Where time is up, `late` says for what.
  std::string look(const char *&late);

  const NcclApi &api_;
  std::shared_ptr<const Context> context_;
  std::shared_ptr<Transport> transport_;
  double limitSeconds_;
  EventPool events_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ncclComm_t communicator_ = nullptr;
  std::string why_;
  std::deque<Given> given_;
  bool isLeaving_ = false;
  std::thread watch_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_NCCL_COMMUNICATOR_H
