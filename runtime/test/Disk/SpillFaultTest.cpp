//===- SpillFaultTest.cpp - operations that fail, stop short or take long -===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Session/ExpectError.h"
#include "SpillTestFile.h"
#include <cerrno>
#include <chrono>
#include <deque>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <sstream>
#include <sys/statvfs.h>
#include <thread>

using namespace segue;

namespace {
/// Faults say what happens to the operations of one direction.
struct Faults {
  using Kind = SpillOperation::Kind;

  /// The errno that operation `n` of its kind, from 0 on, ends with; 0: none.
  std::function<int(Kind kind, int n)> cause = [](Kind, int) { return 0; };
  /// How many of its bytes read or write `n` says that it has done.
  std::function<uint32_t(int n, uint32_t bytes)> most = [](int, uint32_t bytes) { return bytes; };
  std::chrono::microseconds delay{0};

  int begun[3] = {};
  int inFlight = 0;
  int mostInFlight = 0;
};

class FaultyEngine : public SpillEngine {
public:
  FaultyEngine(std::unique_ptr<SpillEngine> engine, Faults &faults) : engine_(std::move(engine)), faults_(faults) {}

  std::string_view name() const override { return engine_->name(); }
  uint32_t depth() const override { return engine_->depth(); }
  void begin(const SpillOperation &operation) override {
    int n = faults_.begun[int(operation.kind)]++;
    faults_.mostInFlight = std::max(++faults_.inFlight, faults_.mostInFlight);
    if (int cause = faults_.cause(operation.kind, n)) {
      failed_.push_back({operation.tag, -cause});
      return;
    }
    bool isSettling = operation.kind == SpillOperation::Kind::Settle;
    most_[operation.tag] = isSettling ? 0 : int(faults_.most(n, operation.bytes));
    engine_->begin(operation);
  }
  SpillEnd waitForOne() override {
    std::this_thread::sleep_for(faults_.delay);
    --faults_.inFlight;
    if (failed_.empty()) {
      SpillEnd end = engine_->waitForOne();
      end.result = std::min(end.result, most_[end.tag]);
      return end;
    }
    SpillEnd end = failed_.back(); // the last one first, as a disk may
    failed_.pop_back();
    return end;
  }

private:
  std::unique_ptr<SpillEngine> engine_;
  Faults &faults_;
  std::deque<SpillEnd> failed_;
  std::map<uint32_t, int> most_;
};

/// A file of 8 pieces of 64 KiB, 3 of which may be in flight.
class SpillLaneTest : public testing::Test {
protected:
  static constexpr uint32_t piece = 64 << 10, pieces = 8;
  static constexpr uint64_t capacity = uint64_t(piece) * pieces;

  std::unique_ptr<SpillFile> open(const SpillWay &way, uint64_t bytes = capacity) {
    seam.replaceEngine = [this](std::unique_ptr<SpillEngine> engine, bool isForWrites) {
      return std::make_unique<FaultyEngine>(std::move(engine), isForWrites ? writes : reads);
    };
    SpillOptions options = optionsOf(way);
    options.pieceBytes = piece;
    options.depth = 3;
    options.seam = &seam;
    return SpillFile::open(folder.path, bytes, options);
  }
  /// Afterwards the file works as if nothing had been.
  void expectSound(SpillFile &file) {
    writes = reads = Faults();
    ShiftedMemory source(capacity), target(capacity);
    source.fill(99);
    file.write(0, source.data(), capacity);
    file.read(target.data(), 0, capacity);
    EXPECT_EQ(std::memcmp(source.data(), target.data(), capacity), 0);
  }

