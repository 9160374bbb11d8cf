//===- Nccl.h - ranks on GPUs, and how their messages go --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The library SegueNccl lets ranks that have a GPU each send each other tensors by NCCL,
// from GPU to GPU. It opens libnccl.so.2 when ranks look for it; building it takes none.
//
//   useCuda();
//   DeviceRef device = Device::open("cuda:" + std::to_string(localRank));
//   SessionOptions options;
//   options.collectives = joinRanks(device, mpiTransport(), {.way = MessageWay::Automatic, .log = print});
//
// Every rank is asked, so that all do the same. By NCCL go sums, broadcasts and gatherings;
// what ranks agree by and what one sends one other goes by the transport, as does everything
// where some rank has no GPU of its own. What NCCL takes of a GPU for itself is measured and
// counts in the books of the device, as "(NCCL)"; 8 MiB are the stage through which tensors
// pass that lie on the host.
//
// Two ranks have the bits that messages of the host give, since the sum of two numbers has no
// order. The order in which NCCL adds for three and more is its own, and differs with the size
// of messages and the links between GPUs.
//
// Ranks that are threads of one process: NCCL would read tensors of one GPU from another
// without a copy, and memory of Segue's is mapped for its own GPU alone. Set
// NCCL_P2P_DIRECT_DISABLE=1 in the environment then.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_CUDA_NCCL_H
#define SEGUE_RUNTIME_CUDA_NCCL_H

#include "segue/runtime/Collectives/Transport.h"
#include <functional>
#include <string>

namespace segue::inline runtime {

/// How tensors go from rank to rank: by NCCL where every rank has a GPU of its own, in the host's memory, or by NCCL
/// and not otherwise.
enum class MessageWay : uint8_t { Automatic, Host, Nccl };

/// Returns the way of "auto", "host" or "nccl". Throws InvalidArgument for another text.
MessageWay parseMessageWay(std::string_view text);

struct MessageOptions {
  CollectiveOptions collectives;
  /// No GPU has run what goes by NCCL, so it has to be asked for.
  MessageWay way = MessageWay::Host;
  /// True for ranks that run a part of the modules each: a send of theirs waits for nobody, so messages go by way of
  /// the host.
  bool isPipeline = false;
  /// Null, or told how messages go, where some rank has a GPU and NCCL may be used.
  std::function<void(const std::string &)> log;
};

/// Makes the operations on tensors of `device` for the ranks of `transport`, which all call this. Throws Unsupported,
/// on all ranks, where one asks for NCCL and it cannot be, with the reason; and RankFailed where NCCL cannot begin, or
/// ranks ask for different ways.
std::shared_ptr<Collectives> joinRanks(DeviceRef device, std::shared_ptr<Transport> transport,
                                       MessageOptions options = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_CUDA_NCCL_H
