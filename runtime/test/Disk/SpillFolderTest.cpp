//===- SpillFolderTest.cpp - where a spill file can lie -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Session/ExpectError.h"
#include "SpillTestFile.h"
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

using namespace segue;

TEST(SpillFolder, HasToBeOneOnADisk) {
  DiskFolder folder;
  std::filesystem::path missing = folder.path / "missing", file = folder.path / "file";
  std::ofstream(file) << "text";
  EXPECT_ERROR(SpillFile::open(missing, 4096), IoFailed, "missing: there is no such folder");
  EXPECT_ERROR(SpillFile::open(file, 4096), IoFailed, "file: is no folder");
  EXPECT_ERROR(SpillFile::open(file / "deeper", 4096), IoFailed, "cannot be looked at: Not a directory");
  EXPECT_ERROR(SpillFile::open("/dev/shm", 4096), InvalidArgument, "/dev/shm: lies in memory (tmpfs)");
  EXPECT_ERROR(SpillFile::open("/proc", 4096), IoFailed, "/proc: no spill file can be made here");
}

TEST(SpillFolder, MustBeWritable) {
  if (::geteuid() == 0) {
    // What root may do, a process that gave root up may not.
    DiskFolder folder;
    ::chmod(folder.path.c_str(), 0755);
    int status = inChild([&] {
      if (::setresuid(65534, 65534, 65534) != 0)
        return 1;
      EXPECT_ERROR(SpillFile::open(folder.path, 4096), IoFailed, "no spill file can be made here: Permission denied");
      return testing::Test::HasFailure() ? 2 : 0;
    });
    EXPECT_EQ(status, 0);
    return;
  }
  EXPECT_ERROR(SpillFile::open("/usr", 4096), IoFailed, "/usr: no spill file can be made here");
}

TEST(SpillFolder, OptionsOutOfRange) {
  DiskFolder folder;
  auto with = [](uint32_t pieceBytes, uint32_t depth) {
    SpillOptions options;
    options.pieceBytes = pieceBytes;
    options.depth = depth;
    return options;
  };
  EXPECT_ERROR(SpillFile::open(folder.path, 0), InvalidArgument, "its capacity is 1 to");
  EXPECT_ERROR(SpillFile::open(folder.path, UINT64_MAX), InvalidArgument, "its capacity is 1 to");
  EXPECT_ERROR(SpillFile::open(folder.path, 4096, with(4095, 1)), InvalidArgument, "pieces of 4095 bytes");
  EXPECT_ERROR(SpillFile::open(folder.path, 4096, with(0, 1)), InvalidArgument, "pieces of 0 bytes");
  EXPECT_ERROR(SpillFile::open(folder.path, 4096, with(4096, 0)), InvalidArgument, "0 pieces in flight");
  EXPECT_ERROR(SpillFile::open(folder.path, 4096, with(4096, 1025)), InvalidArgument, "1025 pieces in flight");
}

// The file is for this process alone, and all of its room is taken, whichever way it was made.
TEST(SpillFolder, TheFileIsPrivateAndReserved) {
  for (bool hasUnnamedFiles : {true, false})
    for (bool hasReservation : {true, false}) {
      SCOPED_TRACE(testing::Message() << hasUnnamedFiles << hasReservation);
      DiskFolder folder;
      SpillSeam seam;
      seam.hasUnnamedFiles = hasUnnamedFiles;
      seam.hasReservation = hasReservation;
      SpillOptions options;
      options.seam = &seam;
      constexpr size_t capacity = (9 << 20) + 4096;
      auto file = SpillFile::open(folder.path, capacity, options);
      EXPECT_EQ(folder.fileCount(), 0u);
      struct stat status;
      ASSERT_EQ(::fstat(descriptorIn(folder.path), &status), 0);
      EXPECT_EQ(status.st_mode & 07777, 0600u);
      EXPECT_EQ(status.st_nlink, 0u);
      EXPECT_EQ(uint64_t(status.st_size), capacity);
      EXPECT_GE(uint64_t(status.st_blocks) * 512, capacity);
      ShiftedMemory all(capacity);
      all.fill(1);
      file->read(all.data(), 0, capacity);
      EXPECT_EQ(size_t(std::count(all.data(), all.data() + capacity, std::byte())), capacity);
      EXPECT_EQ(file->writeTraffic().calls, 0u);
      EXPECT_EQ(file->writeTraffic().bytes, 0u);
    }
}

