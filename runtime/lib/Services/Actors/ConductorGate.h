//===- ConductorGate.h - Conductor's tokens for the engine ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every hop over the link takes a token of Conductor. A hop that must go and
// finds no slot waits in Conductor's queue, by priority: the engine then waits
// for the oldest hop of its own, whose token comes free. Nothing else can hold a
// slot of this device. Should no hop be left to wait for, or the link carry none
// to its end within `slot_wait_timeout_ms` of the device's clock, it goes over
// the limit and is counted.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_CONDUCTORGATE_H
#define SEGUE_LIB_SERVICES_ACTORS_CONDUCTORGATE_H

#include "segue/runtime/Services/Conductor.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <map>
#include <optional>

namespace segue::inline runtime {

class ConductorGate final : public TransferGate {
public:
  explicit ConductorGate(Conductor &conductor) : conductor_(conductor) {}

  /// Registers "transfer", in whose name everything goes that nobody claims. `longestWait`
  /// is the seconds that a hop which must go waits for a slot.
  void open(double longestWait) {
    owner_ = conductor_.registerOwner("transfer");
    longestWait_ = longestWait;
  }

  /// Makes hops `owner`'s while it lives.
  class As {
  public:
    As(ConductorGate &gate, ServiceId owner) : gate_(gate), before_(std::exchange(gate.owner_, owner)) {}
    ~As() { gate_.owner_ = before_; }
    As(const As &) = delete;
    As &operator=(const As &) = delete;

  private:
    ConductorGate &gate_;
    ServiceId before_;
  };

  /// Makes the hops while it lives one transfer of `owner` with one token, which comes free
  /// when the last of them is done. If the transfer must go and finds no slot, it waits for
  /// hops under way; otherwise it may be denied, and no hop goes.
  class Batch {
  public:
    Batch(ConductorGate &gate, TransferEngine &engine, ServiceId owner, Queue direction, Priority priority,
          uint64_t bytes);
    ~Batch();
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;
    bool isDenied() const { return isDenied_; }

  private:
    ConductorGate &gate_;
    /// The token of a batch around this one, if there is one.
    std::optional<uint64_t> before_;
    uint64_t token_ = 0;
    bool isDenied_ = false;
  };

  uint64_t newId() { return ++lastId_; }
  /// Called by Conductor when a token that was waited for is held.
  void granted(uint64_t token);

  Grant acquire(Queue direction, TransferPriority priority, uint64_t bytes) override;
  uint64_t overrun(Queue direction, TransferPriority priority, uint64_t bytes) override;
  void passed(Queue direction, uint64_t bytes, double seconds, bool succeeded) override;
  void complete(uint64_t token, uint64_t bytes, double seconds, bool succeeded) override;

private:
  /// The hop that the engine asks for, which is the only one that may wait.
  struct Waiting {
    uint64_t token = 0;
    bool granted = false;
  };

  struct Hops {
    size_t count = 0;
    uint64_t bytes = 0;
    double seconds = 0;
    bool isClosed = false, hasFailed = false;
  };
  void endBatch(uint64_t token, const Hops &hops);

  Conductor &conductor_;
  /// Batches whose hops are under way, and the one that hops are added to.
  std::map<uint64_t, Hops> batches_;
  std::optional<uint64_t> batch_;
  ServiceId owner_{};
  double longestWait_ = 0;
  uint64_t lastId_ = 0;
  std::optional<Waiting> waiting_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_CONDUCTORGATE_H
