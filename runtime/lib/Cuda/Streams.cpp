//===- Streams.cpp - the queues of a GPU ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Streams.h"
#include "Recording.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace segue::inline runtime::cuda {

/// The seconds for which a base of times serves: cuEventElapsedTime gives a float, which is exact to 60 ns within a
/// second.
static constexpr double baseLifeSeconds = 1;
/// Stamps are kept to the host's clock as far as this.
static constexpr double mostDriftSeconds = 1e-3;

/// The most commands that are held back: the device may have nothing to do meanwhile, and the cost of
/// an entry is little by then.
static constexpr size_t mostHeld = 64;

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
    : context_(context), ends_(context, eventNoTiming | eventBlockingSync), times_(context, 0),
      recordings_(std::make_unique<Recordings>()) {
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
  context_.check(api.streamCreate(&recorder_, streamNonBlocking, least), "cuStreamCreateWithPriority");
}

Streams::~Streams() {
  context_.use();
  for (CUstream stream : streams_)
    (void)context_.api().streamDestroy(stream);
  (void)context_.api().streamDestroy(direct_);
  (void)context_.api().streamDestroy(recorder_);
}

void Streams::keepInCache(const void *begin, uint64_t bytes) {
  StreamAttribute attribute = {};
  attribute.window = {begin, bytes, /*share=*/1, cacheKept, cacheNormal};
  for (CUstream stream : {streams_[uint8_t(Queue::Compute)], recorder_})
    context_.check(context_.api().streamSetAttribute(stream, streamCacheWindow, &attribute), "cuStreamSetAttribute");
}

