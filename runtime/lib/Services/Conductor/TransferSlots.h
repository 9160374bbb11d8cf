//===- TransferSlots.h - who may have a transfer in flight ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tokens of both directions of the link, and the queues of those who wait for
// one. A limit that falls below what is in flight ends no transfer: new ones
// are held back until there is room. A slot that becomes free goes to the
// highest priority at once, first come within a priority, so that nobody waits
// beside a free slot.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_TRANSFERSLOTS_H
#define SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_TRANSFERSLOTS_H

#include "IdTable.h"
#include "segue/runtime/Services/ConductorTypes.h"

namespace segue::inline runtime {

struct Token {
  uint64_t id = 0;
  ServiceId owner{};
  LinkDirection direction = LinkDirection::H2d;
  bool completed = false;
};

struct TokenWaiter {
  uint64_t id = 0;
  /// The place in the order of coming.
  uint64_t sequence = 0;
  ServiceId owner{};
  LinkDirection direction = LinkDirection::H2d;
  Priority priority = Priority::Required;
};

class TransferSlots {
public:
  void setLimit(LinkDirection direction, int limit) { limits_[size_t(direction)] = limit; }
  int limit(LinkDirection direction) const { return limits_[size_t(direction)]; }
  int inflight(LinkDirection direction) const { return inflight_[size_t(direction)]; }
  bool isFull(LinkDirection direction) const { return inflight(direction) >= limit(direction); }

  /// Returns true if a token of that id is held or waited for.
  bool isKnown(uint64_t id) const { return tokens_.find(id) || findWaiter(id); }
  void hold(const TokenRequest &request);
  void wait(const TokenRequest &request);

  /// These throw TokenInvalid with nothing changed.
  void timeOut(uint64_t id);
  void cancelWait(uint64_t id);
  LinkDirection markCompleted(uint64_t id);
  LinkDirection release(uint64_t id);
  ServiceId ownerOf(uint64_t id) { return held(id).owner; }

  /// Gives a free slot of that direction to the first in line. Returns nothing if there is
  /// no slot, or nobody waits.
  std::optional<uint64_t> promote(LinkDirection direction);

  /// Returns who waits, in the order of coming.
  std::vector<TokenWaiter> waiters() const;
  std::vector<uint64_t> abortWaiters();
  size_t dropWaiters(ServiceId owner);
  /// Frees the tokens of an owner, or of everybody.
  size_t dropTokens(std::optional<ServiceId> owner);

  /// Returns the tokens in the order of their ids.
  std::vector<Token> tokens() const;
  uint64_t nextSequence() const { return nextSequence_; }

private:
  const TokenWaiter *findWaiter(uint64_t id) const;
  TokenWaiter takeWaiter(uint64_t id);
  Token &held(uint64_t id);
  void insert(const Token &token);

  IdTable<Token> tokens_;
  std::vector<TokenWaiter> waiting_; // by sequence
  int inflight_[2] = {0, 0};
  int limits_[2] = {0, 0};
  uint64_t nextSequence_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_CONDUCTOR_TRANSFERSLOTS_H