  DiskFolder folder;
  SpillSeam seam;
  Faults reads, writes;
};

class SpillFaultTest : public SpillLaneTest, public testing::WithParamInterface<SpillWay> {
protected:
  std::unique_ptr<SpillFile> open(uint64_t bytes = capacity) { return SpillLaneTest::open(GetParam(), bytes); }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Ways, SpillFaultTest, testing::ValuesIn(spillWays()),
                         [](const auto &info) { return (std::ostringstream() << info.param).str(); });

TEST_P(SpillFaultTest, APieceFails) {
  auto file = open();
  ShiftedMemory memory(capacity);
  for (int cause : {EIO, ENOSPC})
    for (int failing = 0; failing < int(pieces); ++failing) {
      writes = reads = Faults();
      writes.cause = reads.cause = [&](SpillOperation::Kind, int n) { return n == failing ? cause : 0; };
      std::string why = std::strerror(cause);
      std::string at = " (at " + std::to_string(failing * piece) + ")";
      // Through the page cache, pieces that are written out are operations between them.
      bool isExact = GetParam().mayBeDirect;
      EXPECT_ERROR(file->write(0, memory.data(), capacity), IoFailed,
                   isExact ? "524288 bytes of a spill file from 0 on cannot be written: " + why + at
                           : "cannot be written: " + why);
      EXPECT_ERROR(file->read(memory.data(), 0, capacity), IoFailed,
                   folder.path.string() + ": 524288 bytes of a spill file from 0 on cannot be read: " + why + at);
      EXPECT_EQ(writes.inFlight, 0);
      EXPECT_EQ(reads.inFlight, 0);
      EXPECT_EQ(reads.mostInFlight, std::min(3, failing + 3));
      EXPECT_LE(reads.begun[int(SpillOperation::Kind::Read)], failing + 3) << "it went on after the failure";
    }
  uint64_t bytes = file->readTraffic().bytes, calls = file->readTraffic().calls;
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(calls, 2 * pieces);
  expectSound(*file);
}

// io_uring gives up what it finds no thread for, where a user may have few: the lane does it itself then.
TEST_P(SpillFaultTest, WhatTheKernelGivesUpIsDoneHere) {
  auto file = open();
  ShiftedMemory source(capacity), target(capacity);
  source.fill(5);
  writes.cause = reads.cause = [](SpillOperation::Kind, int n) { return n % 2 == 0 ? ECANCELED : 0; };
  file->write(100, source.data(), capacity - 100);
  file->read(target.data(), 100, capacity - 100);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), capacity - 100), 0);
  expectSound(*file);
}

// Of several failures, that of the first place counts, whichever is heard first.
TEST_P(SpillFaultTest, AllPiecesFail) {
  auto file = open();
  ShiftedMemory memory(capacity);
  reads.cause = [](SpillOperation::Kind, int n) { return n == 0 ? EIO : ENOMEM; };
  EXPECT_ERROR(file->read(memory.data(), 100, capacity - 100), IoFailed, "cannot be read: Input/output error (at 100)");
  EXPECT_EQ(reads.inFlight, 0);
  expectSound(*file);
}

// A disk can fail when its pages are written out, after the page cache took them.
TEST_P(SpillFaultTest, WritingOutFails) {
  auto file = open();
  ShiftedMemory memory(capacity);
  writes.cause = [](SpillOperation::Kind kind, int) { return kind == SpillOperation::Kind::Settle ? EIO : 0; };
  EXPECT_ERROR(file->write(100, memory.data(), 1000), IoFailed, "cannot be written: Input/output error (at 100)");
  EXPECT_EQ(writes.inFlight, 0);
  expectSound(*file);
}

// Short ends, within blocks too, go on where they stopped.
TEST_P(SpillFaultTest, ShortReadsAndWrites) {
  auto file = open();
  for (uint32_t most : {4096u, 12288u, 20000u, 5000u}) {
    ShiftedMemory source(capacity), target(capacity);
    source.fill(most);
    writes = reads = Faults();
    writes.most = reads.most = [&](int n, uint32_t bytes) { return n % 2 ? bytes : std::min(bytes, most); };
    file->write(100, source.data(), capacity - 100);
    file->read(target.data(), 100, capacity - 100);
    ASSERT_EQ(std::memcmp(source.data(), target.data(), capacity - 100), 0) << "at most " << most;
    ASSERT_EQ(std::memcmp(source.data(), file->data() + 100, capacity - 100), 0) << "at most " << most;
    EXPECT_GT(reads.begun[int(SpillOperation::Kind::Read)], int(pieces) + 2);
  }
  // From memory that goes through a buffer.
  ShiftedMemory source(capacity, 3), target(capacity, 5);
  source.fill(1);
  writes.most = reads.most = [](int n, uint32_t bytes) { return n % 2 ? bytes : std::min(bytes, 6000u); };
  file->write(0, source.data(), capacity);
  file->read(target.data(), 0, capacity);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), capacity), 0);
}

