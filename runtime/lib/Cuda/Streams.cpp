//===- Streams.cpp - the queues of a GPU ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Streams.h"
#include <chrono>
#include <cmath>

namespace segue::inline runtime::cuda {

/// The seconds for which a base of times serves: cuEventElapsedTime gives a float, which is exact to 60 ns within a
/// second.
static constexpr double baseLifeSeconds = 1;
/// Stamps are kept to the host's clock as far as this.
static constexpr double mostDriftSeconds = 1e-3;

/// The host looks so long before it sleeps: spinning sees the end of work 66 us earlier.
static constexpr double spinSeconds = 50e-6;

double Streams::seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

EventPool::~EventPool() {
  state_->context.use();
  for (CUevent event : state_->free)
    (void)state_->context.api().eventDestroy(event);
}

EventRef EventPool::take() {
  CUevent event = nullptr;
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->free.empty()) {
      event = state_->free.back();
      state_->free.pop_back();
    }
  }
  if (!event)
    state_->context.check(state_->context.api().eventCreate(&event, flags_), "cuEventCreate");
  return EventRef(event, [state = state_](CUevent event) {
    std::lock_guard lock(state->mutex);
    state->free.push_back(event);
  });
}

//===----------------------------------------------------------------------===//
// Host functions
//===----------------------------------------------------------------------===//

namespace {
/// A function for the driver's thread. It is destroyed by the host, not there.
class HostCall final : public Given {
public:
  explicit HostCall(std::function<void()> function) : function_(std::move(function)) {}

  static void run(void *data) {
    auto *call = static_cast<HostCall *>(data);
    State idle = State::Waiting;
    if (!call->state_.compare_exchange_strong(idle, State::Running))
      return;
    isInHostFunction() = true;
    try {
      call->function_();
    } catch (...) {
      call->error_ = std::current_exception();
    }
    isInHostFunction() = false;
    call->state_.store(State::Done, std::memory_order_release);
  }

  void settle() override {
    while (state_.load(std::memory_order_acquire) != State::Done)
      std::this_thread::yield(); // the driver says that it has returned
    if (error_)
      std::rethrow_exception(error_);
  }

  void abandon(std::unique_ptr<Given> self) noexcept override {
    State waiting = State::Waiting;
    if (state_.compare_exchange_strong(waiting, State::Dropped)) {
      function_ = nullptr;
      (void)self.release(); // the driver may still come, and finds that there is nothing to do
      return;
    }
    while (state_.load(std::memory_order_acquire) == State::Running)
      std::this_thread::yield();
  }

private:
  enum class State { Waiting, Running, Done, Dropped };
  std::function<void()> function_;
  std::exception_ptr error_;
  std::atomic<State> state_{State::Waiting};
};
} // namespace

//===----------------------------------------------------------------------===//
// Making and ending
//===----------------------------------------------------------------------===//

