//===- ThreadLimitTest.cpp - a system that has no thread left -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "segue/runtime/Device/Device.h"
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace segue;

/// Opens the device in a process of a user who may have so many of them, threads included. Returns its exit status: 0
/// if the device opens, 1 for the error that says what is missing; anything else is a defect.
static int openWith(int processes, const char *spec) {
  pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t nobodyElse = 54321; // a limit is no limit for root
    struct rlimit limit = {rlim_t(processes), rlim_t(processes)};
    if ((::geteuid() == 0 && ::setresuid(nobodyElse, nobodyElse, nobodyElse) != 0) ||
        ::setrlimit(RLIMIT_NPROC, &limit) != 0)
      ::_exit(99);
    auto [code, what] = errorOf([&] { Device::open(spec); });
    bool isSaid = code == ErrorCode::IoFailed && what.find("no thread can be started to run the queue") != what.npos &&
                  what.find("ulimit -u") != what.npos;
    ::_exit(code == ErrorCode(-1) ? 0 : isSaid ? 1 : 2);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// A device has a thread for each queue: the first may start and the last not.
TEST(ThreadLimit, ADeviceSaysThatNoThreadIsLeft) {
  EXPECT_EQ(openWith(0, "sim:threads=1"), 1);
  if (::geteuid() != 0)
    GTEST_SKIP() << "other processes of this user count, too";
  bool opens = false;
  for (int processes = 1; processes < 12; ++processes) {
    int status = openWith(processes, "sim:threads=1");
    EXPECT_EQ(status, opens || status == 0 ? 0 : 1) << processes;
    opens |= status == 0;
  }
  EXPECT_TRUE(opens);
}
