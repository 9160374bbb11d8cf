//===- CollectivesTest.cpp - what ranks do together -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CollectivesConformance.h"
#include <future>
#include <gtest/gtest.h>
#include <random>

using namespace segue;
using namespace segue::test;

namespace {
struct CollectivesTest : testing::TestWithParam<const char *> {};
} // namespace

static constexpr const char *devices[] = {"cpu:threads=1", "sim:dram=1MiB,pinned=1MiB,link=1GB/s,latency=5us",
                                          "sim:dram=1MiB,pinned=0,adversarial=3",
                                          "sim:streams,dram=1MiB,adversarial=4"};
INSTANTIATE_TEST_SUITE_P(Devices, CollectivesTest, testing::ValuesIn(devices));

static std::vector<CollectivesCase> cases() {
  std::vector<CollectivesCase> cases;
  for (const char *device : devices)
    cases.push_back({device});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Host, CollectivesConformance, testing::ValuesIn(cases()));

// Of a rank whose call fails the others hear why; one that vanishes is named when time is up. The tensors say so, and
// nobody hangs.
TEST_P(CollectivesTest, ARankThatFailsEndsTheOthers) {
  for (bool vanishes : {false, true})
    for (int gone : {0, 2}) {
      std::vector<std::string> thrown = onRanks(
          3, GetParam(),
          [](Rank &rank) {
            Tensor tensor = filled(rank.device, 64, rank.number());
            for (int i = 0; i < 4; ++i)
              rank.device->wait(rank.together->allReduce(std::span(&tensor, 1)));
            wait(tensor);
          },
          {.timeoutSeconds = 0.3, .fault = InProcessOptions::Fault{gone, 2, vanishes}});
      for (int rank = 0; rank < 3; ++rank) {
        std::string name = "rank " + std::to_string(gone);
        std::string expected = rank == gone ? vanishes ? "this rank has vanished" : "call 2 was to fail"
                               : vanishes   ? name + " did not come to allReduce within"
                                            : name + " has given up: call 2 was to fail";
        EXPECT_NE(thrown[size_t(rank)].find(expected), std::string::npos) << thrown[size_t(rank)];
        EXPECT_EQ(thrown[size_t(rank)].rfind("RANK_FAILED", 0), 0u) << thrown[size_t(rank)];
      }
    }
}

/// The most bytes that messages have taken of a space, in any phase.
static uint64_t messageBytes(const DeviceRef &device, Space space) {
  uint64_t bytes = 0;
  for (const MemoryHolder &holder : device->memory().holders(space))
    bytes += holder.owner.value == messageOwner ? holder.peakBytes : 0;
  return bytes;
}

