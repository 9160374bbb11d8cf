//===- ThreadPool.cpp - the threads that devices share --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The state of a slot is one word. A worker that joins adds one to it while the region is open,
// and takes one off when it leaves, so that a caller that has closed its region knows how many
// are left. Slots are never freed: a worker may look at one whose region is long over.
//
//===----------------------------------------------------------------------===//

#include "ThreadPool.h"
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <linux/futex.h>
#include <memory>
#include <new>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace segue::inline runtime {

// The bits of a slot's state, from the top: workers may join; the caller sleeps; the slot
// has a caller; the number of its threads (15 bits); the workers inside (14 bits).
static constexpr uint32_t kOpen = 1u << 31, kCallerSleeps = 1u << 30, kTaken = 1u << 29, kOneThread = 1u << 14,
                          kInside = kOneThread - 1;

static int threadsOf(uint32_t state) { return int((state & (kTaken - 1)) / kOneThread); }

/// The nanoseconds that a thread looks before it sleeps: where its processor would idle, and where others want it.
static constexpr int64_t kLongLook = 500'000, kShortLook = 20'000;

/// A thread that did not get a quarter of so many nanoseconds shares its processor with others.
static constexpr int64_t kCheckTime = 20'000'000, kLostShare = 4;

static thread_local bool insideRegion = false;

static int64_t timeOf(clockid_t clock) {
  timespec time;
  ::clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000ll + time.tv_nsec;
}

static int64_t now() { return timeOf(CLOCK_MONOTONIC); }

static void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Sleeps while `word` holds `value`, until somebody wakes a bit of `mask`.
static void sleepOn(std::atomic<uint32_t> &word, uint32_t value, uint32_t mask) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, value, nullptr, nullptr, mask);
}

static void wake(std::atomic<uint32_t> &word, uint32_t mask) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_BITSET_PRIVATE, INT32_MAX, nullptr, nullptr, mask);
}

/// The bit that wakes a worker.
static uint32_t bitOf(int thread) { return 1u << (thread % 32); }

/// The bits of the workers that help a region of so many threads.
static uint32_t bitsOf(int threads) { return threads > 32 ? ~0u : (1u << (threads - 1)) * 2 - 2; }

//===----------------------------------------------------------------------===//
// Waiting
//===----------------------------------------------------------------------===//

void Crowd::notice(int64_t time) {
  int64_t until = until_.load(std::memory_order_relaxed), hold = hold_.load(std::memory_order_relaxed);
  if (time < until)
    return;
  // Who is there again at once is there to stay: each look for them costs some time.
  hold = time - until < hold ? std::min(2 * hold, kMostHold) : kLeastHold;
  hold_.store(hold, std::memory_order_relaxed);
  until_.store(time + hold, std::memory_order_relaxed);
}

/// Looks from `begin` on until `done()`; false where it is time to sleep.
template <typename Done> static bool lookFor(const Done &done, int64_t begin, const Crowd &crowd) {
  int64_t most = crowd.isThere(begin) ? kShortLook : kLongLook;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done())
        return true;
      pause();
    }
  } while (now() - begin < most);
  return false;
}

namespace {
/// A Share watches how much of the time since it woke a thread had a processor, and notices a crowd.
class Share {
public:
  /// Begins anew, at `time`.
  void begin(int64_t time) {
    wall_ = time;
    cpu_ = timeOf(CLOCK_THREAD_CPUTIME_ID);
  }

  void check(int64_t time, Crowd &crowd) {
    int64_t wall = wall_, cpu = cpu_;
    if (time - wall < kCheckTime)
      return;
    begin(time);
    if ((time - wall - (cpu_ - cpu)) * kLostShare > time - wall)
      crowd.notice(time);
  }

private:
  int64_t wall_ = 0, cpu_ = 0;
};
} // namespace

//===----------------------------------------------------------------------===//
// Workers
//===----------------------------------------------------------------------===//

struct ThreadPool::Worker {
  ThreadPool *pool;
  int thread;
  pthread_t handle;
  Worker *before;
};

void *ThreadPool::start(void *given) {
  auto *worker = static_cast<Worker *>(given);
  char name[16];
  std::snprintf(name, sizeof name, "segue-%d", worker->thread);
  ::pthread_setname_np(::pthread_self(), name);
  worker->pool->work(worker->thread);
  return nullptr;
}

