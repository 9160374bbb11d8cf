//===- ThreadPoolTest.cpp - workers and those who call them ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Engine/ThreadPool.h"
#include "segue/runtime/Engine/Threads.h"
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SEGUE_NO_THREADS_AFTER_FORK 1
#endif
#endif

using namespace segue;

namespace {
constexpr std::chrono::seconds kPatience(60);

/// Waits until `done()`; false if it is not after a time that no healthy machine needs.
template <typename Done> bool waitFor(const Done &done) {
  auto until = std::chrono::steady_clock::now() + kPatience;
  while (!done())
    if (std::this_thread::yield(); std::chrono::steady_clock::now() > until)
      return false;
  return true;
}

/// Works for some microseconds, as a piece does.
void workShortly() {
  auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
  while (std::chrono::steady_clock::now() < until)
    ;
}

/// Runs regions until a worker has been in one, where it calls `inWorker` once. A caller goes on without a worker
/// that does not come, so it may take some. False if none comes at all.
template <typename Fn> bool runInWorker(const Fn &inWorker) {
  std::atomic<bool> came{false};
  return waitFor([&] {
    Threads(2).forEachItem(100, [&](int64_t, int64_t thread) {
      if (thread == 0)
        return came ? void() : workShortly();
      if (!came.exchange(true))
        inWorker();
    });
    return came.load();
  });
}
} // namespace