// However many messages are given ahead, they take so much of the host's memory, and who gives them waits for none of
// them; one that is larger than that has no other beside it.
TEST(Collectives, MessagesUnderWayTakeABoundedPartOfMemory) {
  struct Case {
    const char *device;
    std::vector<int64_t> counts;
    uint64_t bytes;
  };
  std::vector<int64_t> many;
  for (int64_t i = 0; i < 40; ++i)
    many.push_back(100 + 37 * i % 900); // of 40 KiB in all, in messages of 4 KB at most
  std::vector<int64_t> withLarge = many;
  for (size_t at : {0, 7, 30})
    withLarge.insert(withLarge.begin() + long(at), 6000);
  const char *hostile = "sim:dram=1MiB,pinned=256KiB,adversarial=11";
  for (const auto &[device, counts, bytes] :
       {Case{"sim:dram=1MiB,pinned=256KiB,link=1GB/s,latency=5us", many, 3 * 4096},
        Case{"sim:streams,dram=1MiB,pinned=256KiB,adversarial=9", many, 3 * 4096},
        Case{"sim:dram=1MiB,pinned=256KiB,link=1GB/s,latency=5us", withLarge, 24000}, Case{hostile, withLarge, 24000},
        Case{"cpu:threads=1", many, 3 * 4096}, Case{"sim:dram=1MiB,pinned=0,adversarial=10", withLarge, 24000}}) {
    SCOPED_TRACE(device);
    std::promise<void> given;
    std::shared_future<void> isGiven = given.get_future().share();
    // An adversary runs what it likes on the thread of the caller; memory of the system is not given out in its use.
    DeviceRef like = Device::open(device);
    bool isPinned = like->memory().budget(Space::HostPinned) >= bytes;
    bool isBeside = isPinned && !like->runsInline() && like->name().find("adversarial") == std::string::npos;
    EXPECT_EQ(onRanks(
                  2, device,
                  [&](Rank &rank) {
                    std::vector<Tensor> tensors;
                    for (int64_t count : counts)
                      tensors.push_back(filled(rank.device, count, rank.number()));
                    if (rank.number() == 1 && isBeside)
                      isGiven.wait();
                    Fence fence = rank.together->allReduce(tensors);
                    if (rank.number() == 0 && isBeside) {
                      EXPECT_FALSE(rank.device->isDone(fence));
                      given.set_value();
                    }
                    rank.device->wait(fence);
                    for (const Tensor &tensor : tensors)
                      EXPECT_EQ(read(tensor), sums(2, int64_t(tensor.elementCount())));
                    uint64_t peak = rank.together->figures().peakBytes;
                    EXPECT_LE(peak, bytes);
                    EXPECT_GT(peak, 2 * 4096u);
                    EXPECT_EQ(messageBytes(rank.device, isPinned ? Space::HostPinned : Space::Host), peak);
                    EXPECT_EQ(messageBytes(rank.device, isPinned ? Space::Host : Space::HostPinned), 0u);
                    rank.together->exchange("a meeting", "");
                    EXPECT_EQ(rank.device->memory().liveBytes(Space::HostPinned), 0u);
                  },
                  {.seed = 6, .timeoutSeconds = 5}, {.bucketBytes = 4096, .bucketsUnderWay = 3}),
              nothing(2));
  }
}

// An operation is beside what the rank computes: on a device that does all else at once, too.
// Plans count on it, whatever the options of the rank are.
TEST(Collectives, ATwinTakesTheMemoryOfItsRank) {
  for (uint64_t underWay : {0, 1, 2, 8}) {
    SCOPED_TRACE(underWay);
    EXPECT_EQ(onRanks(
                  2, "sim:streams,dram=1MiB,pinned=1MiB",
                  [&](Rank &rank) {
                    DeviceRef device = Device::open("sim:virtual,dram=1MiB,pinned=1MiB");
                    std::shared_ptr<Collectives> twin = rank.together->twin(device);
                    for (auto [on, ranks] : {std::pair(rank.device, rank.together), {device, twin}}) {
                      std::vector<Tensor> tensors;
                      for (int i = 0; i < 6; ++i)
                        tensors.push_back(Tensor::zeros(on, TensorDesc({1000}, ElementType::f32)));
                      for (const Tensor &tensor : tensors)
                        ranks->allReduce(std::span(&tensor, 1));
                      ranks->exchange("the end", "");
                    }
                    EXPECT_EQ(twin->figures().peakBytes, rank.together->figures().peakBytes);
                    EXPECT_EQ(twin->figures().peakBytes, std::clamp<uint64_t>(underWay, 1, 6) * 4000);
                  },
                  {.seed = 4}, {.bucketBytes = 4000, .bucketsUnderWay = underWay}),
              nothing(2));
  }
}

TEST(Collectives, NobodyWaitsForAnOperationThatWasGiven) {
  std::promise<void> given;
  std::shared_future<void> isGiven = given.get_future().share();
  EXPECT_EQ(onRanks(2, "cpu:threads=1",
                    [&](Rank &rank) {
                      Tensor tensor = filled(rank.device, 64, rank.number());
                      if (rank.number() == 1)
                        isGiven.wait();
                      Fence fence = rank.together->allReduce(std::span(&tensor, 1));
                      if (rank.number() == 0) {
                        EXPECT_FALSE(rank.device->isDone(fence));
                        given.set_value();
                      }
                      rank.device->wait(fence);
                      EXPECT_TRUE(rank.device->isDone(fence));
                      EXPECT_EQ(read(tensor), sums(2, 64));
                    }),
            nothing(2));
}