TEST(SpillFolder, NoRoom) {
  DiskFolder folder;
  struct statvfs before, after;
  ASSERT_EQ(::statvfs(folder.path.c_str(), &before), 0);
  uint64_t wanted = uint64_t(before.f_bfree) * before.f_frsize + (1ull << 40);
  EXPECT_ERROR(SpillFile::open(folder.path, wanted), IoFailed, "no room for a spill file of ");
  EXPECT_ERROR(SpillFile::open(folder.path, wanted), IoFailed,
               "iB are free there; free more, name a folder on another disk, or ask for a smaller capacity");
  EXPECT_EQ(folder.fileCount(), 0u);
  ASSERT_EQ(::statvfs(folder.path.c_str(), &after), 0);
  EXPECT_GT(double(after.f_bfree), 0.5 * double(before.f_bfree)) << "the room is not given back";
}

// A limit that the system enforces by a signal is asked before.
TEST(SpillFolder, LimitOfTheProcess) {
  DiskFolder folder;
  int status = inChild([&] {
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0)
      return 1;
    EXPECT_ERROR(SpillFile::open(folder.path, 2 << 20), IoFailed,
                 "no room for a spill file of 2.0 MiB: this process may write files of 1.0 MiB (ulimit -f");
    SpillFile::open(folder.path, 1 << 20);
    return testing::Test::HasFailure() ? 2 : 0;
  });
  EXPECT_EQ(status, 0);
}

// Killed in the middle of its work, a process leaves nothing behind.
TEST(SpillFolder, NothingIsLeftByWhoIsKilled) {
  for (bool hasUnnamedFiles : {true, false}) {
    DiskFolder folder;
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    pid_t child = ::fork();
    if (child == 0) {
      SpillSeam seam;
      seam.hasUnnamedFiles = hasUnnamedFiles;
      SpillOptions options;
      options.seam = &seam;
      auto file = SpillFile::open(folder.path, 32 << 20, options);
      std::vector<std::byte> bytes(32 << 20, std::byte(1));
      for (bool isTold = false;; isTold = true) {
        file->write(0, bytes.data(), bytes.size());
        if (!isTold && ::write(pipes[1], "", 1) != 1)
          ::_exit(1);
      }
    }
    ::close(pipes[1]);
    char told = 1;
    EXPECT_EQ(::read(pipes[0], &told, 1), 1) << "the child did not get to write";
    ::close(pipes[0]);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(folder.fileCount(), 0u);
  }
}

/// Makes the kernel refuse this system call to the process, from here on.
static bool refuse(long call, int cause) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, unsigned(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | unsigned(cause)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool hasRing() { return spillWays().size() == 4; }

// As in most containers: io_uring is forbidden, and threads do its work.
TEST(SpillEngine, ThreadsWhereTheKernelRefusesRings) {
  DiskFolder folder;
  SpillOptions ring;
  ring.engine = SpillOptions::Engine::Ring;
  for (int cause : {EPERM, ENOSYS}) {
    int status = inChild([&] {
      if (!refuse(SYS_io_uring_setup, cause))
        return 1;
      EXPECT_ERROR(SpillFile::open(folder.path, 1 << 20, ring), Unsupported, "take the engine Threads, or Best");
      auto file = SpillFile::open(folder.path, 1 << 20);
      std::vector<std::byte> bytes(1 << 20, std::byte(3)), back(1 << 20);
      file->write(0, bytes.data(), bytes.size());
      file->read(back.data(), 0, back.size());
      return file->engine() == "threads" && back == bytes && !testing::Test::HasFailure() ? 0 : 2;
    });
    EXPECT_EQ(status, 0);
  }
}

// A ring that the kernel takes no more entries for is an error, not a wait without end.
TEST(SpillEngine, ARingThatIsForbiddenLater) {
  if (!hasRing())
    GTEST_SKIP() << "no io_uring here";
  DiskFolder folder;
  int status = inChild([&] {
    auto file = SpillFile::open(folder.path, 64 << 20);
    std::vector<std::byte> bytes(64 << 20, std::byte(3));
    file->write(0, bytes.data(), bytes.size());
    if (file->engine() != "io_uring" || !refuse(SYS_io_uring_enter, EACCES))
      return 1;
    for (int i = 0; i < 2; ++i) {
      EXPECT_ERROR(file->write(0, bytes.data(), bytes.size()), IoFailed, "cannot be written: Permission denied (at 0)");
      EXPECT_ERROR(file->read(bytes.data(), 0, bytes.size()), IoFailed, "cannot be read: Permission denied (at 0)");
    }
    return testing::Test::HasFailure() ? 2 : 0;
  });
  EXPECT_EQ(status, 0);
}