Streams::Streams(const Context &context)
    : context_(context), ends_(context, eventNoTiming | eventBlockingSync), times_(context, 0) {
  context_.use();
  const Api &api = context_.api();
  int least = 0, greatest = 0;
  context_.check(api.priorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  // Copies between host and device go before kernels if kernels make them; other copies
  // take turns whatever their priority.
  for (Queue queue : allQueues)
    context_.check(api.streamCreate(&streams_[uint8_t(queue)], streamNonBlocking,
                                    queue == Queue::Compute ? least : greatest),
                   "cuStreamCreateWithPriority");
  context_.check(api.streamCreate(&direct_, streamNonBlocking, greatest), "cuStreamCreateWithPriority");
}

Streams::~Streams() {
  context_.use();
  for (CUstream stream : streams_)
    (void)context_.api().streamDestroy(stream);
  (void)context_.api().streamDestroy(direct_);
}

void Streams::finish() {
  Fence all;
  for (Queue queue : allQueues)
    all.join(Fence(queue, position(queue)));
  wait(all);
}

//===----------------------------------------------------------------------===//
// Enqueuing
//===----------------------------------------------------------------------===//

Streams::Body *&Streams::openBody() {
  static thread_local Body *body = nullptr;
  return body;
}

void Streams::requireReached(const Fence &fence, std::string_view who) const {
  for (Queue queue : allQueues)
    if (fence[queue] > position(queue))
      throw Error(ErrorCode::InvalidArgument, std::string(who) + " waits for entry " + std::to_string(fence[queue]) +
                                                  " of queue " + std::string(name(queue)) + ", which has had " +
                                                  std::to_string(position(queue)));
}

/// Puts `stream` behind what `entry` waits for.
void Streams::awaitFence(Queue queue, const Fence &after) {
  CUstream stream = streams_[uint8_t(queue)];
  std::vector<std::pair<size_t, EventRef>> events;
  {
    std::lock_guard lock(mutex_);
    for (size_t other = 0; other < queueCount; ++other) {
      uint64_t position = after.at[other], done = done_[other].load();
      if (other != size_t(queue) && position > std::max(done, awaited_[size_t(queue)][other]))
        events.emplace_back(other, entries_[other][position - done - 1].end);
    }
  }
  for (const auto &[other, event] : events) {
    CUresult result = context_.api().streamWaitEvent(stream, event.get(), 0);
    if (!context_.succeeded(result, "cuStreamWaitEvent")) {
      // Entries behind this one take it for granted that this event has passed.
      (void)context_.succeeded(context_.api().eventSynchronize(event.get()), "cuEventSynchronize");
      context_.check(result, "cuStreamWaitEvent");
    }
    awaited_[size_t(queue)][other] = std::max(awaited_[size_t(queue)][other], after.at[other]);
  }
}

/// Gives what `entry` is to its stream, with its errors in `entry`.
void Streams::give(Queue queue, Entry &entry) {
  CUstream stream = streams_[uint8_t(queue)];
  try {
    context_.throwIfLost();
    awaitFence(queue, entry.after);
    if (entry.work.run) {
      Body body{this, queue, &entry}, *outer = openBody();
      openBody() = &body;
      try {
        entry.work.run();
      } catch (...) {
        openBody() = outer;
        throw;
      }
      openBody() = outer;
    }
  } catch (...) {
    entry.error = std::current_exception();
  }
  if (!entry.end)
    return; // lost
  CUresult result = context_.api().eventRecord(entry.end.get(), stream);
  if (context_.succeeded(result, "cuEventRecord") || context_.isLost())
    return;
  // An event that was not recorded counts as passed, so the entry has to be.
  (void)context_.succeeded(context_.api().streamSynchronize(stream), "cuStreamSynchronize");
  if (!entry.error)
    entry.error = std::make_exception_ptr(
        Error(ErrorCode::Unsupported, "cuEventRecord gives " + context_.api().describe(result)));
}

uint64_t Streams::enqueue(Queue queue, const Fence &after, Work work) {
  requireReached(after, work.label.empty() ? "work" : work.label);
  context_.use();
  Entry entry;
  entry.after = after;
  entry.work = std::move(work);
  try {
    entry.end = ends_.take();
  } catch (...) {
    if (!context_.isLost())
      throw; // without an event nobody knows when it ends
  }
  give(queue, entry);
  std::unique_lock lock(mutex_);
  entries_[uint8_t(queue)].push_back(std::move(entry));
  uint64_t position = posted_[uint8_t(queue)].fetch_add(1) + 1;
  retire(lock);
  return position;
}

void Streams::keep(std::unique_ptr<Given> given) { openBody()->entry->given.push_back(std::move(given)); }

void Streams::call(std::function<void()> function) {
  if (!inBody())
    return function();
  context_.throwIfLost();
  auto call = std::make_unique<HostCall>(std::move(function));
  context_.check(context_.api().hostFunction(streams_[uint8_t(openBody()->queue)], HostCall::run, call.get()),
                 "cuLaunchHostFunc");
  keep(std::move(call));
}

//===----------------------------------------------------------------------===//
// Time
//===----------------------------------------------------------------------===//

std::shared_ptr<const Streams::ClockBase> Streams::clockBase() {
  std::lock_guard lock(directMutex_);
  if (base_ && seconds() - base_->madeSeconds < baseLifeSeconds)
    return base_;
  auto base = std::make_shared<ClockBase>();
  base->event = times_.take();
  double before = seconds();
  context_.check(context_.api().eventRecord(base->event.get(), direct_), "cuEventRecord");
  context_.check(context_.api().eventSynchronize(base->event.get()), "cuEventSynchronize");
  base->seconds = (before + seconds()) / 2;
  base->madeSeconds = base->seconds;
  // The device's clock says how far the bases lie apart: the host's would put the end of a
  // copy before its begin where a base lies between them. It is followed where the clocks have drifted.
  float milliseconds = 0;
  if (base_ && context_.succeeded(context_.api().eventElapsed(&milliseconds, base_->event.get(), base->event.get()),
                                  "cuEventElapsedTime")) {
    double byDevice = base_->seconds + double(milliseconds) * 1e-3;
    if (std::fabs(byDevice - base->seconds) < mostDriftSeconds)
      base->seconds = byDevice;
  }
  base_ = base;
  return base;
}

void Streams::stamp(const TimestampRef &stamp) {
  if (!inBody())
    return stamp->set(seconds());
  context_.throwIfLost();
  // The stamps of an entry have one base, so that none lies before one ahead of it.
  std::vector<Stamp> &stamps = openBody()->entry->stamps;
  Stamp later{stamp, times_.take(), stamps.empty() ? clockBase() : stamps.front().base};
  context_.check(context_.api().eventRecord(later.event.get(), streams_[uint8_t(openBody()->queue)]), "cuEventRecord");
  stamps.push_back(std::move(later));
}

//===----------------------------------------------------------------------===//
// Looking, waiting, telling
//===----------------------------------------------------------------------===//

bool Streams::hasPassed(const CUevent_st *event) const {
  if (context_.isLost())
    return true;
  CUresult result = context_.api().eventQuery(const_cast<CUevent>(event));
  if (result == notReady)
    return false;
  return context_.succeeded(result, "cuEventQuery") || context_.isLost();
}

bool Streams::isCounted(const Fence &fence) const {
  for (size_t i = 0; i < queueCount; ++i)
    if (fence.at[i] > done_[i].load(std::memory_order_acquire))
      return false;
  return true;
}

bool Streams::isPast(const Fence &fence) const {
  if (isCounted(fence))
    return true;
  if (isInHostFunction())
    return false;
  std::lock_guard lock(mutex_);
  context_.use();
  for (size_t i = 0; i < queueCount; ++i) {
    uint64_t done = done_[i].load();
    if (fence.at[i] <= done)
      continue;
    if (fence.at[i] - done > entries_[i].size() || !hasPassed(entries_[i][fence.at[i] - done - 1].end.get()))
      return false;
  }
  return true;
}

std::optional<size_t> Streams::findEnded() const {
  for (size_t i = 0; i < queueCount; ++i)
    if (!entries_[i].empty() && isCounted(entries_[i].front().after) && hasPassed(entries_[i].front().end.get()))
      return i;
  return std::nullopt;
}

void Streams::tellEnd(Entry &entry) {
  bool mayBegin = !entry.work.mayBegin || entry.work.mayBegin();
  // The first error by the order in which things were given; the body's own is the last.
  std::exception_ptr first;
  for (std::unique_ptr<Given> &given : entry.given) {
    if (context_.isLost()) {
      Given &kept = *given;
      kept.abandon(std::move(given));
      continue;
    }
    try {
      given->settle();
    } catch (...) {
      if (!first)
        first = std::current_exception();
    }
  }
  for (const Stamp &stamp : entry.stamps) {
    float milliseconds = 0;
    if (!context_.isLost() &&
        context_.succeeded(context_.api().eventElapsed(&milliseconds, stamp.base->event.get(), stamp.event.get()),
                           "cuEventElapsedTime"))
      stamp.stamp->set(stamp.base->seconds + double(milliseconds) * 1e-3);
    else
      stamp.stamp->set(seconds());
  }
  if (!first)
    first = entry.error;
  if (context_.isLost())
    first = std::make_exception_ptr(context_.loss());
  if (!entry.work.ended)
    return;
  if (!first || !mayBegin)
    return entry.work.ended(nullptr);
  try {
    std::rethrow_exception(first);
  } catch (const Error &error) {
    entry.work.ended(&error);
  } catch (const std::exception &exception) {
    Error error(ErrorCode::InvalidArgument, exception.what());
    entry.work.ended(&error);
  }
}

void Streams::retire(std::unique_lock<std::mutex> &lock) {
  if (isRetiring_)
    return;
  isRetiring_ = true;
  retirer_ = std::this_thread::get_id();
  while (auto queue = findEnded()) {
    // The entry stays in the list until it is counted, since others look up events by their place.
    Entry &front = entries_[*queue].front();
    Entry entry;
    entry.work = std::move(front.work);
    entry.given = std::move(front.given);
    entry.stamps = std::move(front.stamps);
    entry.error = std::move(front.error);
    lock.unlock();
    tellEnd(entry);
    entry = {};
    lock.lock();
    entries_[*queue].pop_front();
    done_[*queue].fetch_add(1, std::memory_order_release);
  }
  isRetiring_ = false;
  changed_.notify_all();
}

bool Streams::isDone(const Fence &fence) {
  if (isCounted(fence))
    return true;
  if (isInHostFunction())
    return false; // what the host has not seen yet
  std::unique_lock lock(mutex_);
  context_.use();
  retire(lock);
  return isCounted(fence);
}

bool Streams::waitFor(const Fence &fence, double limit) {
  if (isCounted(fence))
    return true;
  requireReached(fence, "the host");
  if (isInHostFunction())
    throw Error(ErrorCode::InvalidArgument, "a host function waits for its device");
  context_.use();
  double begin = seconds();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (isRetiring_ && retirer_ == std::this_thread::get_id())
      throw Error(ErrorCode::InvalidArgument, "what is told of an entry's end waits for its device");
    retire(lock);
    if (isCounted(fence))
      return true;
    double waited = seconds() - begin;
    if (waited >= limit)
      return false;
    if (isRetiring_) { // somebody else tells ends
      changed_.wait_for(lock, std::chrono::milliseconds(1));
      continue;
    }
    if (waited < spinSeconds) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
      continue;
    }
    // The event of the first queue that is behind; it is kept from being used again.
    EventRef next;
    for (size_t i = 0; i < queueCount && !next; ++i)
      if (uint64_t done = done_[i].load(); fence.at[i] > done)
        next = entries_[i][fence.at[i] - done - 1].end;
    lock.unlock();
    if (std::isfinite(limit))
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(limit - waited, spinSeconds)));
    else
      (void)context_.succeeded(context_.api().eventSynchronize(next.get()), "cuEventSynchronize");
    lock.lock();
  }
}

} // namespace segue::inline runtime::cuda
