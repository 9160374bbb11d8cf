//===- RooflineTest.cpp - commands beside their limits --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/Roofline.h"
#include "ErrorOf.h"
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;

// 100 GFLOP/s and 10 GB/s: a command of 10 flops per byte has as much of one as of the other.
static const DeviceSpeed speed{100e9, 10e9, "by hand"};

static std::vector<ProgramTimes> programs() {
  return {{"out/net.segue",
           "forward",
           {{"matmul 1x8x8x8", "Matmul", "net.py:3 (h.0)", 2, 0.5, 10'000'000'000, 100'000'000},
            {"launch gelu", "Launch", "net.py:4 (h.0)", 2, 0.2, 1'000'000'000, 500'000'000}}},
          {"out/net.segue",
           "backward",
           {{"attention_grad 1x1x8x8 over 8 keys", "AttentionGrad", "", 2, 0.1, 5'000'000'000, 0}, {"fill", "Fill", "", 2, 0, 0, 0}}}};
}

// Flops and bytes of all calls; the larger time bounds; the rest of the runs lies between commands.
TEST(Roofline, LimitsByHand) {
  Json table = Roofline({"cpu", 2, "step", 2, 1.0}, programs(), speed).json();
  ASSERT_EQ(table["commands"].size(), 4u);
  Json product = table["commands"][0], kernel = table["commands"][1], attention = table["commands"][2], fill = table["commands"][3];
  EXPECT_EQ(product["label"], "matmul 1x8x8x8");
  EXPECT_EQ(product["flops"], 20'000'000'000u);
  EXPECT_EQ(product["bound_by"], "products");
  EXPECT_DOUBLE_EQ(product["limit_seconds"], 0.2);
  EXPECT_DOUBLE_EQ(product["reached"], 0.4);
  EXPECT_DOUBLE_EQ(product["share"], 0.5);
  EXPECT_EQ(kernel["bound_by"], "memory");
  EXPECT_DOUBLE_EQ(kernel["limit_seconds"], 0.1);
  EXPECT_DOUBLE_EQ(kernel["reached"], 0.5);
  EXPECT_EQ(attention["program"], "backward");
  EXPECT_TRUE(fill["limit_seconds"].is_null());
  EXPECT_TRUE(fill["reached"].is_null());
  EXPECT_DOUBLE_EQ(table["products"]["share"], 0.6);
  EXPECT_DOUBLE_EQ(table["products"]["reached"], 0.5);
  EXPECT_DOUBLE_EQ(table["others"]["share"], 0.2);
  EXPECT_NEAR(table["between"]["seconds"], 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(table["kinds"]["Matmul"]["seconds"], 0.5);
}

TEST(Roofline, TextHasEveryFigure) {
  std::string text = Roofline({"cpu:threads=2", 2, "step", 2, 1.0}, programs(), speed).text(/*most=*/2);
  for (const char *part :
       {"cpu:threads=2, 2 threads: products 100.0 GFLOP/s, memory 10.0 GB/s (by hand)\n", "2 steps of 500.000 ms, 4 commands\n",
        "   50.0%    500.000       2       0.2         20    200.000  products      40%  forward: matmul 1x8x8x8 at net.py:3 (h.0)\n",
        "memory        50%  forward: launch gelu at net.py:4 (h.0)\n", "  and 2 more\n",
        "matmul, attention and library calls 60.0% (50% of their limits reached), other commands 20.0% (50% of their limits reached), "
        "between commands 20.0%: 100.000 ms per step"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// Without speeds there are times alone; of several files each program has that of its own before it.
TEST(Roofline, WithoutSpeedsAndOfSeveralFiles) {
  std::vector<ProgramTimes> two = programs();
  two.push_back({"other", "forward", {{"launch gelu", "Launch", "net.py:4 (h.0)", 1, 0.1, 1, 1}}});
  Roofline table({"cpu", 1, "submit", 1, 1.0}, two, std::nullopt);
  EXPECT_EQ(table.text().find("limit"), std::string::npos);
  EXPECT_NE(table.text().find("net.forward: launch gelu"), std::string::npos) << table.text();
  EXPECT_NE(table.text().find("other.forward: launch gelu"), std::string::npos);
  EXPECT_TRUE(table.json()["flops_per_second"].is_null());
  EXPECT_EQ(table.json()["commands"].size(), 5u);
}

// A command that moves bytes does not count as a product, though it is no kernel of the file either.
TEST(Roofline, ConversionsAndFillsAreNoProducts) {
  Json table = Roofline({"cpu", 1, "step", 1, 1.0},
                        {{"net",
                          "forward",
                          {{"matmul", "Matmul", "", 1, 0.5, 1, 1},
                           {"to layout", "ToLayout", "", 1, 0.2, 1, 1},
                           {"fill", "Fill", "", 1, 0.1, 1, 1}}}},
                        std::nullopt)
                   .json();
  EXPECT_DOUBLE_EQ(table["products"]["seconds"], 0.5);
  EXPECT_DOUBLE_EQ(table["others"]["seconds"], 0.2 + 0.1);
}

// A module that is prepared for batches of another size, too, has its commands once.
TEST(Roofline, OneRowPerCommand) {
  std::vector<ProgramTimes> twice = programs();
  twice.push_back(twice.front());
  Json table = Roofline({"cpu", 1, "step", 2, 2.0}, twice, speed).json();
  ASSERT_EQ(table["commands"].size(), 4u);
  EXPECT_EQ(table["commands"][0]["calls"], 4u);
  EXPECT_DOUBLE_EQ(table["commands"][0]["reached"], 0.4);
}

//===----------------------------------------------------------------------===//
// Speeds
//===----------------------------------------------------------------------===//

static std::string profile(const std::string &text) {
  std::string path = testing::TempDir() + "/segue-roofline-" + std::to_string(std::hash<std::string>()(text)) + ".json";
  std::ofstream(path) << text;
  return path;
}

TEST(DeviceSpeed, OfAProfile) {
  std::string path = profile(R"({"version": 1, "flops": "50GFLOP/s", "membw": "5GB/s"})");
  DeviceSpeed found = speedOf(*Device::open("cpu:threads=1,profile=" + path));
  EXPECT_DOUBLE_EQ(found.flopsPerSecond, 50e9);
  EXPECT_DOUBLE_EQ(found.bytesPerSecond, 5e9);
  EXPECT_EQ(found.source, path);
  std::string other = profile(R"({"flops": "50GFLOP/s", "membw": "5GB/s", "threads": 4})");
  EXPECT_EQ(speedOf(*Device::open("cpu:threads=1,profile=" + other)).source, other + ", of 4 threads");
}

TEST(DeviceSpeed, WhatIsNoProfileIsRefused) {
  std::string path = profile(R"({"version": 1, "flops": "50GFLOP/s"})");
  DeviceRef device = Device::open("cpu:profile=" + path);
  auto [code, sentence] = errorOf([&] { speedOf(*device); });
  EXPECT_EQ(code, ErrorCode::InvalidArgument);
  EXPECT_NE(sentence.find("it does not say membw="), std::string::npos) << sentence;
  EXPECT_EQ(errorOf([] { Device::open("cpu:profile=/nowhere/here.json"); }).first, ErrorCode::IoFailed);
}

TEST(DeviceSpeed, IsMeasuredWhereNothingIsSaid) {
  for (const char *spec : {"cpu:threads=1", "sim:dram=8MiB,threads=1"}) {
    DeviceSpeed found = speedOf(*Device::open(spec), /*seconds=*/0.02);
    EXPECT_GT(found.flopsPerSecond, 0) << spec;
    EXPECT_GT(found.bytesPerSecond, 0) << spec;
    EXPECT_NE(found.source.find(", measured in 0.02 s"), std::string::npos) << found.source;
  }
}
