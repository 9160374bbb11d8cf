//===- Interruption.cpp - a signal that ends a run in order ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Interruption.h"
#include "segue/runtime/OutputFile.h"
#include <atomic>
#include <unistd.h>

namespace segue::tool {

static constexpr int signals[] = {SIGINT, SIGTERM};

/// The signal that came. Handlers have no arguments of ours, so that what they know is here.
static std::atomic<int> received{0};
static std::atomic<const char *> partialFile{nullptr};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<const char *>::is_always_lock_free);

/// Calls nothing but what a handler may.
static void onSignal(int number) {
  int none = 0;
  if (received.compare_exchange_strong(none, number)) {
    static constexpr char text[] = "segue-run: ending after the step in progress; once more ends at once\n";
    [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, text, sizeof text - 1);
    return;
  }
  if (const char *path = partialFile)
    ::unlink(path);
  ::signal(number, SIG_DFL);
  ::kill(::getpid(), number); // delivered when this handler returns
}

Interruption::Interruption() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = onSignal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(signals); ++i) {
    ::sigaction(signals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN)
      ::sigaction(signals[i], &action, nullptr);
  }
}

Interruption::~Interruption() {
  for (size_t i = 0; i < std::size(signals); ++i)
    ::sigaction(signals[i], &before_[i], nullptr);
}

int Interruption::signal() const { return received; }

int Interruption::status(int otherwise) const { return received ? 128 + received : otherwise; }

Interruption::Writing::Writing(const std::filesystem::path &path) : partial_(OutputFile::partialOf(path).string()) {
  if (!partial_.empty())
    partialFile = partial_.c_str();
}

Interruption::Writing::~Writing() { partialFile = nullptr; }

} // namespace segue::tool
