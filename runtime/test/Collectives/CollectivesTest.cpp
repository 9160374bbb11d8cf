//===- CollectivesTest.cpp - what ranks do together -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "OnRanks.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <future>
#include <gtest/gtest.h>
#include <random>

using namespace segue;
using namespace segue::test;

using Vector = std::vector<float>;

/// What rank `rank` has at `index`, which no other order of addition sums to the same bits.
static float valueOf(int rank, int64_t index) { return std::ldexp(1.1f + float(index % 7), rank * 5) / 3; }

static Tensor filled(const DeviceRef &device, int64_t count, int rank, Space space = Space::DeviceDram) {
  Tensor host = Tensor::onHost(device, {count}, ElementType::f32);
  for (int64_t i = 0; i < count; ++i)
    host.data<float>()[i] = valueOf(rank, i);
  TensorDesc desc({count}, ElementType::f32);
  desc.layout.space = space;
  return copyTo(device, host, desc);
}

static Vector sums(int ranks, int64_t count, int64_t first = 0) {
  Vector sum;
  for (int64_t i = first; i < first + count; ++i) {
    float total = valueOf(0, i);
    for (int rank = 1; rank < ranks; ++rank)
      total += valueOf(rank, i);
    sum.push_back(total);
  }
  return sum;
}

static Vector read(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return Vector(host.data<float>(), host.data<float>() + host.elementCount());
}

