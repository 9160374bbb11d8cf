//===- SaveGraphTest.cpp - what is kept of small graphs -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/Transforms/SaveGraph.h"
#include "gtest/gtest.h"
#include <optional>
#include <random>

using namespace segue;

/// Returns what backward pays with `kept`: nothing if a needed value cannot be had.
static std::optional<int64_t> costOf(const SaveGraph &graph, const std::vector<bool> &kept, int64_t flopsPerByte) {
  std::vector<bool> opRuns(graph.ops.size()), reached(graph.values.size());
  std::vector<unsigned> work;
  for (unsigned v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].needed)
      work.push_back(v);
  while (!work.empty()) {
    unsigned v = work.back();
    work.pop_back();
    if (reached[v] || kept[v])
      continue;
    reached[v] = true;
    int producer = graph.values[v].producer;
    if (producer < 0 || !graph.ops[producer].mayRecompute)
      return std::nullopt;
    if (!opRuns[producer]) {
      opRuns[producer] = true;
      work.insert(work.end(), graph.ops[producer].operands.begin(), graph.ops[producer].operands.end());
    }
  }
  int64_t cost = 0;
  for (unsigned v = 0; v < graph.values.size(); ++v)
    cost += kept[v] ? graph.values[v].bytes * flopsPerByte : 0;
  for (unsigned o = 0; o < graph.ops.size(); ++o)
    cost += opRuns[o] ? graph.ops[o].flops : 0;
  return cost;
}

// Random graphs of up to 10 values, ops with up to 2 results; all subsets.
TEST(SaveGraph, EqualsTheBestOfAllSubsets) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    SaveGraph graph;
    for (unsigned k = 0, count = 1 + random() % 3; k < count; ++k)
      graph.values.push_back({random() % 2 ? 0 : int64_t(random() % 8), -1, random() % 4 == 0});
    while (graph.values.size() < 9) {
      SaveGraph::Op op;
      op.flops = random() % 3 == 0 ? 0 : random() % 40;
      op.mayRecompute = random() % 4 != 0;
      for (unsigned k = 0, count = random() % 3; k < count; ++k)
        op.operands.push_back(random() % graph.values.size());
      graph.ops.push_back(op);
      for (unsigned k = 0, count = 1 + random() % 2; k < count; ++k)
        graph.values.push_back({1 + int64_t(random() % 8), int(graph.ops.size()) - 1, random() % 3 == 0});
    }
    const int64_t weight = 1 + random() % 8;
    std::optional<int64_t> best;
    for (uint32_t subset = 0; subset < (1u << graph.values.size()); ++subset) {
      std::vector<bool> kept;
      for (unsigned v = 0; v < graph.values.size(); ++v)
        kept.push_back(subset >> v & 1);
      if (std::optional<int64_t> cost = costOf(graph, kept, weight))
        best = best ? std::min(*best, *cost) : cost;
    }
    ASSERT_TRUE(best);
    EXPECT_EQ(costOf(graph, chooseSaved(graph, weight), weight), best);
  }
}

/// argument -> matmul -> h -> gelu -> a, with h and a needed.
static SaveGraph mlp() {
  SaveGraph graph;
  graph.values = {{0, -1, false}, {4096, 0, true}, {4096, 1, true}};
  graph.ops = {{1 << 20, false, {0}}, {24 * 1024, true, {1}}};
  return graph;
}

TEST(SaveGraph, RecomputesAnElementwiseOpAndNeverAMatmul) {
  EXPECT_EQ(chooseSaved(mlp(), 64), (std::vector<bool>{false, true, false}));
}

TEST(SaveGraph, KeepsBothWhereAByteIsWorthLittle) {
  EXPECT_EQ(chooseSaved(mlp(), 1), (std::vector<bool>{false, true, true}));
}

// Three views of one value cost as much together: the value is kept.
TEST(SaveGraph, KeepsAValueRatherThanItsViews) {
  SaveGraph graph;
  graph.values = {{0, -1, false}, {300, 0, false}, {100, 1, true}, {100, 2, true}, {100, 3, true}};
  graph.ops = {{9, false, {0}}, {0, true, {1}}, {0, true, {1}}, {0, true, {1}}};
  EXPECT_EQ(chooseSaved(graph, 64), (std::vector<bool>{false, true, false, false, false}));
}

TEST(SaveGraph, KeepsNothingForNothing) {
  EXPECT_TRUE(chooseSaved({}, 64).empty());
  SaveGraph graph = mlp();
  graph.values[1].needed = graph.values[2].needed = false;
  EXPECT_EQ(chooseSaved(graph, 64), (std::vector<bool>{false, false, false}));
}