TEST_P(SpillFaultTest, NothingIsDone) {
  auto file = open();
  ShiftedMemory memory(capacity);
  writes.most = reads.most = [](int n, uint32_t bytes) { return n == 4 ? 0 : bytes; };
  EXPECT_ERROR(file->write(0, memory.data(), capacity), IoFailed, "cannot be written: Input/output error");
  EXPECT_ERROR(file->read(memory.data(), 0, capacity), IoFailed, "cannot be read: Input/output error");
  expectSound(*file);
}

// A system that is interrupted or short of something is asked again; one that stays so is an error.
TEST_P(SpillFaultTest, IsTriedAgain) {
  auto file = open();
  ShiftedMemory source(capacity), target(capacity);
  source.fill(1);
  writes.cause = reads.cause = [](SpillOperation::Kind, int n) { return n % 3 == 0 ? EINTR : n % 3 == 1 ? EAGAIN : 0; };
  file->write(0, source.data(), capacity);
  file->read(target.data(), 0, capacity);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), capacity), 0);
  expectSound(*file);
}

TEST_F(SpillLaneTest, IsNotTriedForever) {
  auto file = open(spillWays().back());
  std::byte one = {};
  reads.cause = [](SpillOperation::Kind, int) { return EAGAIN; };
  EXPECT_ERROR(file->read(&one, 0, 1), IoFailed, "cannot be read: Resource temporarily unavailable");
  expectSound(*file);
}

// On a slow disk a call takes as long as it takes, and the other direction goes on beside it.
TEST_P(SpillFaultTest, ASlowDisk) {
  auto file = open();
  ShiftedMemory source(capacity), target(capacity);
  source.fill(1);
  file->write(0, source.data(), capacity / 2);
  writes.delay = std::chrono::milliseconds(50);
  std::chrono::steady_clock::time_point written;
  std::thread writer([&] {
    file->write(capacity / 2, source.data() + capacity / 2, capacity / 2);
    written = std::chrono::steady_clock::now();
  });
  file->read(target.data(), 0, capacity / 2);
  auto read = std::chrono::steady_clock::now();
  writer.join();
  EXPECT_LT(read, written);
  EXPECT_GE(file->writeTraffic().seconds, 0.2);
  file->read(target.data() + capacity / 2, capacity / 2, capacity / 2);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), capacity), 0);
}

// Without fallocate, the room is written; a disk that fills up there is told as one that has no room.
TEST_P(SpillFaultTest, ADiskFillsUpWhileItsRoomIsWritten) {
  seam.hasReservation = false;
  writes.cause = [](SpillOperation::Kind kind, int n) {
    return kind == SpillOperation::Kind::Write && n == 5 ? ENOSPC : 0;
  };
  EXPECT_ERROR(open(), IoFailed, "no room for a spill file of 512.0 KiB: ");
  writes = Faults();
  writes.cause = [](SpillOperation::Kind, int n) { return n == 5 ? EDQUOT : 0; };
  EXPECT_ERROR(open(), IoFailed, "a quota forbids it");
  EXPECT_EQ(folder.fileCount(), 0u);
}

// What can be known before is said before: a disk that is filled in vain troubles everybody.
TEST_P(SpillFaultTest, ADiskThatIsTooSmallIsNotFilled) {
  struct statvfs status;
  ASSERT_EQ(::statvfs(folder.path.c_str(), &status), 0);
  seam.hasReservation = false;
  writes.cause = [](SpillOperation::Kind, int) { return EIO; };
  uint64_t wanted = uint64_t(status.f_blocks) * status.f_frsize;
  EXPECT_ERROR(open(wanted), IoFailed, "are free there; free more, name a folder on another disk, or ask for a smaller");
  EXPECT_EQ(writes.begun[int(SpillOperation::Kind::Write)], 0);
}