void Streams::finish() {
  Fence all;
  for (Queue queue : allQueues)
    all.join(Fence(queue, position(queue)));
  wait(all);
  std::lock_guard lock(giveMutex_);
  recordings_->clear(); // they have words of the device
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

/// Runs the body of an entry, if it has one.
void Streams::runBody(Body body) {
  if (!body.entry->work.run)
    return;
  struct Open {
    Body *outer;
    explicit Open(Body &body) : outer(std::exchange(openBody(), &body)) {}
    ~Open() { openBody() = outer; }
  } open(body);
  body.entry->work.run();
}

/// Gives what `entry` is to its stream, with its errors in `entry`.
void Streams::give(Queue queue, Entry &entry) {
  try {
    context_.throwIfLost();
    awaitFence(queue, entry.after);
    runBody({this, queue, &entry, streams_[uint8_t(queue)]});
  } catch (...) {
    entry.error = std::current_exception();
  }
  recordEnd(queue, entry);
}

/// Lets the event of an entry, and of all ahead of it that have the same one, stand for what its stream has been given.
void Streams::recordEnd(Queue queue, Entry &last) {
  if (!last.end)
    return; // lost
  CUstream stream = streams_[uint8_t(queue)];
  CUresult result = context_.api().eventRecord(last.end.get(), stream);
  if (context_.succeeded(result, "cuEventRecord") || context_.isLost())
    return;
  // An event that was not recorded counts as passed, so the entry has to be.
  (void)context_.succeeded(context_.api().streamSynchronize(stream), "cuStreamSynchronize");
  if (!last.error)
    last.error = std::make_exception_ptr(
        Error(ErrorCode::Unsupported, "cuEventRecord gives " + context_.api().describe(result)));
}

/// Returns an event for the end of an entry. Null if the device is lost.
EventRef Streams::takeEnd() {
  try {
    return ends_.take();
  } catch (...) {
    if (!context_.isLost())
      throw; // without an event nobody knows when it ends
    return nullptr;
  }
}

uint64_t Streams::append(Queue queue, Entry entry) {
  std::unique_lock lock(mutex_);
  entries_[uint8_t(queue)].push_back(std::move(entry));
  uint64_t position = posted_[uint8_t(queue)].fetch_add(1) + 1;
  if (queue == Queue::Compute && entries_[uint8_t(queue)].back().isGiven)
    givenPosition_ = position;
  retire(lock);
  return position;
}

uint64_t Streams::enqueue(Queue queue, const Fence &after, Work work) {
  requireReached(after, work.label.empty() ? "work" : work.label);
  context_.use();
  std::unique_lock<std::mutex> lock;
  if (queue == Queue::Compute) {
    lock = std::unique_lock(giveMutex_);
    if (!work.run || work.command.number)
      return hold(after, std::move(work));
    giveRow();
    known_.join(after);
  } else if (after[Queue::Compute] > givenPosition_) {
    giveHeld();
  }
  Entry entry;
  entry.after = after;
  entry.work = std::move(work);
  entry.end = takeEnd();
  give(queue, entry);
  return append(queue, std::move(entry));
}

void Streams::keep(std::unique_ptr<Given> given) {
  Body &body = *openBody();
  if (body.recording)
    body.recording->keep(body.place, std::move(given));
  else
    body.entry->given.push_back(std::move(given));
}

void Streams::count(std::atomic<uint64_t> &counter) {
  if (inBody() && openBody()->recording)
    openBody()->recording->count(counter);
  else
    counter.fetch_add(1, std::memory_order_relaxed);
}

void Streams::call(std::function<void()> function) {
  if (!inBody())
    return function();
  context_.throwIfLost();
  requireNoRecording();
  auto call = std::make_unique<HostCall>(std::move(function));
  context_.check(context_.api().hostFunction(openBody()->stream, HostCall::run, call.get()),
                 "cuLaunchHostFunc");
  keep(std::move(call));
}

//===----------------------------------------------------------------------===//
// Streams of others
//===----------------------------------------------------------------------===//

namespace {
/// An event that a stream waits for is used again when it has.
class KeptEvent final : public Given {
public:
  explicit KeptEvent(EventRef event) : event_(std::move(event)) {}
  void settle() override {}

private:
  EventRef event_;
};
} // namespace

uint64_t Streams::enqueueWaitFor(CUstream other) {
  Work work;
  work.label = "another library";
  work.run = [this, other] {
    EventRef event = ends_.take();
    context_.check(context_.api().eventRecord(event.get(), other), "cuEventRecord");
    context_.check(context_.api().streamWaitEvent(openBody()->stream, event.get(), 0), "cuStreamWaitEvent");
    keep(std::make_unique<KeptEvent>(std::move(event)));
  };
  return enqueue(Queue::Compute, {}, std::move(work));
}

void Streams::letWait(CUstream other, const Fence &fence) {
  requireReached(fence, "a stream of another library");
  context_.throwIfLost();
  context_.use();
  if (fence[Queue::Compute] > givenPosition_)
    giveHeld();
  std::vector<EventRef> events;
  {
    std::lock_guard lock(mutex_);
    for (size_t queue = 0; queue < queueCount; ++queue)
      if (uint64_t done = done_[queue].load(); fence.at[queue] > done)
        events.push_back(entries_[queue][fence.at[queue] - done - 1].end);
  }
  for (const EventRef &event : events)
    context_.check(context_.api().streamWaitEvent(other, event.get(), 0), "cuStreamWaitEvent");
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

/// Holds an entry of the compute queue back. A row ends ahead of one that waits for more than those before it did.
uint64_t Streams::hold(const Fence &after, Work work) {
  bool waits = false;
  for (Queue other : allQueues)
    waits |= other != Queue::Compute && after[other] > known_[other];
  if (waits || held_.size() == mostHeld)
    giveRow();
  known_.join(after);
  Entry entry;
  entry.after = after;
  entry.work = std::move(work);
  entry.isGiven = false;
  entry.end = held_.empty() ? takeEnd() : held_.front()->end;
  uint64_t position = append(Queue::Compute, std::move(entry));
  std::lock_guard lock(mutex_);
  held_.push_back(&entries_[uint8_t(Queue::Compute)].back()); // which stays where it is
  return position;
}

void Streams::giveHeld() {
  if (inBody() || isInHostFunction())
    return;
  context_.use();
  std::lock_guard lock(giveMutex_);
  giveRow();
}

void Streams::giveRow() {
  if (held_.empty())
    return;
  std::vector<Entry *> row = std::exchange(held_, {});
  row_ = row;
  rowBegin_ = rowNext_ = 0;
  try {
    context_.throwIfLost();
    Fence after;
    for (const Entry *entry : row)
      after.join(entry->after);
    awaitFence(Queue::Compute, after);
    if (!giveRecorded())
      giveCommands();
  } catch (...) { // nothing of the row was given
    for (Entry *entry : row)
      entry->error = std::current_exception();
  }
  endRow(row.size());
  row_ = {};
}

/// Ends the row ahead of `end`.
void Streams::endRow(size_t end) {
  if (end == rowBegin_)
    return;
  recordEnd(Queue::Compute, *row_[end - 1]);
  std::lock_guard lock(mutex_);
  for (size_t i = rowBegin_; i < end; ++i)
    row_[i]->isGiven = true;
  givenPosition_ += end - rowBegin_;
  rowBegin_ = end;
}

void Streams::giveCommands() {
  for (Entry *entry : row_) {
    try {
      runBody({this, Queue::Compute, entry, streams_[uint8_t(Queue::Compute)]});
    } catch (...) {
      entry->error = std::current_exception();
    }
    ++rowNext_;
  }
}

/// Lets a body wait for `fence`, whose entries stand before it in the row.
void Streams::splitRow(const Fence &fence) {
  requireNoRecording();
  if (row_.empty() || fence[Queue::Compute] > givenPosition_ + (rowNext_ - rowBegin_))
    throw Error(ErrorCode::InvalidArgument, "a body waits for its own entry, or for one behind it");
  EventRef end = takeEnd();
  endRow(rowNext_);
  std::lock_guard lock(mutex_);
  for (size_t i = rowNext_; i < row_.size(); ++i)
    row_[i]->end = end;
}

/// Gives the row by one call, if it has been seen before; returns false if it is to be given as it is.
bool Streams::giveRecorded() {
  RowKey key;
  for (const Entry *entry : row_)
    if (entry->work.run)
      key.add(entry->work.command);
  if (key.commands() < 2)
    return false;
  auto [recording, records] = recordings_->find(key);
  if (records) {
    recording = record();
    recordings_->keep(key, recording);
  }
  if (!recording)
    return false;
  recording->launch(streams_[uint8_t(Queue::Compute)]);
  auto run = recording->begun();
  for (size_t i = 0; i < row_.size(); ++i)
    row_[i]->given.push_back(recording->givenOf(i, run));
  return true;
}

/// Records the row, which is not done. Null where the driver cannot, or where some of it is
/// not for the driver alone to do again.
std::shared_ptr<Recording> Streams::record() {
  const Api &api = context_.api();
  // The stream is none of a queue, so that no other thread gives it anything; memory may be taken meanwhile.
  if (!context_.succeeded(api.beginCapture(recorder_, captureRelaxed), "cuStreamBeginCapture")) {
    context_.throwIfLost();
    return nullptr;
  }
  auto recording = std::make_shared<Recording>(context_, row_.size());
  bool isWhole = true;
  try {
    for (size_t i = 0; i < row_.size(); ++i)
      runBody({this, Queue::Compute, row_[i], recorder_, recording.get(), i});
  } catch (...) {
    isWhole = false; // what is wrong is told where it is given in earnest
  }
  CUgraph graph = nullptr;
  isWhole &= context_.succeeded(api.endCapture(recorder_, &graph), "cuStreamEndCapture");
  isWhole = isWhole && recording->make(graph);
  if (graph)
    (void)context_.succeeded(api.graphDestroy(graph), "cuGraphDestroy");
  context_.throwIfLost();
  return isWhole ? recording : nullptr;
}

/// A host function and a stamp are of one time: the host has to make them anew.
void Streams::requireNoRecording() {
  if (openBody() && openBody()->recording)
    throw Error(ErrorCode::Unsupported, "host functions, stamps and waits are not recorded");
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
  double after = seconds();
  base->seconds = base->madeSeconds = (before + after) / 2;
  base->doubtSeconds = (after - before) / 2; // on a busy machine it may be looked at late
  // The device's clock says how far the bases lie apart: the host's would put the end of a
  // copy before its begin where a base lies between them. It is followed where the clocks have drifted.
  float milliseconds = 0;
  if (base_ && context_.succeeded(context_.api().eventElapsed(&milliseconds, base_->event.get(), base->event.get()),
                                  "cuEventElapsedTime")) {
    double byDevice = base_->seconds + double(milliseconds) * 1e-3;
    if (std::fabs(byDevice - base->seconds) < mostDriftSeconds + base->doubtSeconds + base_->doubtSeconds) {
      base->seconds = byDevice;
      base->doubtSeconds = std::max(base->doubtSeconds, base_->doubtSeconds);
    }
  }
  base_ = base;
  return base;
}

void Streams::stamp(const TimestampRef &stamp) {
  if (!inBody())
    return stamp->set(seconds());
  context_.throwIfLost();
  requireNoRecording();
  // The stamps of an entry have one base, so that none lies before one ahead of it.
  std::vector<Stamp> &stamps = openBody()->entry->stamps;
  Stamp later{stamp, times_.take(), stamps.empty() ? clockBase() : stamps.front().base};
  context_.check(context_.api().eventRecord(later.event.get(), openBody()->stream), "cuEventRecord");
  stamps.push_back(std::move(later));
}

//===----------------------------------------------------------------------===//
// Looking, waiting, telling
//===----------------------------------------------------------------------===//

bool Streams::hasPassed(const Entry &entry) const {
  if (!entry.isGiven)
    return false;
  if (context_.isLost())
    return true;
  CUresult result = context_.api().eventQuery(entry.end.get());
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
    if (fence.at[i] - done > entries_[i].size() || !hasPassed(entries_[i][fence.at[i] - done - 1]))
      return false;
  }
  return true;
}

std::optional<size_t> Streams::findEnded() const {
  for (size_t i = 0; i < queueCount; ++i)
    if (!entries_[i].empty() && isCounted(entries_[i].front().after) && hasPassed(entries_[i].front()))
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
  if (fence[Queue::Compute] > givenPosition_)
    giveHeld();
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
  if (fence[Queue::Compute] > givenPosition_)
    inBody() ? splitRow(fence) : giveHeld();
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
