//===- CollectivesConformance.cpp - what collectives have to do -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CollectivesConformance.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

/// Returns where a tensor of so many elements lies: some at home on all ranks, some on one alone, as budgets have it.
static Space spaceOf(const Rank &rank, int64_t count) {
  return count == 3 || (count == 1024 && rank.number() == 1) ? Space::Host : Space::DeviceDram;
}

TEST_P(CollectivesConformance, SumsAreThoseOfAllRanks) {
  for (int ranks = 1; ranks <= GetParam().mostRanks; ++ranks)
    for (bool inOrder : {false, true})
      EXPECT_EQ(run(
                    ranks,
                    [&](Rank &rank) {
                      std::vector<Tensor> tensors;
                      for (int64_t count : {0, 1, 700, 3, 1024, 5}) // some together in a message, some alone
                        tensors.push_back(filled(rank.device, count, rank.number(), spaceOf(rank, count)));
                      Fence done = rank.together->allReduce(tensors);
                      rank.device->wait(done);
                      for (const Tensor &tensor : tensors)
                        expectSum(read(tensor), sums(ranks, int64_t(tensor.elementCount())),
                                    inOrder || ranks <= 2 || GetParam().addsInOrder);
                    },
                    {.seed = 5}, {.bucketBytes = 3000, .addsInOrder = inOrder}),
                nothing(ranks));
}

TEST_P(CollectivesConformance, ASumIsThatOfOneRank) {
  for (int ranks = 1; ranks <= GetParam().mostRanks; ++ranks)
    for (bool inOrder : {false, true})
      EXPECT_EQ(run(
                    ranks,
                    [&](Rank &rank) {
                      for (int root = 0; root < ranks; ++root) {
                        std::vector<Tensor> tensors;
                        for (int64_t count : {0, 1, 700, 3, 1024, 5})
                          tensors.push_back(filled(rank.device, count, rank.number(), spaceOf(rank, count)));
                        rank.device->wait(rank.together->reduce(tensors, root));
                        if (root != rank.number()) // there is nothing to be said of what it has
                          continue;
                        for (const Tensor &tensor : tensors)
                          expectSum(read(tensor), sums(ranks, int64_t(tensor.elementCount())),
                                    inOrder || ranks <= 2 || GetParam().addsInOrder);
                      }
                    },
                    {.seed = 6}, {.bucketBytes = 3000, .addsInOrder = inOrder}),
                nothing(ranks));
}

TEST_P(CollectivesConformance, PartsAreSummedAndGathered) {
  if (!has(3))
    GTEST_SKIP() << "there are fewer devices";
  EXPECT_EQ(run(3,
                [](Rank &rank) {
                  int64_t own = rank.number() * 40;
                  Tensor whole = filled(rank.device, 120, rank.number());
                  Tensor part = filled(rank.device, 40, 9), all = filled(rank.device, 120, 9);
                  rank.together->reduceScatter(whole, part);
                  rank.device->wait(rank.together->allGather(part, all));
                  expectSum(read(part), sums(3, 40, own), GetParam().addsInOrder);
                  expectSum(read(all), sums(3, 120), GetParam().addsInOrder);
                  Vector mine;
                  for (int64_t i = 0; i < 120; ++i)
                    mine.push_back(valueOf(rank.number(), i));
                  EXPECT_EQ(read(whole), mine);
                }),
            nothing(3));
}

TEST_P(CollectivesConformance, AValueComesFromOneRank) {
  if (!has(3))
    GTEST_SKIP() << "there are fewer devices";
  EXPECT_EQ(run(3,
                [](Rank &rank) {
                  std::vector<Tensor> tensors = {filled(rank.device, 9, rank.number()),
                                                 filled(rank.device, 1024, rank.number(), spaceOf(rank, 1024))};
                  rank.device->wait(rank.together->broadcast(tensors, 2));
                  for (const Tensor &tensor : tensors) {
                    Vector found = read(tensor);
                    for (size_t i = 0; i < found.size(); ++i)
                      EXPECT_EQ(found[i], valueOf(2, int64_t(i)));
                  }
                  // Around the ring, with what each has.
                  Tensor own = filled(rank.device, 64, rank.number()), other = filled(rank.device, 64, 9);
                  rank.together->send(own, (rank.number() + 1) % 3);
                  rank.device->wait(rank.together->receive(other, (rank.number() + 2) % 3));
                  EXPECT_EQ(read(other)[5], valueOf((rank.number() + 2) % 3, 5));
                }),
            nothing(3));
}

// A tensor that was never written is told by whoever reads what comes of it, alone in its message and together with
// others.
TEST_P(CollectivesConformance, ATensorThatWasNeverWrittenIsToldOnAll) {
  if (!has(2))
    GTEST_SKIP() << "there are fewer devices";
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

TEST_P(CollectivesConformance, MessagesOfAnyLength) {
  if (!has(3))
    GTEST_SKIP() << "there are fewer devices";
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

TEST_P(CollectivesConformance, RanksAtDifferentThingsAreTold) {
  if (!has(2))
    GTEST_SKIP() << "there are fewer devices";
  std::vector<std::string> thrown =
      run(2, [](Rank &rank) { rank.together->exchange(rank.number() ? "loading" : "step 3", "here"); });
  EXPECT_NE(thrown[0].find("rank 0 is at \"step 3\", and rank 1 at \"loading\""), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[1].find("rank 1 is at \"loading\", and rank 0 at \"step 3\""), std::string::npos) << thrown[1];
}

TEST_P(CollectivesConformance, WhatDoesNotFitIsRefused) {
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
