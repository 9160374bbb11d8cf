//===- MinCutTest.cpp - minimum cuts of small networks --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/Transforms/MinCut.h"
#include "gtest/gtest.h"
#include <algorithm>
#include <random>
#include <tuple>

using namespace segue;

namespace {
struct Network {
  unsigned nodes;
  std::vector<std::tuple<unsigned, unsigned, int64_t>> edges;

  int64_t costOf(uint32_t sourceSide) const {
    int64_t cost = 0;
    for (auto [from, to, capacity] : edges)
      if ((sourceSide >> from & 1) && !(sourceSide >> to & 1))
        cost = std::min(MinCut::kInfinite, cost + capacity);
    return cost;
  }

  MinCut build() const {
    MinCut network;
    for (unsigned k = 0; k < nodes; ++k)
      network.addNode();
    for (auto [from, to, capacity] : edges)
      network.addEdge(from, to, capacity);
    return network;
  }
};
} // namespace

// Node 0 is the source, node 1 the sink. All cuts are tried.
TEST(MinCut, EqualsTheBestOfAllCuts) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Network network{static_cast<unsigned>(2 + random() % 6), {}};
    for (unsigned k = 0, count = random() % 20; k < count; ++k) {
      unsigned from = random() % network.nodes, to = random() % network.nodes;
      if (from != to)
        network.edges.push_back({from, to, random() % 8 == 0 ? MinCut::kInfinite : random() % 10});
    }
    int64_t best = MinCut::kInfinite;
    for (uint32_t side = 0; side < (1u << network.nodes); ++side)
      if ((side & 1) && !(side & 2))
        best = std::min(best, network.costOf(side));

    MinCut cut = network.build();
    int64_t cost = cut.solve(0, 1);
    if (best >= MinCut::kInfinite) {
      EXPECT_GE(cost, MinCut::kInfinite);
      continue;
    }
    EXPECT_EQ(cost, best);
    uint32_t chosen = 0;
    for (unsigned node = 0; node < network.nodes; ++node)
      chosen |= static_cast<uint32_t>(cut.isOnSourceSide(node)) << node;
    EXPECT_EQ(network.costOf(chosen), best);
    // Nearest to the source: part of every best cut.
    for (uint32_t side = 0; side < (1u << network.nodes); ++side)
      if ((side & 1) && !(side & 2) && network.costOf(side) == best) {
        EXPECT_EQ(chosen & side, chosen);
      }
  }
}

// A path of this length would overflow the stack of a recursive search.
TEST(MinCut, FindsTheNarrowEdgeOfALongChain) {
  MinCut network;
  const unsigned length = 200000;
  for (unsigned k = 0; k < length; ++k)
    network.addNode();
  for (unsigned k = 0; k + 1 < length; ++k)
    network.addEdge(k, k + 1, k == 123456 ? 3 : 5);
  EXPECT_EQ(network.solve(0, length - 1), 3);
  EXPECT_TRUE(network.isOnSourceSide(123456));
  EXPECT_FALSE(network.isOnSourceSide(123457));
}
