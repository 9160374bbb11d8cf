//===- SpillSealTest.cpp - what stays as it is in a spill file ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Session/ExpectError.h"
#include "SpillTestFile.h"
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>

using namespace segue;

static constexpr uint64_t mebibyte = 1 << 20;

/// Returns the bytes that the file at `path` has in these places.
static std::string bytesAt(const std::filesystem::path &path, const std::vector<SpillExtent> &extents) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  for (const SpillExtent &extent : extents) {
    std::string part(extent.bytes, '?');
    file.seekg(std::streamoff(extent.offset)).read(part.data(), std::streamsize(part.size()));
    bytes += part;
  }
  return bytes;
}
static std::string textOf(const ShiftedMemory &memory) {
  return {reinterpret_cast<const char *>(memory.data()), memory.size()};
}

namespace {
class SpillSealTest : public testing::TestWithParam<SpillWay> {
protected:
  SpillSealTest() {
    file = SpillFile::open(folder.path, 16 * mebibyte, optionsOf(GetParam()));
    file->addSpare(8 * mebibyte, 8 * mebibyte);
    first.fill(1);
    second.fill(2);
  }
  void seal(uint64_t offset, uint64_t bytes) {
    file->keep("segue-test.sealed");
    file->seal({{offset, bytes}});
  }
  std::string read(uint64_t offset, uint64_t bytes) {
    ShiftedMemory memory(bytes);
    file->read(memory.data(), offset, bytes);
    return textOf(memory);
  }

