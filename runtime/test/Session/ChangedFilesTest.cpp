//===- ChangedFilesTest.cpp - files that change while they are read -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A file that somebody cuts or writes to while it is read gives right values or an
// error: no signal, and no mixture of the one and the other.
//
//===----------------------------------------------------------------------===//

#include "Session/ExpectError.h"
#include "Session/SessionModules.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <atomic>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <numeric>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace segue;
using namespace segue::test;

namespace {
const DeviceRef device = Device::open("cpu:threads=1");
constexpr int64_t pages = 64, count = pages * 4096 / 4;

Tensor filled(int64_t elements, float value) {
  Tensor tensor = Tensor::onHost(device, {elements}, ElementType::f32);
  std::fill_n(tensor.data<float>(), elements, value);
  return tensor;
}

/// "a" of one value, written an hour ago.
void saveFilled(const std::filesystem::path &path, float value) {
  saveSafetensors(path, {{"a", filled(count, value)}});
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
}

/// Writes into the file that is there, without a new one.
void writeAt(const std::filesystem::path &path, uint64_t at, const std::string &bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(std::streamoff(at));
  file << bytes;
}

double sumOf(const Tensor &tensor) {
  return std::accumulate(tensor.data<float>(), tensor.data<float>() + tensor.elementCount(), 0.0);
}
} // namespace

TEST(ChangedFiles, OneThatIsCutEndsNothing) {
  TemporaryFolder folder;
  for (uint64_t left : {0ul, 5000ul, 20ul * 4096}) {
    saveFilled(folder / "a", 1);
    SafetensorsFile file = SafetensorsFile::open(folder / "a");
    Tensor tensor = file.tensor(device, "a");
    EXPECT_EQ(sumOf(tensor), count);
    std::filesystem::resize_file(folder / "a", left);
    EXPECT_LT(sumOf(tensor), count); // zeros, and no SIGBUS
    EXPECT_ERROR(file.checkUnchanged(), SourceChanged, "was cut short while it was read");
    EXPECT_ERROR(file.copyOf(device, "a"), SourceChanged, "replace files by renaming");
    std::filesystem::resize_file(folder / "a", file.entries()[0].offset + count * 4);
    EXPECT_ERROR(file.checkUnchanged(), SourceChanged, "was cut short"); // as long as before again
  }
}

TEST(ChangedFiles, OneThatIsWrittenToIsNoticed) {
  TemporaryFolder folder;
  saveFilled(folder / "a", 1);
  SafetensorsFile file = SafetensorsFile::open(folder / "a");
  EXPECT_EQ(sumOf(file.copyOf(device, "a")), count);
  writeAt(folder / "a", file.entries()[0].offset + 1024, std::string(4, '\0'));
  EXPECT_ERROR(file.copyOf(device, "a"), SourceChanged, "was written to while it was read");
}

// Who replaces a file by a rename harms nobody who reads it.
TEST(ChangedFiles, OneThatIsReplacedIsReadAsItWas) {
  TemporaryFolder folder;
  saveFilled(folder / "a", 1);
  SafetensorsFile file = SafetensorsFile::open(folder / "a");
  saveFilled(folder / "a", 2);
  EXPECT_EQ(sumOf(file.copyOf(device, "a")), count);
  EXPECT_EQ(sumOf(SafetensorsFile::open(folder / "a").copyOf(device, "a")), 2 * count);
}

// Other faults end the process as they did.
TEST(ChangedFilesDeathTest, FaultsOfOthersAreTheirs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TemporaryFolder folder;
  saveFilled(folder / "a", 1);
  EXPECT_EXIT(
      {
        SafetensorsFile file = SafetensorsFile::open(folder / "a");
        int other = ::open((folder / "a").c_str(), O_RDONLY);
        auto *bytes = static_cast<const volatile char *>(mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, other, 0));
        std::filesystem::resize_file(folder / "a", 0);
        std::exit(bytes[4096]);
      },
      [](int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }, "");
}

