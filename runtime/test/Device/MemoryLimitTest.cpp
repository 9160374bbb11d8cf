//===- MemoryLimitTest.cpp - what the system lets a process hold ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Drivers/MemoryLimit.h"
#include "../../lib/Drivers/DiskDevice.h"
#include "segue/runtime/Error.h"
#include <fstream>
#include <gtest/gtest.h>

using namespace segue;

namespace {
/// A system with control groups as the test writes them.
class MemoryLimitTest : public testing::Test {
protected:
  MemoryLimitTest() : folder(std::filesystem::path(testing::TempDir()) / "segue-memory-limit") {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder / "groups/slice/unit/child");
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(folder); }

  void write(const std::string &path, const std::string &text) { std::ofstream(folder / path) << text; }
  std::optional<MemoryLimit> limit() { return memoryLimit(folder / "proc", folder / "groups"); }

  std::filesystem::path folder;
};
} // namespace

TEST_F(MemoryLimitTest, TheSmallestOfAllGroupsAboveCounts) {
  write("proc", "9:name=systemd:/\n4:memory:/elsewhere\n0::/slice/unit\n");
  EXPECT_FALSE(limit()); // no file says anything
  write("groups/slice/unit/memory.max", "max\n");
  EXPECT_FALSE(limit());
  write("groups/slice/memory.max", "5000000\n");
  ASSERT_TRUE(limit());
  EXPECT_EQ(limit()->bytes, 5000000u);
  EXPECT_EQ(limit()->file, folder / "groups/slice/memory.max");
  write("groups/slice/unit/memory.max", "4000000\n");
  EXPECT_EQ(limit()->bytes, 4000000u);
  write("groups/slice/unit/child/memory.max", "1\n"); // of others
  EXPECT_EQ(limit()->bytes, 4000000u);
  write("groups/memory.max", "3000000\n"); // a container's own group
  EXPECT_EQ(limit()->bytes, 3000000u);
}

TEST_F(MemoryLimitTest, WithoutSuchGroupsThereIsNone) {
  EXPECT_FALSE(limit());
  write("proc", "4:memory:/slice\n");
  write("groups/memory.max", "1000\n");
  EXPECT_FALSE(limit());
  write("proc", "0::/../../other\n");
  EXPECT_EQ(limit()->bytes, 1000u);
}

TEST(DiskDeviceLimit, MemoryBeyondTheGroupsIsRefusedAndNamed) {
  DeviceOptions options("cpu", "dram=1000,disk=.");
  MemoryLimit limit{1500, "/sys/fs/cgroup/unit/memory.max"};
  EXPECT_NO_THROW(requireWithin(std::nullopt, options, 1000, 1 << 30));
  EXPECT_NO_THROW(requireWithin(limit, options, 1000, 500));
  try {
    requireWithin(limit, options, 1000, 501);
    ADD_FAILURE() << "1501 bytes fit into 1500";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_NE(std::string(error.what()).find("may hold 1500 (/sys/fs/cgroup/unit/memory.max)"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(requireWithin(limit, options, 1000, 1 << 30), Error);
}