  DiskFolder folder;
  std::unique_ptr<SpillFile> file;
  ShiftedMemory first{4 * mebibyte}, second{4 * mebibyte};
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Ways, SpillSealTest, testing::ValuesIn(spillWays()),
                         [](const auto &info) { return (std::ostringstream() << info.param).str(); });

TEST_P(SpillSealTest, StaysWhenItIsWrittenOver) {
  file->write(mebibyte, first.data(), first.size());
  EXPECT_EQ(file->path(), "");
  seal(mebibyte, first.size());
  EXPECT_EQ(file->path(), folder.path / "segue-test.sealed");
  std::vector<SpillExtent> where = file->extentsOf(mebibyte, first.size());
  EXPECT_EQ(where, (std::vector<SpillExtent>{{mebibyte, first.size()}}));
  EXPECT_EQ(file->sealedBytes(mebibyte, first.size()), first.size());
  uint64_t before = file->writeTraffic().bytes;
  file->write(mebibyte, second.data(), second.size());
  EXPECT_EQ(file->writeTraffic().bytes, before + second.size()) << "nothing is copied";
  EXPECT_EQ(file->sealedBytes(mebibyte, SpillFile::block), 0u);
  EXPECT_EQ(read(mebibyte, second.size()), textOf(second));
  EXPECT_EQ(std::memcmp(file->data() + mebibyte, second.data(), second.size()), 0) << "the mapping shows it, too";
  EXPECT_EQ(bytesAt(file->path(), where), textOf(first));
  EXPECT_NE(file->extentsOf(mebibyte, second.size()), where);
  // The next seal gives the blocks of this one back: without end.
  for (int round = 0; round < 6; ++round) {
    ShiftedMemory &memory = round % 2 ? second : first;
    seal(mebibyte, memory.size());
    EXPECT_EQ(file->spareBytes(), 8 * mebibyte);
    where = file->extentsOf(mebibyte, memory.size());
    std::string sealed = read(mebibyte, memory.size());
    file->write(mebibyte, memory.data(), memory.size());
    EXPECT_EQ(bytesAt(file->path(), where), sealed);
  }
}

// Parts of blocks: what lies around them goes along, and stays in the seal.
TEST_P(SpillSealTest, EveryAlignment) {
  ShiftedMemory shadow(mebibyte);
  shadow.fill(3);
  file->write(0, shadow.data(), shadow.size());
  uint64_t seed = 4;
  for (uint64_t offset : {0, 1, 511, 512, 4095, 4096, 4097, 12288})
    for (uint64_t bytes : {1, 100, 4095, 4096, 4097, 8192, 65536, 70000}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes at " << offset);
      seal(0, shadow.size());
      std::vector<SpillExtent> where = file->extentsOf(0, shadow.size());
      std::string sealed = textOf(shadow);
      ShiftedMemory memory(bytes, seed % 2);
      memory.fill(seed++);
      file->write(offset, memory.data(), bytes);
      std::memcpy(shadow.data() + offset, memory.data(), bytes);
      ASSERT_EQ(read(0, shadow.size()), textOf(shadow));
      ASSERT_EQ(std::memcmp(file->data(), shadow.data(), shadow.size()), 0);
      ASSERT_EQ(bytesAt(file->path(), where), sealed);
    }
}

TEST_P(SpillSealTest, StoresThroughTheMapping) {
  file->write(0, first.data(), first.size());
  seal(0, first.size());
  std::vector<SpillExtent> where = file->extentsOf(0, first.size());
  // Without a word they are nobody's but the mapping's.
  file->data()[5] = ~first.data()[5];
  EXPECT_EQ(bytesAt(file->path(), where), textOf(first));
  EXPECT_EQ(read(0, first.size()), textOf(first));
  file->expectStores(0, 3 * SpillFile::block);
  EXPECT_EQ(std::memcmp(file->data(), first.data(), first.size()), 0);
  file->data()[5] = ~first.data()[5];
  EXPECT_EQ(bytesAt(file->path(), where), textOf(first));
  EXPECT_EQ(std::byte(read(5, 1)[0]), ~first.data()[5]);
  EXPECT_EQ(file->sealedBytes(3 * SpillFile::block, SpillFile::block), SpillFile::block);
}

TEST_P(SpillSealTest, WithoutSpareBlocksItIsNotWrittenOver) {
  file->write(0, first.data(), first.size());
  seal(0, 8 * mebibyte);
  file->write(4 * mebibyte, second.data(), second.size());
  file->write(0, second.data(), second.size());
  file->seal({{0, 8 * mebibyte}});
  SpillOptions options = optionsOf(GetParam());
  auto small = SpillFile::open(folder.path, 4 * mebibyte, options);
  small->write(0, first.data(), 2 * mebibyte);
  small->keep("segue-small.sealed");
  small->seal({{0, 2 * mebibyte}});
  EXPECT_ERROR(small->write(mebibyte, second.data(), mebibyte), IoFailed, "there are no spare blocks");
  EXPECT_EQ(std::memcmp(small->data(), first.data(), 2 * mebibyte), 0);
  small->write(2 * mebibyte, second.data(), mebibyte);
}

TEST_P(SpillSealTest, OutlivesTheFileAndNothingElseDoes) {
  file->write(mebibyte, first.data(), first.size());
  seal(mebibyte, mebibyte);
  file->write(mebibyte, second.data(), second.size());
  std::vector<SpillExtent> where = {{mebibyte, mebibyte}};
  std::filesystem::path path = file->path();
  file.reset();
  EXPECT_EQ(bytesAt(path, where), textOf(first).substr(0, mebibyte));
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(uint64_t(status.st_size), 16 * mebibyte);
  EXPECT_LE(uint64_t(status.st_blocks) * 512, mebibyte + 64 * SpillFile::block) << "the rest gives its room back";
}

TEST_P(SpillSealTest, NameAndLock) {
  file->keep("segue-test.sealed");
  EXPECT_EQ(folder.fileCount(), 1u);
  int other = ::open(file->path().c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_NE(::flock(other, LOCK_SH | LOCK_NB), 0);
  file.reset();
  EXPECT_EQ(folder.fileCount(), 0u) << "nothing was sealed";
  EXPECT_EQ(::flock(other, LOCK_SH | LOCK_NB), 0);
  ::close(other);
  file = SpillFile::open(folder.path, mebibyte, optionsOf(GetParam()));
  std::ofstream(folder.path / "taken") << "text";
  EXPECT_ERROR(file->keep("taken"), IoFailed, "cannot get the name taken: File exists");
  file->keep("segue-test.sealed");
  file->seal({{0, 4096}});
  file->unseal();
  EXPECT_EQ(file->sealedBytes(0, 4096), 0u);
  file.reset();
  EXPECT_EQ(folder.fileCount(), 1u);
}

// Whoever clears a folder takes the file from under a run: a checkpoint that names it must not be written.
TEST_P(SpillSealTest, AFileThatIsGoneSealsNothing) {
  file->write(0, first.data(), first.size());
  seal(0, first.size());
  std::filesystem::rename(file->path(), folder.path / "elsewhere");
  EXPECT_ERROR(file->keep("segue-test.sealed"), Unsupported, "segue-test.sealed: the spill file is not there any more");
  std::ofstream(file->path()) << "another one";
  EXPECT_ERROR(file->keep("segue-test.sealed"), Unsupported, "the spill file is not there any more");
  std::filesystem::rename(folder.path / "elsewhere", file->path());
  file->keep("segue-test.sealed");
  std::filesystem::remove(file->path());
  EXPECT_ERROR(file->keep("segue-test.sealed"), Unsupported, "removed");
  EXPECT_EQ(read(0, first.size()), textOf(first));
}

TEST_P(SpillSealTest, AKilledProcessLeavesTheLastSeal) {
  file.reset();
  auto where = folder.path / "where";
  int status = inChild([&] {
    auto mine = SpillFile::open(folder.path, 16 * mebibyte, optionsOf(GetParam()));
    mine->addSpare(8 * mebibyte, 8 * mebibyte);
    mine->write(0, first.data(), first.size());
    mine->keep("segue-test.sealed");
    mine->seal({{0, first.size()}});
    mine->write(0, second.data(), second.size());
    mine->keep("segue-test.sealed");
    ::raise(SIGKILL);
    return 0;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(bytesAt(folder.path / "segue-test.sealed", {{0, first.size()}}), textOf(first));
}

TEST(SpillSeal, NeedsAFileSystemThatGivesNames) {
  DiskFolder folder;
  SpillSeam seam;
  seam.hasUnnamedFiles = false;
  SpillOptions options;
  options.seam = &seam;
  auto file = SpillFile::open(folder.path, mebibyte, options);
  EXPECT_ERROR(file->keep("segue-test.sealed"), Unsupported, "nothing can be sealed there");
  EXPECT_EQ(folder.fileCount(), 0u);
}
