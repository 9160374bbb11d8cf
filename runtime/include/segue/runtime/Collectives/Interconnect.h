//===- Interconnect.h - how long ranks take for a message -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Collectives of one rank on a device of virtual time, which take the time that messages
// would and reach nobody: the other ranks are taken as doing the same at the same moment.
//
//   Interconnect wires{.bytesPerSecond = 50e9, .latencySeconds = 5e-6};
//   DeviceRef device = Device::open("sim:virtual,dram=80GiB");
//   SessionOptions options;
//   options.collectives = virtualRanks(device, /*rank=*/0, /*ranks=*/64, wires);
//   Session session(device, std::move(modules), std::move(options)); // plays the steps of rank 0
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_COLLECTIVES_INTERCONNECT_H
#define SEGUE_RUNTIME_COLLECTIVES_INTERCONNECT_H

#include "segue/runtime/Collectives/Collectives.h"
#include <memory>

namespace segue::inline runtime {

/// The bytes that a rank sends in an operation, and the messages after each other that they go in.
struct RingTraffic {
  int messages = 0;
  uint64_t sentBytes = 0;

  /// A sum of `bytes` on each of N ranks: N - 1 messages of an N-th scatter the sums, and as many gather them, hence
  /// 2 (N - 1) / N of the bytes (P. Patarasuk and X. Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of
  /// Workstations, J. Parallel Distrib. Comput. 69, 2009).
  static RingTraffic sum(uint64_t bytes, int ranks);
  /// One half of a sum each, with `bytes` those of all parts (R. Thakur, R. Rabenseifner and W. Gropp, Optimization of
  /// Collective Communication Operations in MPICH, Int. J. High Perform. Comput. Appl. 19, 2005).
  static RingTraffic scatteredSum(uint64_t bytes, int ranks);
  static RingTraffic gathering(uint64_t bytes, int ranks);
  /// The bytes go from rank to rank in pieces, one piece behind the other (the pipeline of the same paper): each rank
  /// but the last sends all of them, and the first piece is there after N - 1 messages.
  static RingTraffic broadcast(uint64_t bytes, int ranks);
  /// A sum for one rank goes the way of a broadcast back, and is added to on it.
  static RingTraffic reduction(uint64_t bytes, int ranks) { return broadcast(bytes, ranks); }
  /// A tensor goes to one rank as one message.
  static RingTraffic toOne(uint64_t bytes) { return {1, bytes}; }

  /// Returns the traffic of one after the other.
  RingTraffic operator+(const RingTraffic &next) const {
    return {messages + next.messages, sentBytes + next.sentBytes};
  }
};

/// The links between ranks. All are alike; a rank sends to one and receives from one at the same time, and a message of
/// n bytes takes latency + n / bandwidth (R. Hockney, The communication challenge for MPP, Parallel Comput. 20, 1994).
/// Adding takes no time.
struct Interconnect {
  /// The speed in each direction.
  double bytesPerSecond = 50e9;
  double latencySeconds = 5e-6;

  double secondsFor(const RingTraffic &traffic) const {
    return traffic.messages * latencySeconds + double(traffic.sentBytes) / bytesPerSecond;
  }
};

/// The label of meetings (Collectives::exchange) in traces; those of other operations say what they bring.
inline constexpr std::string_view meetingLabel = "messages to ranks";
/// The label of an operation in which a rank waits for what another one sends it.
inline constexpr std::string_view receiveLabel = "a tensor of another rank";
/// The owner of messages in the books of a device.
inline constexpr std::string_view messageOwner = "(messages to ranks)";

/// Makes the operations of rank `rank` among `ranks`. `bucketBytes` as in CollectiveOptions; 0 stands for its default.
/// Throws InvalidArgument for a device that computes, which would wait for others.
std::shared_ptr<Collectives> virtualRanks(DeviceRef device, int rank, int ranks, const Interconnect &wires,
                                          uint64_t bucketBytes = 0);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_COLLECTIVES_INTERCONNECT_H
