//===- Transport.h - how ranks reach each other -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This is all that a library of messages has to give: blocking calls on the host's memory.
// Segue has none of its own: Mpi.h reaches ranks that mpirun has started, and InProcess.h
// is for tests.
//
// One thread at a time calls, not always the same one. Calls come in the same order, with
// the same sizes, on every rank. A call that fails throws RankFailed and names the rank
// that is the cause, where the library can say; what it was to write is undefined then. No
// call waits for others longer than the transport's timeout.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_COLLECTIVES_TRANSPORT_H
#define SEGUE_RUNTIME_COLLECTIVES_TRANSPORT_H

#include "segue/runtime/Collectives/Interconnect.h"
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace segue::inline runtime {

class VirtualGroup;

class Transport {
public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  /// Puts the sum over ranks in place of `count` floats. All ranks get the same bits; the order of the addition is
  /// the library's.
  virtual void allReduce(float *data, int64_t count) = 0;
  /// Puts that sum in place of the floats of rank `root`; what the others have there is undefined then.
  virtual void reduce(float *data, int64_t count, int root) = 0;
  /// Writes to `part`, of `count` floats, this rank's part of the sum of `whole`.
  virtual void reduceScatter(const float *whole, float *part, int64_t count) = 0;
  /// Writes the parts of all ranks, of `bytes` each, to `whole`, in their order.
  virtual void allGather(const void *part, void *whole, uint64_t bytes) = 0;
  virtual void broadcast(void *data, uint64_t bytes, int root) = 0;
  /// Sends without waiting until the other rank asks for it: the data may be changed when this returns.
  virtual void send(const void *data, uint64_t bytes, int to) = 0;
  /// Goes on for a short while with what was sent, in a library that does so in its calls alone; called while there is
  /// nothing else to do. Returns false if there is nothing to go on with.
  virtual bool goOn() { return false; }
  virtual void receive(void *data, uint64_t bytes, int from) = 0;

  /// Has calls that are under way end, here and on other ranks, and later ones fail. Any thread may call.
  virtual void abandon(std::string_view why) noexcept = 0;

  //===--------------------------------------------------------------------===//
  // For who waits for other ranks by another way than these calls
  //===--------------------------------------------------------------------===//

  /// Returns how long a call waits for other ranks.
  virtual double timeoutSeconds() const { return 600; }
  /// Returns why the ranks make no more calls, as far as it is known without one: a rank has given up, or has died;
  /// empty: nothing is known. Any thread may call.
  virtual std::string ended() { return ""; }
  /// Ends the group, as others have not come to `what` within the timeout. Returns why it has ended, which names the
  /// ranks that are missing where the library can say. May take a while. Any thread may call.
  virtual std::string missed(std::string_view what);
};

/// How collectives go about it.
struct CollectiveOptions {
  /// Tensors that are given together travel in messages of about so many bytes.
  uint64_t bucketBytes = 25 << 20;
  /// Messages that are under way at once take the host's memory of so many such messages, or of one that is larger;
  /// the next ones get it when older ones have arrived. Three are brought, sent and taken back beside each other.
  uint64_t bucketsUnderWay = 4;
  /// Adds in the order of ranks, whatever the transport would do, so that sums have the bits of adding one after the
  /// other; takes memory for the parts of all ranks, and that much traffic. For tests of three ranks and more.
  bool addsInOrder = false;
  /// The links whose time operations take on a device of virtual time. Others take the time they take.
  std::optional<Interconnect> wires;
  /// With `wires`, messages go from one device's memory to another's, and neither take memory of the host nor cross its
  /// link.
  bool areDirect = false;
  /// With `wires`, those whom such a device waits for; null: it waits for nobody.
  std::shared_ptr<VirtualGroup> group;
  /// With `group`, says when work of the device is done, by Device::seconds().
  std::function<double(const Fence &)> endOf;
};

/// Makes virtualRanks() of Interconnect.h with all options, of which `wires` have to be given.
std::shared_ptr<Collectives> virtualRanks(DeviceRef device, int rank, int ranks, CollectiveOptions options);

/// Makes the operations on tensors of `device` from a transport.
std::shared_ptr<Collectives> makeCollectives(DeviceRef device, std::shared_ptr<Transport> transport,
                                             CollectiveOptions options = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_COLLECTIVES_TRANSPORT_H