namespace {
struct CollectivesTest : testing::TestWithParam<const char *> {
  std::vector<std::string> run(int ranks, const std::function<void(Rank &)> &body, InProcessOptions options = {},
                               CollectiveOptions collectives = {}) {
    return onRanks(ranks, GetParam(), body, options, collectives);
  }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Devices, CollectivesTest,
                         testing::Values("cpu:threads=1", "sim:dram=1MiB,pinned=1MiB,link=1GB/s,latency=5us",
                                         "sim:dram=1MiB,pinned=0,adversarial=3", "sim:streams,dram=1MiB,adversarial=4"));

TEST_P(CollectivesTest, SumsAreThoseOfAllRanks) {
  for (int ranks : {1, 2, 3, 4})
    for (bool inOrder : {false, true})
      EXPECT_EQ(run(
                    ranks,
                    [&](Rank &rank) {
                      std::vector<Tensor> tensors;
                      for (int64_t count : {0, 1, 700, 3, 1024, 5}) // some together in a message, some alone
                        tensors.push_back(filled(rank.device, count, rank.number(),
                                                 count == 3 ? Space::Host : Space::DeviceDram));
                      Fence done = rank.together->allReduce(tensors);
                      rank.device->wait(done);
                      for (const Tensor &tensor : tensors)
                        EXPECT_EQ(read(tensor), sums(ranks, int64_t(tensor.elementCount())));
                    },
                    {.seed = 5}, {.bucketBytes = 3000, .addsInOrder = inOrder}),
                nothing(ranks));
}

TEST_P(CollectivesTest, ASumIsThatOfOneRank) {
  for (int ranks : {1, 2, 3, 4})
    for (bool inOrder : {false, true})
      EXPECT_EQ(run(
                    ranks,
                    [&](Rank &rank) {
                      for (int root = 0; root < ranks; ++root) {
                        std::vector<Tensor> tensors;
                        for (int64_t count : {0, 1, 700, 3, 1024, 5})
                          tensors.push_back(filled(rank.device, count, rank.number(),
                                                   count == 3 ? Space::Host : Space::DeviceDram));
                        rank.device->wait(rank.together->reduce(tensors, root));
                        if (root != rank.number()) // there is nothing to be said of what it has
                          continue;
                        for (const Tensor &tensor : tensors)
                          EXPECT_EQ(read(tensor), sums(ranks, int64_t(tensor.elementCount())));
                      }
                    },
                    {.seed = 6}, {.bucketBytes = 3000, .addsInOrder = inOrder}),
                nothing(ranks));
}

TEST_P(CollectivesTest, PartsAreSummedAndGathered) {
  EXPECT_EQ(run(3,
                [](Rank &rank) {
                  int64_t own = rank.number() * 40;
                  Tensor whole = filled(rank.device, 120, rank.number());
                  Tensor part = filled(rank.device, 40, 9), all = filled(rank.device, 120, 9);
                  rank.together->reduceScatter(whole, part);
                  rank.device->wait(rank.together->allGather(part, all));
                  EXPECT_EQ(read(part), sums(3, 40, own));
                  EXPECT_EQ(read(all), sums(3, 120));
                  Vector mine;
                  for (int64_t i = 0; i < 120; ++i)
                    mine.push_back(valueOf(rank.number(), i));
                  EXPECT_EQ(read(whole), mine);
                }),
            nothing(3));
}

TEST_P(CollectivesTest, AValueComesFromOneRank) {
  EXPECT_EQ(run(3,
                [](Rank &rank) {
                  std::vector<Tensor> tensors = {filled(rank.device, 9, rank.number()),
                                                 filled(rank.device, 500, rank.number())};
                  rank.device->wait(rank.together->broadcast(tensors, 2));
                  for (const Tensor &tensor : tensors)
                    for (size_t i = 0; i < tensor.elementCount(); ++i)
                      EXPECT_EQ(read(tensor)[i], valueOf(2, int64_t(i)));
                  // Around the ring, with what each has.
                  Tensor own = filled(rank.device, 64, rank.number()), other = filled(rank.device, 64, 9);
                  rank.together->send(own, (rank.number() + 1) % 3);
                  rank.device->wait(rank.together->receive(other, (rank.number() + 2) % 3));
                  EXPECT_EQ(read(other)[5], valueOf((rank.number() + 2) % 3, 5));
                }),
            nothing(3));
}

// A tensor that was never written is told by whoever reads what comes of it, alone in its message and together with others.
TEST_P(CollectivesTest, ATensorThatWasNeverWrittenIsToldOnAll) {
  for (size_t count : {1, 3})
    EXPECT_EQ(run(2,
                  [&](Rank &rank) {
                    auto make = [&] {
                      std::vector<Tensor> tensors;
                      for (size_t i = 0; i < count; ++i)
                        tensors.push_back(filled(rank.device, 100, rank.number()));
                      if (rank.number() == 0)
                        tensors.back().storage()->outcome()->fail(Error(ErrorCode::NonFinite, "a test lost it"));
                      return tensors;
                    };
                    auto whatOf = [](const Tensor &tensor) {
                      try {
                        wait(tensor);
                        return std::string();
                      } catch (const Error &error) {
                        return std::string(error.what()) + (error.details<NotSent>() ? " (not sent)" : "");
                      }
                    };
                    std::vector<Tensor> summed = make(), sent = make();
                    rank.device->wait(rank.together->allReduce(summed));
                    rank.device->wait(rank.together->broadcast(sent, 0));
                    if (rank.number() == 0) {
                      EXPECT_NE(whatOf(summed.back()).find("a test lost it"), std::string::npos);
                      return;
                    }
                    EXPECT_TRUE(std::isnan(read(summed.back())[7]));
                    std::string what = whatOf(sent.back());
                    EXPECT_NE(what.find("rank 0 has not what it was to send"), what.npos) << what;
                    EXPECT_NE(what.find(" (not sent)"), what.npos) << what;
                  }),
              nothing(2));
}

TEST_P(CollectivesTest, MessagesOfAnyLength) {
  EXPECT_EQ(run(3,
                [](Rank &rank) {
                  for (size_t length : {0, 5, 224, 225, 10000}) {
                    std::string own(length * size_t(rank.number()), char('a' + rank.number()));
                    std::vector<std::string> all = rank.together->exchange("a test", own);
                    ASSERT_EQ(all.size(), 3u);
                    for (int other = 0; other < 3; ++other)
                      EXPECT_EQ(all[size_t(other)], std::string(length * size_t(other), char('a' + other)));
                  }
                }),
            nothing(3));
}

TEST_P(CollectivesTest, RanksAtDifferentThingsAreTold) {
  std::vector<std::string> thrown =
      run(2, [](Rank &rank) { rank.together->exchange(rank.number() ? "loading" : "step 3", "here"); });
  EXPECT_NE(thrown[0].find("rank 0 is at \"step 3\", and rank 1 at \"loading\""), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[1].find("rank 1 is at \"loading\", and rank 0 at \"step 3\""), std::string::npos) << thrown[1];
}

// Of a rank whose call fails the others hear why; one that vanishes is named when time is up. The tensors say so, and
// nobody hangs.
TEST_P(CollectivesTest, ARankThatFailsEndsTheOthers) {
  for (bool vanishes : {false, true})
    for (int gone : {0, 2}) {
      std::vector<std::string> thrown = run(
          3,
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

TEST_P(CollectivesTest, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(run(1,
                [](Rank &rank) {
                  Tensor floats = filled(rank.device, 8, 0), other = filled(rank.device, 9, 0);
                  Tensor codes = Tensor::empty(rank.device, TensorDesc({8}, ElementType::bf16));
                  auto refused = [](auto call, std::string_view words) {
                    try {
                      call();
                      ADD_FAILURE() << words;
                    } catch (const Error &error) {
                      EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
                    }
                  };
                  refused([&] { rank.together->allReduce(std::span(&codes, 1)); }, "has to be dense and of f32");
                  refused([&] { rank.together->reduceScatter(other, floats); }, "the part of a rank is");
                  refused([&] { rank.together->broadcast(std::span(&floats, 1), 1); }, "there is no rank 1");
                  refused([&] { rank.together->reduce(std::span(&floats, 1), -1); }, "there is no rank -1");
                  Tensor none;
                  refused([&] { rank.together->send(none, 0); }, "a tensor is null");
                }),
            nothing(1));
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