void ThreadPool::addWorkers(int count) noexcept {
  std::lock_guard lock(mutex_);
  [[maybe_unused]] static int told = ::pthread_atfork(nullptr, nullptr, [] { std::construct_at(&ofProcess()); });
  // Signals are for the threads of the program.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  while (workers_.load(std::memory_order_relaxed) < count && !isFull_.load(std::memory_order_relaxed)) {
    int thread = workers_.load(std::memory_order_relaxed) + 1;
    auto *worker = new (std::nothrow) Worker{this, thread, {}, last_};
    if (!worker || ::pthread_create(&worker->handle, nullptr, start, worker) != 0) {
      delete worker;
      isFull_.store(true, std::memory_order_relaxed);
      break;
    }
    last_ = worker;
    workers_.store(thread, std::memory_order_relaxed);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ThreadPool::work(int thread) {
  Share share;
  share.begin(now());
  while (true) {
    uint32_t opened = opened_.load();
    if (ended_.load())
      return;
    help(thread);
    int64_t begin = now();
    share.check(begin, crowd_);
    auto isAnother = [&] { return opened_.load(std::memory_order_acquire) != opened; };
    if (lookFor(isAnother, begin, crowd_))
      continue;
    // In this order: a caller opens a region first and asks for sleepers then.
    sleepers_.fetch_add(1);
    while (!isAnother())
      sleepOn(opened_, opened, bitOf(thread));
    sleepers_.fetch_sub(1);
    share.begin(now());
  }
}

void ThreadPool::help(int thread) {
  for (Slot &slot : slots_) {
    uint32_t state = slot.state.load(std::memory_order_relaxed);
    while ((state & kOpen) && thread < threadsOf(state)) {
      if (!slot.state.compare_exchange_weak(state, state + 1, std::memory_order_acquire))
        continue;
      insideRegion = true;
      slot.body(slot.context, thread);
      insideRegion = false;
      if (slot.state.fetch_sub(1, std::memory_order_release) == (kTaken | kCallerSleeps | 1))
        wake(slot.state, ~0u);
      break;
    }
  }
}

//===----------------------------------------------------------------------===//
// Callers
//===----------------------------------------------------------------------===//

ThreadPool::Slot *ThreadPool::takeSlot() {
  for (Slot &slot : slots_) {
    uint32_t isFree = 0;
    if (slot.state.load(std::memory_order_relaxed) == 0 &&
        slot.state.compare_exchange_strong(isFree, kTaken, std::memory_order_acquire))
      return &slot;
  }
  return nullptr;
}

void ThreadPool::waitForHelpers(Slot &slot) {
  auto isAlone = [&] { return (slot.state.load(std::memory_order_acquire) & kInside) == 0; };
  if (lookFor(isAlone, now(), crowd_))
    return;
  uint32_t state = slot.state.fetch_or(kCallerSleeps, std::memory_order_acquire) | kCallerSleeps;
  while (state & kInside) {
    sleepOn(slot.state, state, ~0u);
    state = slot.state.load(std::memory_order_acquire);
  }
}

void ThreadPool::run(int threads, Body body, void *context) noexcept {
  threads = std::min(threads, int(kInside));
  if (workers_.load(std::memory_order_relaxed) < threads - 1 && !isFull_.load(std::memory_order_relaxed))
    addWorkers(threads - 1);
  Slot *slot = takeSlot();
  if (slot) {
    slot->body = body;
    slot->context = context;
    slot->state.store(kOpen | kTaken | uint32_t(threads) * kOneThread, std::memory_order_release);
    opened_.fetch_add(1);
    if (sleepers_.load() > 0)
      wake(opened_, bitsOf(threads));
  }
  insideRegion = true;
  body(context, 0);
  insideRegion = false;
  if (!slot)
    return;
  uint32_t closed = kOpen + uint32_t(threads) * kOneThread;
  if (slot->state.fetch_sub(closed, std::memory_order_acq_rel) - closed != kTaken)
    waitForHelpers(*slot);
  slot->state.store(0, std::memory_order_release);
}

//===----------------------------------------------------------------------===//
// The pool of the process
//===----------------------------------------------------------------------===//

static constinit ThreadPool pool;

namespace {
/// Ends the workers before the code that they run may be unloaded.
struct AtExit {
  ~AtExit() { pool.end(); }
} atExit;
} // namespace

ThreadPool &ThreadPool::ofProcess() { return pool; }

bool ThreadPool::isInsideRegion() { return insideRegion; }

bool ThreadPool::isSlow() const { return sleepers_.load(std::memory_order_relaxed) > 0 || crowd_.isThere(now()); }

void ThreadPool::end() noexcept {
  if (insideRegion) // a body ends the process, and would wait for itself
    return;
  std::lock_guard lock(mutex_);
  isFull_.store(true, std::memory_order_relaxed);
  ended_.store(true);
  opened_.fetch_add(1);
  wake(opened_, ~0u);
  while (Worker *worker = last_) {
    ::pthread_join(worker->handle, nullptr);
    last_ = worker->before;
    delete worker;
  }
}

} // namespace segue::inline runtime
