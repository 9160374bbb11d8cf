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

TransferGate::Grant ConductorGate::acquire(Queue direction, TransferPriority priority, uint64_t bytes) {
  if (waiting_) {
    if (!waiting_->granted)
      return {Answer::Wait, 0};
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
  return {Answer::Wait, 0};
}

uint64_t ConductorGate::overrun(Queue direction, TransferPriority priority, uint64_t bytes) {
  uint64_t token = waiting_->token;
  if (!waiting_->granted)
    conductor_.timeOut(token);
  waiting_.reset();
  return token;
}

void ConductorGate::passed(Queue direction, uint64_t bytes, double seconds, bool succeeded) {
  // It was alone in its queue. Where others hold tokens of the direction, they
  // tell the link's speed.
  if (!succeeded || conductor_.inflight(directionOf(direction)) > 0)
    return;
  Grant grant = acquire(direction, TransferPriority::Required, bytes);
  complete(grant.token, bytes, seconds, succeeded);
}

void ConductorGate::complete(uint64_t token, uint64_t bytes, double seconds, bool succeeded) {
  if (succeeded) // a copy that failed says nothing of the link's speed
    conductor_.complete(token, int64_t(bytes), seconds * 1e3);
  conductor_.releaseToken(token);
}

} // namespace segue::inline runtime
