//===- SignaturesTest.cpp - whose machine code runs -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Program/TestFile.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Program/Signatures.h"
#include <algorithm>
#include <cstdlib>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace segue;
using namespace segue::test;

static std::span<const std::byte> bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

static mode_t modeOf(const std::filesystem::path &path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

namespace {
/// A variable of the environment that is what it was afterwards.
class Variable {
public:
  Variable(const char *name, const char *value) : name_(name) {
    if (const char *before = std::getenv(name))
      before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }

private:
  void set(const char *value) { value ? ::setenv(name_, value, 1) : ::unsetenv(name_); }

  const char *name_;
  std::optional<std::string> before_;
};
} // namespace

TEST(SignaturesTest, WhatWasSignedIsKnownByItsBytes) {
  TemporaryFolder home;
  Signatures signatures(home / "data/segue");
  SignatureCheck before = signatures.check(bytesOf("a file"));
  EXPECT_FALSE(before.isSigned);
  EXPECT_EQ(before.reason, "it is not signed: this user has compiled or trusted no file yet");
  EXPECT_EQ(home.fileCount(), 0u) << "a check made something";

  EXPECT_EQ(signatures.sign(bytesOf("a file")), "");
  EXPECT_TRUE(signatures.check(bytesOf("a file")).isSigned);
  for (const char *other : {"a filf", "a file\n", "a fil", "", "A file"})
    EXPECT_FALSE(signatures.check(bytesOf(other)).isSigned) << other;
  EXPECT_EQ(signatures.check(bytesOf("")).reason,
            "it is not signed with the key of this user: it was compiled elsewhere, or changed since");
  EXPECT_EQ(modeOf(home / "data/segue"), 0700u);
  EXPECT_EQ(modeOf(home / "data/segue/key"), 0600u);
  EXPECT_EQ(modeOf(home / "data/segue/signatures"), 0600u);

  // Signing again adds nothing.
  std::string list = readText(home / "data/segue/signatures");
  EXPECT_EQ(list.size(), 65u);
  EXPECT_EQ(signatures.sign(bytesOf("a file")), "");
  EXPECT_EQ(readText(home / "data/segue/signatures"), list);
}

TEST(SignaturesTest, AListWithoutItsKeySaysNothing) {
  TemporaryFolder home;
  Signatures mine(home / "mine"), theirs(home / "theirs");
  EXPECT_EQ(mine.sign(bytesOf("x")), "");
  EXPECT_EQ(theirs.sign(bytesOf("y")), "");
  std::filesystem::copy_file(home / "theirs/signatures", home / "mine/signatures",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(mine.check(bytesOf("x")).isSigned);
  EXPECT_FALSE(mine.check(bytesOf("y")).isSigned);

  // A lost key: all is refused, and signed again by a new one.
  EXPECT_EQ(mine.sign(bytesOf("x")), "");
  std::filesystem::remove(home / "mine/key");
  EXPECT_FALSE(mine.check(bytesOf("x")).isSigned);
  EXPECT_EQ(mine.sign(bytesOf("z")), "");
  EXPECT_FALSE(mine.check(bytesOf("x")).isSigned);
  EXPECT_TRUE(mine.check(bytesOf("z")).isSigned);
}

TEST(SignaturesTest, AKeyThatOthersReachIsNotUsed) {
  TemporaryFolder home;
  Signatures signatures(home / "segue");
  EXPECT_EQ(signatures.sign(bytesOf("x")), "");
  auto expectRefused = [&](const std::string &what) {
    SignatureCheck check = signatures.check(bytesOf("x"));
    EXPECT_FALSE(check.isSigned);
    EXPECT_NE(check.reason.find(what), std::string::npos) << check.reason;
    std::string problem = signatures.sign(bytesOf("x"));
    EXPECT_NE(problem.find(what), std::string::npos) << problem;
  };
  ::chmod((home / "segue/key").c_str(), 0640);
  expectRefused("segue/key can be read by others; take that right away with chmod go-rwx");
  ::chmod((home / "segue/key").c_str(), 0600);
  ::chmod((home / "segue").c_str(), 0720);
  expectRefused("segue can be written by others");
  ::chmod((home / "segue").c_str(), 0700);
  EXPECT_TRUE(signatures.check(bytesOf("x")).isSigned);

  std::filesystem::rename(home / "segue/key", home / "key");
  std::filesystem::create_symlink(home / "key", home / "segue/key");
  expectRefused("segue/key cannot be opened");
  std::filesystem::remove(home / "segue/key");
  writeText(home / "segue/key", "short");
  ::chmod((home / "segue/key").c_str(), 0600);
  expectRefused("segue/key is damaged; remove it, and a new one is made");
}

TEST(SignaturesTest, WithoutAHomeNothingIsSigned) {
  Signatures signatures("/dev/null/segue");
  std::string problem = signatures.sign(bytesOf("x"));
  EXPECT_NE(problem.find("/dev/null/segue cannot be made"), std::string::npos) << problem;
  EXPECT_FALSE(signatures.check(bytesOf("x")).isSigned);
}

TEST(SignaturesTest, ProcessesThatBeginTogetherShareAKey) {
  TemporaryFolder home;
  Signatures signatures(home / "segue");
  constexpr int processes = 8, files = 20;
  auto file = [](int process, int index) { return std::to_string(process) + "." + std::to_string(index); };
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process) {
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < files; ++i)
        good &= signatures.sign(bytesOf(file(process, i))).empty();
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  for (int process = 0; process < processes; ++process)
    for (int i = 0; i < files; ++i)
      EXPECT_TRUE(signatures.check(bytesOf(file(process, i))).isSigned) << file(process, i);
  EXPECT_EQ(readText(home / "segue/signatures").size(), size_t(processes * files * 65));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(home / "segue"), {}), 2) << "something was left over";
}

