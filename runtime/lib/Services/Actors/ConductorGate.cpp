//===- ConductorGate.cpp - Conductor's tokens for the engine --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ConductorGate.h"

namespace segue::inline runtime {

static LinkDirection directionOf(Queue queue) {
  return queue == Queue::HostToDevice ? LinkDirection::H2d : LinkDirection::D2h;
}

static Priority priorityOf(TransferPriority priority) {
  switch (priority) {
  case TransferPriority::Critical:
    return Priority::Critical;
  case TransferPriority::Required:
    return Priority::Required;
  case TransferPriority::Speculative:
    return Priority::Speculative;
  case TransferPriority::Background:
    break;
  }
  return Priority::Background;
}

void ConductorGate::granted(uint64_t token) {
  if (waiting_ && waiting_->token == token)
    waiting_->granted = true;
}

ConductorGate::Batch::Batch(ConductorGate &gate, TransferEngine &engine, ServiceId owner, Queue direction,
                            Priority priority, uint64_t bytes)
    : gate_(gate) {
  if (!gate.conductor_.isEnabled())
    return;
  token_ = gate.newId();
  TokenAnswer answer = gate.conductor_.acquireOrWait({.id = token_,
                                                      .owner = owner,
                                                      .direction = directionOf(direction),
                                                      .priority = priority,
                                                      .bytes = int64_t(bytes)});
  isDenied_ = answer.status == TokenStatus::Denied;
  if (isDenied_)
    return;
  if (answer.status != TokenStatus::Acquired) {
    gate.waiting_ = Waiting{token_, false};
    if (!engine.settleUntil(direction, gate.longestWait_, [&] { return gate.waiting_->granted; }))
      gate.conductor_.timeOut(token_);
    gate.waiting_.reset();
  }
  gate.batches_[token_] = {};
  before_ = std::exchange(gate.batch_, token_);
}

ConductorGate::Batch::~Batch() {
  if (!token_ || isDenied_)
    return;
  gate_.batch_ = before_;
  Hops &hops = gate_.batches_[token_];
  hops.isClosed = true;
  if (!hops.count)
    gate_.endBatch(token_, hops);
}

void ConductorGate::endBatch(uint64_t token, const Hops &hops) {
  if (!hops.hasFailed && hops.bytes)
    conductor_.complete(token, int64_t(hops.bytes), hops.seconds * 1e3);
  conductor_.releaseToken(token);
  batches_.erase(token);
}

TransferGate::Grant ConductorGate::acquire(Queue direction, TransferPriority priority, uint64_t bytes) {
  if (batch_) {
    ++batches_[*batch_].count;
    return {Answer::Go, *batch_};
  }
  if (waiting_) {
    if (!waiting_->granted)
      return {Answer::Wait, 0, longestWait_};
    return {Answer::Go, std::exchange(waiting_, std::nullopt)->token};
  }
  uint64_t token = newId();
  TokenAnswer answer = conductor_.acquireOrWait({.id = token,
                                                 .owner = owner_,
                                                 .direction = directionOf(direction),
                                                 .priority = priorityOf(priority),
                                                 .bytes = int64_t(bytes)});
  if (answer.status == TokenStatus::Acquired)
    return {Answer::Go, token};
  if (answer.status == TokenStatus::Denied)
    return {Answer::Deny, 0};
  waiting_ = Waiting{token, false};
  return {Answer::Wait, 0, longestWait_};
}

uint64_t ConductorGate::overrun(Queue direction, TransferPriority priority, uint64_t bytes) {
  uint64_t token = waiting_->token;
  if (!waiting_->granted)
    conductor_.timeOut(token);
  waiting_.reset();
  return token;
}

void ConductorGate::passed(Queue direction, uint64_t bytes, double seconds, bool succeeded) {
  // The hop was alone in its queue. If others hold tokens of the direction, they tell the
  // link's speed.
  if (!succeeded || conductor_.inflight(directionOf(direction)) > 0)
    return;
  // The token is one by itself: the hop is not part of a batch, and somebody may wait for
  // the other direction meanwhile.
  uint64_t token = newId();
  TokenAnswer answer = conductor_.tryAcquire({.id = token,
                                              .owner = owner_,
                                              .direction = directionOf(direction),
                                              .priority = Priority::Required,
                                              .bytes = int64_t(bytes)});
  if (answer.status != TokenStatus::Acquired)
    return;
  conductor_.complete(token, int64_t(bytes), seconds * 1e3);
  conductor_.releaseToken(token);
}

void ConductorGate::complete(uint64_t token, uint64_t bytes, double seconds, bool succeeded) {
  if (auto batch = batches_.find(token); batch != batches_.end()) {
    Hops &hops = batch->second;
    hops.bytes += bytes;
    hops.seconds += seconds;
    hops.hasFailed |= !succeeded;
    if (--hops.count == 0 && hops.isClosed)
      endBatch(token, hops);
    return;
  }
  if (succeeded) // a copy that failed says nothing of the link's speed
    conductor_.complete(token, int64_t(bytes), seconds * 1e3);
  conductor_.releaseToken(token);
}

} // namespace segue::inline runtime
