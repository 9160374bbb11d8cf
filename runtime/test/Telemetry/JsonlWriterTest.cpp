//===- JsonlWriterTest.cpp - appends records to a telemetry file ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Telemetry/JsonlWriter.h"
#include "Session/TemporaryFolder.h"
#include <cmath>
#include <csignal>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace segue;

// Every record is in the file when write returns, in its own order of keys.
TEST(JsonlWriter, AppendsWholeLines) {
  TemporaryFolder folder;
  JsonlWriter writer(folder / "t.jsonl");
  EXPECT_EQ(folder.fileCount(), 0u);
  writer.write({{"step", 1}, {"a", 2}});
  EXPECT_EQ(readText(folder / "t.jsonl"), "{\"step\":1,\"a\":2}\n");
  JsonlWriter moved = std::move(writer);
  moved.write({{"step", 2}, {"nan", NAN}, {"text", "\xff"}});
  EXPECT_EQ(readText(folder / "t.jsonl"),
            "{\"step\":1,\"a\":2}\n{\"step\":2,\"nan\":null,\"text\":\"\xEF\xBF\xBD\"}\n");
  EXPECT_TRUE(moved.isOn());
  EXPECT_FALSE(writer.isOn()); // NOLINT: a moved-from writer is off
}

// A run that goes on appends; the half line of a killed one stays alone.
TEST(JsonlWriter, GoesOnAfterAnEarlierRun) {
  TemporaryFolder folder;
  writeText(folder / "t.jsonl", "{\"step\":1}\n{\"st");
  JsonlWriter(folder / "t.jsonl").write({{"step", 2}});
  EXPECT_EQ(readText(folder / "t.jsonl"), "{\"step\":1}\n{\"st\n{\"step\":2}\n");
}

// One warning, then off; the caller notices nothing.
TEST(JsonlWriter, TurnsOffWhenItCannotOpen) {
  TemporaryFolder folder;
  std::vector<std::string> warnings;
  JsonlWriter writer(folder / "missing/t.jsonl", [&](const std::string &text) { warnings.push_back(text); });
  EXPECT_TRUE(writer.isOn());
  writer.write({{"step", 1}});
  EXPECT_FALSE(writer.isOn());
  std::filesystem::create_directory(folder / "missing");
  writer.write({{"step", 2}});
  EXPECT_FALSE(std::filesystem::exists(folder / "missing/t.jsonl"));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "telemetry file \"" + (folder / "missing/t.jsonl").string() +
                             "\" cannot be opened: No such file or directory; this telemetry is off from here on");
}

TEST(JsonlWriter, TurnsOffWhenTheDiskIsFull) {
  std::vector<std::string> warnings;
  JsonlWriter writer("/dev/full", [&](const std::string &text) {
    warnings.push_back(text);
    throw std::runtime_error("a listener that throws stops nothing");
  });
  writer.write({{"step", 1}});
  writer.write({{"step", 2}});
  EXPECT_FALSE(writer.isOn());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("cannot be written: No space left on device"), std::string::npos) << warnings[0];
}

// A line that fits only in part is taken back. In a child process: the limit
// of file sizes holds for the whole process.
TEST(JsonlWriter, LeavesNoHalfLine) {
  TemporaryFolder folder;
  pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{20, 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    bool warned = false;
    JsonlWriter writer(folder / "t.jsonl", [&](const std::string &) { warned = true; });
    writer.write({{"step", 1}});
    bool wasOn = writer.isOn();
    writer.write({{"step", 2}, {"long", 123456789}});
    ::_exit(wasOn && warned && !writer.isOn() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(readText(folder / "t.jsonl"), "{\"step\":1}\n");
}
