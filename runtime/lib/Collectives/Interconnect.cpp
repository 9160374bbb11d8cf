//===- Interconnect.cpp - how long ranks take for a message ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Collectives/Interconnect.h"
#include "segue/runtime/Collectives/Transport.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

RingTraffic RingTraffic::sum(uint64_t bytes, int ranks) {
  return {2 * (ranks - 1), 2 * bytes * uint64_t(ranks - 1) / uint64_t(ranks)};
}

RingTraffic RingTraffic::scatteredSum(uint64_t bytes, int ranks) {
  return {ranks - 1, bytes * uint64_t(ranks - 1) / uint64_t(ranks)};
}

RingTraffic RingTraffic::gathering(uint64_t bytes, int ranks) { return scatteredSum(bytes, ranks); }

RingTraffic RingTraffic::broadcast(uint64_t bytes, int ranks) { return {ranks - 1, ranks > 1 ? bytes : 0}; }

namespace {
/// A transport of virtual time, where no body of work runs and so nobody calls.
class NoTransport final : public Transport {
public:
  NoTransport(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  void allReduce(float *, int64_t) override {}
  void reduce(float *, int64_t, int) override {}
  void reduceScatter(const float *, float *, int64_t) override {}
  void allGather(const void *, void *, uint64_t) override {}
  void broadcast(void *, uint64_t, int) override {}
  void send(const void *, uint64_t, int) override {}
  void receive(void *, uint64_t, int) override {}
  void abandon(std::string_view) noexcept override {}

private:
  int rank_, ranks_;
};
} // namespace

std::shared_ptr<Collectives> virtualRanks(DeviceRef device, int rank, int ranks, const Interconnect &wires,
                                          uint64_t bucketBytes) {
  CollectiveOptions options{.wires = wires};
  if (bucketBytes)
    options.bucketBytes = bucketBytes;
  return virtualRanks(std::move(device), rank, ranks, options);
}

std::shared_ptr<Collectives> virtualRanks(DeviceRef device, int rank, int ranks, CollectiveOptions options) {
  if (device && device->hasBytes())
    throw Error(ErrorCode::InvalidArgument, "device \"" + device->name() + "\" computes, and would wait for other "
                                            "ranks; an interconnect is played on sim:virtual");
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw Error(ErrorCode::InvalidArgument,
                "there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  return makeCollectives(std::move(device), std::make_shared<NoTransport>(rank, ranks), options);
}

} // namespace segue::inline runtime
