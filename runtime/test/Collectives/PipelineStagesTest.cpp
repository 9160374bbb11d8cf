//===- PipelineStagesTest.cpp - the order of a pipeline -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Session/Ranks/PipelineStages.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

using namespace segue;

/// Returns how long a step takes where a forward takes one unit of time and a backward two, and messages none: moves of
/// a rank one after the other, receives when their message is sent. Throws where ranks wait for each other for ever.
static int timeOf(int ranks, size_t batches) {
  std::vector<std::vector<PipelineMove>> moves;
  for (int rank = 0; rank < ranks; ++rank)
    moves.push_back(pipelineMoves(rank, ranks, batches));
  std::vector<size_t> next(moves.size(), 0);
  std::vector<int> clocks(moves.size(), 0);
  std::map<std::tuple<size_t, bool, size_t>, int> sent; // from, whether it is a gradient, batch
  for (bool goesOn = true; goesOn;) {
    goesOn = false;
    for (size_t rank = 0; rank < moves.size(); ++rank)
      for (; next[rank] < moves[rank].size(); ++next[rank], goesOn = true) {
        auto [act, batch] = moves[rank][next[rank]];
        bool isGradient = act == PipelineAct::ReceiveGradient;
        if (act == PipelineAct::Receive || isGradient) {
          auto found = sent.find({isGradient ? rank + 1 : rank - 1, isGradient, batch});
          if (found == sent.end())
            break;
          clocks[rank] = std::max(clocks[rank], found->second);
        } else if (act == PipelineAct::Send || act == PipelineAct::SendGradient) {
          sent[{rank, act == PipelineAct::SendGradient, batch}] = clocks[rank];
        } else {
          clocks[rank] += act == PipelineAct::Forward ? 1 : 2;
        }
      }
  }
  for (size_t rank = 0; rank < moves.size(); ++rank)
    if (next[rank] < moves[rank].size())
      throw std::runtime_error("rank " + std::to_string(rank) + " waits for ever");
  return *std::ranges::max_element(clocks);
}

// Each rank waits for the first batch to come to it and for the last gradient to go back, and for nothing else.
TEST(PipelineStages, TakeTheLeastTime) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (size_t batches = 1; batches <= 12; ++batches)
      EXPECT_EQ(timeOf(ranks, batches), 3 * (int(batches) + ranks - 1)) << ranks << " ranks, " << batches << " batches";
}

// Every batch has its forward and then its backward, backwards come in the order of batches, and of no more batches
// than there are stages from here on is anything kept.
TEST(PipelineStages, EachBatchOnceAndNoMoreAheadThanStagesBehind) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int rank = 0; rank < ranks; ++rank)
      for (size_t batches = 1; batches <= 12; ++batches) {
        size_t forwards = 0, backwards = 0, received = 0, most = 0;
        for (const auto &[act, batch] : pipelineMoves(rank, ranks, batches)) {
          if (act == PipelineAct::Receive) {
            EXPECT_EQ(batch, received++);
          } else if (act == PipelineAct::Forward) {
            EXPECT_EQ(batch, forwards++);
            EXPECT_TRUE(rank == 0 || received > batch);
          } else if (act == PipelineAct::Backward) {
            EXPECT_EQ(batch, backwards++);
            EXPECT_LT(batch, forwards);
          }
          most = std::max(most, forwards - backwards);
        }
        EXPECT_EQ(forwards, batches);
        EXPECT_EQ(backwards, batches);
        EXPECT_EQ(most, std::min(batches, size_t(ranks - rank)));
      }
}

// The greatest run is as small as it can be: compared with all ways to cut.
TEST(PipelineStages, StagesAreCutEvenly) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    size_t count = 1 + random() % 8, runs = 1 + random() % count;
    std::vector<double> costs(count);
    for (double &cost : costs)
      cost = double(random() % 10);
    auto worst = [&](const std::vector<size_t> &ends) {
      double most = 0;
      for (size_t r = 0, begin = 0; r < ends.size(); begin = ends[r++])
        most = std::max(most, std::accumulate(costs.begin() + ptrdiff_t(begin), costs.begin() + ptrdiff_t(ends[r]), 0.0));
      return most;
    };
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t cuts = 0; cuts < 1u << (count - 1); ++cuts) {
      if (size_t(__builtin_popcount(cuts)) + 1 != runs)
        continue;
      std::vector<size_t> ends;
      for (size_t at = 1; at < count; ++at)
        if (cuts >> (at - 1) & 1)
          ends.push_back(at);
      ends.push_back(count);
      best = std::min(best, worst(ends));
    }
    std::vector<size_t> ends = cutEvenly(costs, runs);
    EXPECT_EQ(ends.size(), runs);
    EXPECT_EQ(ends.back(), count);
    EXPECT_EQ(std::set(ends.begin(), ends.end()).size(), runs);
    EXPECT_GT(ends.front(), 0u);
    EXPECT_EQ(worst(ends), best);
  }
}