TEST(SignaturesTest, TheOldestGoFirst) {
  TemporaryFolder home;
  Signatures signatures(home / "segue");
  EXPECT_EQ(signatures.sign(bytesOf("old")), "");
  std::string list = readText(home / "segue/signatures");
  for (size_t i = 2; i < Signatures::most; ++i)
    list += std::string(64, 'a') + "\n";
  writeText(home / "segue/signatures", list);
  EXPECT_EQ(signatures.sign(bytesOf("new")), "");
  EXPECT_TRUE(signatures.check(bytesOf("old")).isSigned);
  EXPECT_EQ(signatures.sign(bytesOf("newest")), "");
  EXPECT_FALSE(signatures.check(bytesOf("old")).isSigned);
  EXPECT_TRUE(signatures.check(bytesOf("new")).isSigned);
  EXPECT_TRUE(signatures.check(bytesOf("newest")).isSigned);
  EXPECT_EQ(readText(home / "segue/signatures").size(), (Signatures::most / 2 + 1) * 65);
}

TEST(SignaturesTest, ATornLineHarmsNoOther) {
  TemporaryFolder home;
  Signatures signatures(home / "segue");
  EXPECT_EQ(signatures.sign(bytesOf("x")), "");
  std::string line = readText(home / "segue/signatures");
  writeText(home / "segue/signatures", line.substr(0, 30)); // a full disk
  EXPECT_FALSE(signatures.check(bytesOf("x")).isSigned);
  EXPECT_EQ(signatures.sign(bytesOf("y")), "");
  EXPECT_TRUE(signatures.check(bytesOf("y")).isSigned);
  EXPECT_EQ(signatures.sign(bytesOf("x")), "");
  EXPECT_TRUE(signatures.check(bytesOf("x")).isSigned);
}

//===----------------------------------------------------------------------===//
// Leave
//===----------------------------------------------------------------------===//

/// Runs the file's program; false if its machine code was refused.
static bool runs(std::span<const std::byte> file, const LoadOptions &options, const char *spec = "cpu") {
  DeviceRef device = Device::open(spec);
  Binary binary = Binary::fromMemory(file, options, "some.segue");
  try {
    Executor(device, binary.program("forward"));
    return true;
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::NativeCodeRefused);
    for (const char *part : {"some.segue holds machine code", "segue-run trust FILE", "--allow-native",
                             "allow_native_kernels=True", "NativeCode::Allow", "SEGUE_ALLOW_NATIVE=1"})
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
    return false;
  }
}

TEST(NativeCodeTest, RunsWhereItIsSignedOrAllowed) {
  TemporaryFolder home;
  Variable data("XDG_DATA_HOME", (home / "data").c_str()), allow("SEGUE_ALLOW_NATIVE", nullptr);
  Bytes file = makeAddFile(8).serialize();
  EXPECT_FALSE(runs(file, {})) << "the default is to refuse";
  EXPECT_FALSE(runs(file, {.nativeCode = NativeCode::Refuse}));
  EXPECT_TRUE(runs(file, {.nativeCode = NativeCode::Allow}));
  for (const char *value : {"1", "0", "", "yes"}) {
    Variable variable("SEGUE_ALLOW_NATIVE", value);
    EXPECT_EQ(runs(file, {}), std::string(value) == "1") << value;
    EXPECT_FALSE(runs(file, {.nativeCode = NativeCode::Refuse})) << value;
  }
  EXPECT_EQ(Signatures::ofUser().folder(), home / "data/segue");
  EXPECT_EQ(Signatures::ofUser().sign(file), "");
  EXPECT_TRUE(runs(file, {}));
  EXPECT_FALSE(runs(file, {.nativeCode = NativeCode::Refuse}));
  EXPECT_FALSE(runs(makeAddFile(9).serialize(), {})) << "another file of the same kernels";
}

TEST(NativeCodeTest, IsFoundInTheHomeFolder) {
  Variable data("XDG_DATA_HOME", "relative"), home("HOME", "/home/somebody"); // the specification: ignore relative ones
  EXPECT_EQ(Signatures::ofUser().folder(), "/home/somebody/.local/share/segue");
}

TEST(NativeCodeTest, IsNeverMappedByADeviceWithoutBytes) {
  Bytes file = makeAddFile(8).serialize();
  EXPECT_TRUE(runs(file, {.nativeCode = NativeCode::Refuse}, "sim:virtual,dram=1MiB"));
  EXPECT_FALSE(runs(file, {.nativeCode = NativeCode::Refuse}, "sim:dram=1MiB"));
}
