//===- OutputFileTest.cpp - a file that appears whole or not at all -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/OutputFile.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include <csignal>
#include <fcntl.h>
#include <future>
#include <gtest/gtest.h>
#include <sys/stat.h>
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

// Before the long work as after it, and nothing is left by having asked.
TEST(OutputFile, RefusesBeforeTheWork) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "d");
  writeText(folder / "f", "old");
  std::filesystem::create_symlink(folder / "d", folder / "link to d");
  std::filesystem::create_symlink("round", folder / "round");
  size_t before = folder.fileCount();
  const std::tuple<std::filesystem::path, const char *> cases[] = {
      {folder / "missing/f", "No such file or directory"},
      {folder / "f/below", "Not a directory"},
      {folder / "d", "is a directory; name a file in it"},
      {folder / "link to d", "is a directory; name a file in it"},
      {folder / "d/", "names no file"},
      {"", "names no file"},
      {folder / "round", "Too many levels of symbolic links"},
      {folder / std::string(300, 'x'), "File name too long"},
  };
  for (const auto &[path, why] : cases) {
    SCOPED_TRACE(path);
    EXPECT_ERROR(OutputFile::check(path), IoFailed, path.string() + ": ");
    EXPECT_ERROR(OutputFile::check(path), IoFailed, why);
    EXPECT_ERROR(OutputFile{path}, IoFailed, why);
  }
  OutputFile::check(folder / "f");
  OutputFile::check(folder / "new");
  EXPECT_EQ(readText(folder / "f"), "old");
  EXPECT_EQ(folder.fileCount(), before);
  OutputFile writer(folder / "f");
  EXPECT_ERROR(OutputFile::check(folder / "f"), IoFailed, "another process is writing it");
}

// What a killed slab build left is there to go on with, also after the question.
TEST(OutputFile, ACheckKeepsWhatIsPartial) {
  TemporaryFolder folder;
  {
    OutputFile file(folder / "slab", OutputFile::Existing::Keep);
    file.write("half");
  }
  OutputFile::check(folder / "slab");
  EXPECT_EQ(OutputFile(folder / "slab", OutputFile::Existing::Keep).size(), 4u);
}

// A link stays a link, through several and relative ones, also to nothing yet;
// what it leads to is replaced in its own folder.
TEST(OutputFile, FollowsLinks) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "d");
  writeText(folder / "d/target", "old");
  std::filesystem::create_symlink("d/target", folder / "link");
  std::filesystem::create_symlink("link", folder / "link to link");
  std::filesystem::create_symlink("d/new", folder / "dangling");
  for (const auto &[link, target] : {std::pair("link to link", "d/target"), std::pair("dangling", "d/new")}) {
    OutputFile file(folder / link);
    file.write("new");
    EXPECT_TRUE(std::filesystem::exists((folder / target).string() + ".partial"));
    EXPECT_EQ(OutputFile::partialOf(folder / link), (folder / target).string() + ".partial");
    file.commit();
    EXPECT_TRUE(std::filesystem::is_symlink(folder / link));
    EXPECT_FALSE(std::filesystem::is_symlink(folder / target));
    EXPECT_EQ(readText(folder / target), "new");
  }
  EXPECT_EQ(std::filesystem::read_symlink(folder / "link to link"), "link");
  EXPECT_EQ(folder.fileCount(), 4u);
  std::error_code none;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "d", none), {}), 2);
}

TEST(OutputFile, KeepsPermissions) {
  TemporaryFolder folder;
  writeText(folder / "f", "secret");
  ASSERT_EQ(::chmod((folder / "f").c_str(), 0600), 0);
  OutputFile file(folder / "f");
  file.write("new");
  file.commit();
  struct stat status;
  ASSERT_EQ(::stat((folder / "f").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

// A pipe is no file that could be replaced: its reader gets the bytes, and it
// stays a pipe. Asking first does not open it, which would end the reader.
TEST(OutputFile, WritesThroughAPipe) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", folder / "link");
  for (const char *name : {"pipe", "link"}) {
    auto reader = std::async(std::launch::async, [&] { return readText(folder / "pipe"); });
    OutputFile::check(folder / name);
    EXPECT_EQ(OutputFile::partialOf(folder / name), "");
    OutputFile file(folder / name);
    file.write("through ");
    file.write("it");
    file.commit();
    EXPECT_EQ(reader.get(), "through it");
    EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  }
  EXPECT_ERROR(OutputFile(folder / "pipe", OutputFile::Existing::Keep), IoFailed, "is a device or a pipe");
  EXPECT_EQ(folder.fileCount(), 2u);
}

// /dev/fd/N of a file is that open file: what stands in it stays before what is
// written, and its name is not given to another.
TEST(OutputFile, WritesBehindWhatAnOpenFileHas) {
  TemporaryFolder folder;
  writeText(folder / "f", "first ");
  int descriptor = ::open((folder / "f").c_str(), O_WRONLY | O_APPEND);
  ASSERT_GE(descriptor, 0);
  OutputFile file("/dev/fd/" + std::to_string(descriptor));
  file.write("then this, ");
  file.commit();
  EXPECT_EQ(::write(descriptor, "last", 4), 4);
  ::close(descriptor);
  EXPECT_EQ(readText(folder / "f"), "first then this, last");
  EXPECT_EQ(folder.fileCount(), 1u);
}

// By a link in a folder of ours, so that whatever goes wrong here cannot replace
// the device of this machine.
TEST(OutputFile, SaysThatADeviceIsFull) {
  TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "full");
  OutputFile file(folder / "full");
  EXPECT_ERROR(file.write("anything"), IoFailed, "full: cannot be written: No space left on device");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "full"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
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