// Many threads have regions at once, of all sizes: every piece runs once, each thread of a region is one.
TEST(ThreadPoolTest, CallersShareTheWorkers) {
  constexpr int callers = 40, rounds = 50; // more than there are slots
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller)
    threads.emplace_back([&, caller] {
      for (int round = 0; round < rounds; ++round) {
        int count = 2 + (caller + round) % 4;
        int64_t items = 1 + (caller * 7 + round * 13) % 97;
        std::vector<int> seen(size_t(items), 0);
        std::vector<std::atomic<int>> inside(static_cast<size_t>(count));
        auto run = [&](int64_t item, int64_t thread) {
          wrong += inside[size_t(thread)].fetch_add(1) != 0;
          ++seen[size_t(item)];
          --inside[size_t(thread)];
        };
        Threads(count).forEachItem(items, run);
        Threads(count).parallelFor(items, 1 + round % 5, [&](int64_t begin, int64_t end) {
          for (int64_t item = begin; item < end; ++item)
            ++seen[size_t(item)];
        });
        for (int times : seen)
          wrong += times != 2;
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(wrong, 0);
}

// A worker that is held up in one piece keeps nobody from doing the others.
TEST(ThreadPoolTest, AWorkerThatIsHeldUpCostsOnePiece) {
  constexpr int64_t items = 100;
  std::atomic<bool> begun{false}, failed{false};
  EXPECT_TRUE(waitFor([&] {
    std::atomic<int64_t> done{0};
    Threads(2).forEachItem(items, [&](int64_t, int64_t thread) {
      if (thread == 0)
        workShortly();
      else if (!begun.exchange(true))
        failed = !waitFor([&] { return done == items - 1; });
      ++done;
    });
    failed = failed || done != items;
    return begun.load();
  }));
  EXPECT_FALSE(failed);
}

// A caller needs no worker: while all of them are busy with the region of another, it does its work alone.
TEST(ThreadPoolTest, ACallerDoesNotWaitForWorkersThatAreBusy) {
  std::atomic<bool> busy{false}, leave{false};
  std::thread other([&] {
    runInWorker([&] {
      busy = true;
      waitFor([&] { return leave.load(); });
    });
  });
  ASSERT_TRUE(waitFor([&] { return busy.load(); }));
  std::atomic<int64_t> items{0}, foreign{0};
  Threads(2).forEachItem(10, [&](int64_t, int64_t thread) {
    ++items;
    foreign += thread != 0;
  });
  EXPECT_EQ(items, 10);
  EXPECT_EQ(foreign, 0);
  leave = true;
  other.join();
}

// Handlers of signals run on threads of the program, not in the middle of a piece on a worker.
TEST(ThreadPoolTest, WorkersTakeNoSignals) {
  bool blocked = false;
  ASSERT_TRUE(runInWorker([&] {
    sigset_t set;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &set);
    blocked = ::sigismember(&set, SIGINT) == 1 && ::sigismember(&set, SIGUSR1) == 1;
  }));
  EXPECT_TRUE(blocked);
}

/// The state of a thread of this process, as the system says it: R, S and so on.
static char stateOf(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line((std::istreambuf_iterator<char>(file)), {});
  size_t end = line.rfind(')');
  return end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
}

// Who has nothing to do takes no time of the processors.
TEST(ThreadPoolTest, WorkersSleepWhenThereIsNothingToDo) {
  pid_t worker = 0;
  ASSERT_TRUE(runInWorker([&] { worker = ::gettid(); }));
  EXPECT_TRUE(waitFor([&] { return stateOf(worker) == 'S'; })) << stateOf(worker);
}

// Workers sleep and wake again, with every distance between two regions.
TEST(ThreadPoolTest, WorkersThatSleepAreWoken) {
  for (int pause = 0; pause < 40; ++pause) {
    std::this_thread::sleep_for(std::chrono::microseconds(pause * 50));
    ASSERT_TRUE(runInWorker([] {})) << pause;
  }
}

// A process that was forked, while others had regions, has workers of its own, and so has its child.
TEST(ThreadPoolTest, AForkedProcessHasWorkersOfItsOwn) {
#if defined(SEGUE_NO_THREADS_AFTER_FORK)
  GTEST_SKIP() << "the thread sanitizer starts no threads after a fork";
#endif
  ASSERT_TRUE(runInWorker([] {}));
  std::atomic<bool> leave{false};
  std::thread other([&] {
    while (!leave)
      Threads(3).forEachItem(50, [](int64_t, int64_t) {});
  });
  for (int round = 0; round < 20; ++round) {
    pid_t child = ::fork();
    if (child == 0) {
      bool came = runInWorker([] {});
      pid_t grandchild = ::fork();
      if (grandchild == 0)
        ::_exit(runInWorker([] {}) ? 0 : 1);
      int status = 1;
      ::waitpid(grandchild, &status, 0);
      ::_exit(came && status == 0 ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "round " << round;
  }
  leave = true;
  other.join();
  EXPECT_TRUE(runInWorker([] {}));
}

// A pool that was ended, as when a library is unloaded, leaves all work to those who call.
TEST(ThreadPoolTest, AnEndedPoolHasNoWorkers) {
  static ThreadPool pool;
  auto body = [](void *context, int thread) { static_cast<std::atomic<int> *>(context)[thread] += 1; };
  std::atomic<int> times[3]{};
  pool.run(3, body, times);
  pool.end();
  int before = times[1] + times[2];
  pool.run(3, body, times);
  EXPECT_EQ(times[0], 2);
  EXPECT_EQ(times[1] + times[2], before);
}

// Others who come back soon are believed for longer, up to a limit, and those who were gone as at first.
TEST(ThreadPoolTest, ACrowdThatStaysIsLookedForLessOften) {
  Crowd crowd;
  constexpr int64_t ms = 1'000'000, start = 1'000'000 * ms;
  EXPECT_FALSE(crowd.isThere(start));
  int64_t time = start, before = 0;
  for (int round = 0; round < 10; ++round) {
    crowd.notice(time);
    EXPECT_TRUE(crowd.isThere(time));
    int64_t hold = 0;
    while (crowd.isThere(time + hold))
      hold += ms;
    EXPECT_TRUE(round == 0 || hold == 2 * before || hold == before) << hold / ms;
    EXPECT_LE(hold, 2000 * ms);
    before = hold;
    time += hold + ms;
  }
  EXPECT_GE(before, 500 * ms);
  time += 10'000 * ms;
  crowd.notice(time);
  EXPECT_FALSE(crowd.isThere(time + 300 * ms));
}