// Loads against a writer that goes to and fro: each gives the one checkpoint, the
// other, or an error, also where the file rests as a mixture.
TEST(ChangedFiles, NoLoadGivesAMixture) {
  TemporaryFolder folder;
  saveCheckpoint(folder / "a", {.parameters = {{"a", filled(count, 1)}}});
  saveCheckpoint(folder / "b", {.parameters = {{"a", filled(count, 2)}}});
  const std::string one = readText(folder / "a"), two = readText(folder / "b");
  ASSERT_EQ(one.size(), two.size());
  std::atomic<bool> isOver{false};
  std::thread writer([&] {
    for (uint64_t turn = 0; !isOver; ++turn) {
      const std::string &next = turn % 2 ? one : two;
      if (turn % 5 == 4)
        std::filesystem::resize_file(folder / "a", turn % 7 * 4096);
      for (uint64_t at = 0; at < next.size(); at += 4096) // a reader may come between
        writeAt(folder / "a", at, next.substr(at, 4096));
      if (turn % 3 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  });
  int whole = 0, refused = 0;
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60); // a busy machine writes late
  while (std::chrono::steady_clock::now() < until && (whole < 3 || refused < 3))
    try {
      Checkpoint checkpoint = loadCheckpoint(device, folder / "a");
      double sum = sumOf(checkpoint.parameters["a"]);
      checkpoint.checkSource();
      ++whole;
      EXPECT_TRUE(sum == count || sum == 2 * count) << sum;
    } catch (const Error &error) {
      ++refused;
      EXPECT_TRUE(error.code() == ErrorCode::SourceChanged || error.code() == ErrorCode::FileCorrupt ||
                  error.code() == ErrorCode::InvalidArgument) // a header of zeros
          << error.what();
    }
  isOver = true;
  writer.join();
  EXPECT_GE(whole, 3);
  EXPECT_GE(refused, 3);
}

// A checkpoint that was changed after its hashes were checked: what was copied of
// it is put back.
TEST(ChangedFiles, ACheckpointThatChangesIsNotTaken) {
  TemporaryFolder folder;
  auto make = [] {
    Session session(device, {{"front", makeLayer()}, {"back", makeHead()}});
    for (const char *key : {"w", "v"})
      session.setParameter(key, filled(moduleWidth, 0.5f));
    return session;
  };
  auto batch = [] { return TensorMap{{"x", filled(moduleWidth, 1)}, {"y", filled(moduleWidth, 2)}}; };
  Session session = make(), plain = make();
  session.save(folder / "c");
  session.step(batch(), 0.01);
  plain.step(batch(), 0.01);
  const std::string good = readText(folder / "c");
  for (bool isCut : {false, true}) {
    writeText(folder / "c", good);
    Checkpoint checkpoint = loadCheckpoint(device, folder / "c");
    isCut ? std::filesystem::resize_file(folder / "c", good.size() / 2)
          : writeAt(folder / "c", good.size() - 2, std::string("\x40\x40", 2));
    EXPECT_ERROR(session.restore(checkpoint), SourceChanged, "while it was read");
    EXPECT_EQ(session.stepCount(), 1);
  }
  for (int step = 0; step < 3; ++step)
    EXPECT_EQ(session.step(batch(), 0.01).loss, plain.step(batch(), 0.01).loss);
}

// A .segue file is read once, and verified as it was read.
TEST(ChangedFiles, AModuleIsWhatWasVerified) {
  TemporaryFolder folder;
  Bytes bytes = makeHeadFile().serialize();
  auto write = [&] {
    std::ofstream(folder / "m.segue", std::ios::binary)
        .write(reinterpret_cast<const char *>(bytes.data()), std::streamsize(bytes.size()));
  };
  auto lossOf = [](const Binary &binary) {
    Session session(device, {{"back", binary}});
    session.setParameter("v", filled(moduleWidth, 0.5f));
    return session.step({{"hidden", filled(moduleWidth, 1)}, {"y", filled(moduleWidth, 2)}}, 0.01).loss;
  };
  write();
  Binary binary = Binary::load(folder / "m.segue", {.nativeCode = NativeCode::Allow});
  double loss = lossOf(binary);
  writeText(folder / "m.segue", std::string(bytes.size(), '\x7f'));
  EXPECT_EQ(lossOf(binary), loss);
  std::filesystem::resize_file(folder / "m.segue", 0);
  EXPECT_EQ(lossOf(binary), loss);
  write();
  EXPECT_EQ(lossOf(Binary::load(folder / "m.segue", {.nativeCode = NativeCode::Allow})), loss);
}
