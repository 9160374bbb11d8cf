//===- OutputFileTest.cpp - a file that appears whole or not at all -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/OutputFile.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include <csignal>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace segue;

// Before commit the old file is there, after it the new one, and nothing else.
TEST(OutputFile, AppearsAtCommit) {
  TemporaryFolder folder;
  writeText(folder / "f", "old");
  {
    OutputFile file(folder / "f");
    file.write("new ");
    file.write("text");
    EXPECT_EQ(readText(folder / "f"), "old");
    file.commit();
  }
  EXPECT_EQ(readText(folder / "f"), "new text");
  EXPECT_EQ(folder.fileCount(), 1u);
}

TEST(OutputFile, LeavesNothingWithoutCommit) {
  TemporaryFolder folder;
  {
    OutputFile(folder / "f").write("half");
  }
  EXPECT_EQ(folder.fileCount(), 0u);
}

TEST(OutputFile, RefusesASecondWriter) {
  TemporaryFolder folder;
  OutputFile file(folder / "f");
  EXPECT_ERROR(OutputFile(folder / "f"), IoFailed, "another process is writing it");
  file.write("whole");
  file.commit();
  EXPECT_EQ(readText(folder / "f"), "whole");
}

TEST(OutputFile, SaysWhyItCannotWrite) {
  TemporaryFolder folder;
  EXPECT_ERROR(OutputFile(folder / "missing/f"), IoFailed, "No such file or directory");
  std::filesystem::create_directory(folder / "d");
  OutputFile file(folder / "d");
  EXPECT_ERROR(file.commit(), IoFailed, "cannot be replaced");
}

// kill -9 in the middle of writing: the old file stays, and the next save works.
TEST(OutputFile, SurvivesAKilledWriter) {
  TemporaryFolder folder;
  writeText(folder / "f", "old");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    OutputFile file(folder / "f");
    file.write(std::string(1 << 20, 'x'));
    (void)!::write(ready[1], "!", 1);
    ::pause();
    ::_exit(0);
  }
  char mark;
  ASSERT_EQ(::read(ready[0], &mark, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_EQ(readText(folder / "f"), "old");
  OutputFile file(folder / "f");
  file.write("new");
  file.commit();
  EXPECT_EQ(readText(folder / "f"), "new");
  EXPECT_EQ(folder.fileCount(), 1u);
}
