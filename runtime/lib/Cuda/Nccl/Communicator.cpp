//===- Communicator.cpp - a communicator of NCCL, and its watch -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Communicator.h"
#include <algorithm>
#include <chrono>
#include <utility>

namespace segue::inline runtime::cuda {

/// The watch looks as often, and asks the transport at every fifth look; who waits for a call to be there looks more
/// often, as it is there in a moment but for the first.
static constexpr auto watchPause = std::chrono::milliseconds(20);
static constexpr unsigned looksPerQuestion = 5;
static constexpr auto callPause = std::chrono::microseconds(20);
/// The others leave at about the same time, or were ended.
static constexpr double leaveSeconds = 2;

Communicator::Communicator(const NcclApi &api, std::shared_ptr<const Context> context,
                           std::shared_ptr<Transport> transport, const NcclId &id)
    : api_(api), context_(std::move(context)), transport_(std::move(transport)),
      limitSeconds_(transport_->timeoutSeconds()), events_(*context_, eventNoTiming) {
  context_->use();
  NcclConfig config;
  std::unique_lock lock(mutex_);
  await(lock, api_.init(&communicator_, transport_->ranks(), id, transport_->rank(), &config),
        "ncclCommInitRankConfig");
  lock.unlock();
  watch_ = std::thread([this] { watch(); });
}

Communicator::~Communicator() {
  {
    std::lock_guard lock(mutex_);
    isLeaving_ = true;
  }
  changed_.notify_all();
  if (watch_.joinable())
    watch_.join();
  if (!communicator_)
    return;
  context_->use();
  ncclResult_t result = api_.finalize(communicator_);
  for (double until = Streams::seconds() + leaveSeconds; result == ncclNotYet && Streams::seconds() < until;) {
    std::this_thread::sleep_for(callPause);
    result = state();
  }
  (void)(result == ncclOk ? api_.destroy(communicator_) : api_.abort(communicator_));
}

std::string Communicator::said(ncclResult_t result, const char *what) const {
  return std::string("NCCL says of ") + what + ": " + api_.describe(result, communicator_);
}

void Communicator::throwIfEnded() const {
  if (!why_.empty())
    throw Error(ErrorCode::RankFailed, why_);
}

/// Returns what NCCL says of the communicator, which has not ended.
ncclResult_t Communicator::state() const {
  ncclResult_t state = ncclOk;
  ncclResult_t asked = api_.state(communicator_, &state);
  return asked ? asked : state;
}

std::optional<Error> Communicator::failure(const char *what) {
  std::unique_lock lock(mutex_);
  if (why_.empty()) {
    context_->use();
    if (ncclResult_t found = state(); found != ncclOk && found != ncclNotYet)
      end(lock, said(found, what));
  }
  return why_.empty() ? std::nullopt : std::optional<Error>(std::in_place, ErrorCode::RankFailed, why_);
}

/// Ends the communicator, then the transport, which any rank may have ended before with a better reason.
void Communicator::end(std::unique_lock<std::mutex> &lock, const std::string &why) noexcept {
  if (!why_.empty())
    return;
  why_ = why;
  context_->use();
  if (communicator_)
    (void)api_.abort(std::exchange(communicator_, nullptr));
  given_.clear();
  lock.unlock();
  transport_->abandon(why);
  lock.lock();
}

void Communicator::fail(const std::string &why) noexcept {
  std::unique_lock lock(mutex_);
  end(lock, why);
}

/// Returns when a call is done that has given `result`. Throws, with everything ended, if it fails or a rank does not
/// come.
void Communicator::await(std::unique_lock<std::mutex> &lock, ncclResult_t result, const char *what) {
  double until = Streams::seconds() + limitSeconds_, looked = Streams::seconds();
  while (result == ncclNotYet) {
    lock.unlock();
    std::this_thread::sleep_for(callPause);
    std::string why;
    if (double now = Streams::seconds(); now > until) {
      why = transport_->missed(what);
    } else if (now - looked > 0.05) {
      looked = now;
      why = transport_->ended();
    }
    lock.lock();
    if (!why.empty())
      end(lock, why);
    throwIfEnded();
    result = state();
  }
  if (result != ncclOk)
    end(lock, said(result, what));
  throwIfEnded();
}

void Communicator::give(CUstream stream, const char *what, const Calls &calls) {
  std::unique_lock lock(mutex_);
  throwIfEnded();
  Given given{what, events_.take(), events_.take(), std::nullopt};
  context_->check(context_->api().eventRecord(given.begin.get(), stream), "cuEventRecord");
  ncclResult_t result = api_.groupStart();
  if (result == ncclOk) {
    ncclResult_t called = calls(communicator_);
    result = api_.groupEnd(); // which every group needs, whatever its calls give
    if (called != ncclOk && called != ncclNotYet)
      result = called;
  }
  await(lock, result, what);
  context_->check(context_->api().eventRecord(given.end.get(), stream), "cuEventRecord");
  given_.push_back(std::move(given));
  lock.unlock();
  changed_.notify_all();
}

//===----------------------------------------------------------------------===//
// The watch
//===----------------------------------------------------------------------===//

std::string Communicator::look(const char *&late) {
  if (ncclResult_t found = state(); found != ncclOk && found != ncclNotYet)
    return said(found, given_.front().what);
  auto hasPassed = [this](const EventRef &event) {
    CUresult result = context_->api().eventQuery(event.get());
    return result != notReady; // of a lost device nothing is waited for any more
  };
  while (!given_.empty() && hasPassed(given_.front().end))
    given_.pop_front();
  if (given_.empty())
    return "";
  Given &first = given_.front();
  if (!first.begun && hasPassed(first.begin))
    first.begun = Streams::seconds();
  if (first.begun && Streams::seconds() - *first.begun > limitSeconds_)
    late = first.what;
  return "";
}

void Communicator::watch() {
  context_->use();
  std::unique_lock lock(mutex_);
  for (unsigned looks = 0;; ++looks) {
    changed_.wait(lock, [this] { return isLeaving_ || (!given_.empty() && why_.empty()); });
    if (isLeaving_)
      return;
    const char *late = nullptr;
    std::string why = look(late);
    if (why.empty() && (late || looks % looksPerQuestion == 0)) {
      lock.unlock(); // it may ask other ranks
      why = late ? transport_->missed(late) : transport_->ended();
      lock.lock();
    }
    if (!why.empty())
      end(lock, why);
    else
      changed_.wait_for(lock, watchPause, [this] { return isLeaving_; });
  }
}

} // namespace segue::inline runtime::cuda
