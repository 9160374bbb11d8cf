//===- ProgramCostsTest.cpp - costs by hand -------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/ProgramCosts.h"
#include "segue/runtime/Program/Binary.h"
#include <gtest/gtest.h>

using namespace segue;

static Binary corpusFile(const std::string &path) {
  return Binary::load(std::filesystem::path(SEGUE_TEST_CORPUS) / path);
}

static std::vector<CommandCost> costsOf(const Binary &binary, const std::string &program, const std::string &kind) {
  std::vector<CommandCost> costs;
  for (CommandCost &cost : commandCosts(binary.program(program)))
    if (cost.kind == kind)
      costs.push_back(std::move(cost));
  return costs;
}

// [8, 6] x [6, 10] + bias, then [8, 10] x [10, 4].
TEST(ProgramCosts, MatmulsByTheirShapes) {
  for (const char *file : {"0.1/mlp.segue", "0.2/mlp.segue"}) {
    SCOPED_TRACE(file);
    Binary binary = corpusFile(file);
    std::vector<CommandCost> costs = costsOf(binary, "forward", "Matmul");
    ASSERT_EQ(costs.size(), 2u);
    EXPECT_EQ(costs[0].flops, 2u * 8 * 10 * 6);
    EXPECT_EQ(costs[0].bytes, 4u * (8 * 6 + 6 * 10 + 8 * 10 + 10));
    EXPECT_EQ(costs[1].flops, 2u * 8 * 4 * 10);
    EXPECT_EQ(costs[1].bytes, 4u * (8 * 10 + 10 * 4 + 8 * 4));
    EXPECT_EQ(binary.program("forward").matmulFlops(), costs[0].flops + costs[1].flops);
    EXPECT_NE(costs[0].location.find("mlp.mlir"), std::string::npos) << costs[0].location;
  }
}

// Two heads of [6, 4] in two batches, causal: half of two products.
TEST(ProgramCosts, AttentionAndItsBlock) {
  std::vector<CommandCost> costs = costsOf(corpusFile("0.2/attention.segue"), "forward", "Attention");
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_EQ(costs[0].flops, 2u * 2 * 2 * 2 * 6 * 6 * 4 / 2);
  EXPECT_EQ(costs[0].block, "h.0");
}

// Version 0.2 says what a unit of a kernel's range costs, 0.1 did not know.
TEST(ProgramCosts, Launches) {
  std::vector<CommandCost> before = costsOf(corpusFile("0.1/mlp.segue"), "forward", "Launch");
  std::vector<CommandCost> after = costsOf(corpusFile("0.2/mlp.segue"), "forward", "Launch");
  ASSERT_EQ(before.size(), after.size());
  ASSERT_FALSE(after.empty());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(before[i].flops, 0u);
    EXPECT_GT(after[i].flops, 0u);
    EXPECT_EQ(before[i].bytes, after[i].bytes);
    EXPECT_GT(after[i].bytes, 0u);
  }
}

TEST(ProgramCosts, RecomputationOfSavedValues) {
  Binary binary = corpusFile("0.2/mlp.segue");
  const Program &forward = binary.program("forward");
  std::vector<RecomputeCost> costs = recomputeCosts(forward);
  ASSERT_EQ(costs.size(), forward.savePoints().size());
  ASSERT_FALSE(costs.empty());
  for (size_t i = 0; i < costs.size(); ++i) {
    EXPECT_EQ(costs[i].flops, forward.savePoints()[i].recomputeFlops);
    // At least the value itself is written.
    EXPECT_GE(costs[i].bytes, forward.savePoints()[i].bytes);
  }
  for (const RecomputeCost &cost : recomputeCosts(corpusFile("0.1/mlp.segue").program("forward")))
    EXPECT_EQ(cost.bytes, 0u);
}
