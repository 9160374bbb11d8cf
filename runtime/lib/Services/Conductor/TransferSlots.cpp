//===- TransferSlots.cpp - who may have a transfer in flight --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TransferSlots.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

void TransferSlots::insert(const Token &token) {
  tokens_.insert(token);
  ++inflight_[size_t(token.direction)];
}

void TransferSlots::hold(const TokenRequest &request) {
  insert(Token{.id = request.id, .owner = request.owner, .direction = request.direction});
}

void TransferSlots::wait(const TokenRequest &request) {
  waiting_.push_back({request.id, nextSequence_++, request.owner, request.direction, request.priority});
}

const TokenWaiter *TransferSlots::findWaiter(uint64_t id) const {
  auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const TokenWaiter &w) { return w.id == id; });
  return found == waiting_.end() ? nullptr : &*found;
}

TokenWaiter TransferSlots::takeWaiter(uint64_t id) {
  const TokenWaiter *found = findWaiter(id);
  if (!found)
    throw Error(ErrorCode::TokenInvalid, "nobody waits for token " + std::to_string(id));
  TokenWaiter waiter = *found;
  waiting_.erase(waiting_.begin() + (found - waiting_.data()));
  return waiter;
}

void TransferSlots::timeOut(uint64_t id) {
  TokenWaiter waiter = takeWaiter(id);
  insert(Token{.id = waiter.id, .owner = waiter.owner, .direction = waiter.direction});
}

void TransferSlots::cancelWait(uint64_t id) { takeWaiter(id); }

Token &TransferSlots::held(uint64_t id) {
  Token *token = tokens_.find(id);
  if (!token)
    throw Error(ErrorCode::TokenInvalid,
                "token " + std::to_string(id) + " is not held: it was never acquired, or released already");
  return *token;
}

LinkDirection TransferSlots::markCompleted(uint64_t id) {
  Token &token = held(id);
  if (token.completed)
    throw Error(ErrorCode::TokenInvalid, "the transfer of token " + std::to_string(id) + " is complete already");
  token.completed = true;
  return token.direction;
}

LinkDirection TransferSlots::release(uint64_t id) {
  LinkDirection direction = held(id).direction;
  tokens_.erase(id);
  --inflight_[size_t(direction)];
  return direction;
}

std::optional<uint64_t> TransferSlots::promote(LinkDirection direction) {
  if (waiting_.empty() || isFull(direction))
    return std::nullopt;
  const TokenWaiter *first = nullptr;
  for (const TokenWaiter &waiter : waiting_)
    if (waiter.direction == direction && (!first || waiter.priority > first->priority))
      first = &waiter;
  if (!first)
    return std::nullopt;
  uint64_t id = first->id;
  timeOut(id); // out of the queue, into a slot
  return id;
}

std::vector<TokenWaiter> TransferSlots::waiters() const { return waiting_; }

std::vector<uint64_t> TransferSlots::abortWaiters() {
  std::vector<uint64_t> ids;
  for (const TokenWaiter &waiter : waiting_)
    ids.push_back(waiter.id);
  waiting_.clear();
  return ids;
}

size_t TransferSlots::dropWaiters(ServiceId owner) {
  return std::erase_if(waiting_, [&](const TokenWaiter &waiter) { return waiter.owner == owner; });
}

size_t TransferSlots::dropTokens(std::optional<ServiceId> owner) {
  size_t dropped = 0;
  for (const Token &token : tokens()) {
    if (owner && token.owner != *owner)
      continue;
    tokens_.erase(token.id);
    --inflight_[size_t(token.direction)];
    ++dropped;
  }
  return dropped;
}

std::vector<Token> TransferSlots::tokens() const {
  std::vector<Token> sorted(tokens_.entries().begin(), tokens_.entries().end());
  std::sort(sorted.begin(), sorted.end(), [](const Token &a, const Token &b) { return a.id < b.id; });
  return sorted;
}

} // namespace segue::inline runtime
