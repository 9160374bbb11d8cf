//===- LineSeriesTest.cpp - lines of a run as columns of a chart ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/LineSeries.h"
#include "ErrorOf.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Reports/RunReport.h"
#include <fstream>
#include <gtest/gtest.h>
#include <malloc.h>

using namespace segue;

namespace {

/// The bytes of the heap in use.
size_t heapBytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

TEST(LineSeries, KeepsEachLineOfAShortRun) {
  LineSeries series("step_id");
  for (int step = 0; step < 5; ++step)
    series.add({{"step_id", step}, {"a", 0.1 * step}, {"in", {{"b", step == 3}}}, {"text", "x"}});
  series.add({{"step_id", 5}, {"late", 1}});
  Json json = series.columns(2000);
  EXPECT_EQ(json, Json::parse(R"({"lines": 6, "bucketed": false,
    "step": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    "columns": {"a": {"mean": [0.0, 0.1, 0.2, 0.30000000000000004, 0.4, null]},
                "in.b": {"mean": [0.0, 0.0, 0.0, 1.0, 0.0, null]},
                "late": {"mean": [null, null, null, null, null, 1.0]}},
    "last_step": 5.0})"));
}

/// Neither the least nor the greatest value, nor a line, is lost, whatever the number of lines.
TEST(LineSeries, LosesNothingInBuckets) {
  for (int count : {1, 3999, 4000, 4001, 8001, 17000}) {
    LineSeries series;
    for (int step = 1; step <= count; ++step)
      series.add({{"step", step},
                  {"value", step == count / 3 ? 7e6 : step == count / 2 ? -7e6 : 1.0},
                  {"step_ms", step}});
    Json json = series.columns(100);
    size_t rows = json["step"].size();
    EXPECT_EQ(rows, size_t(std::min(count, 100))) << count;
    EXPECT_EQ(json["lines"], count);
    EXPECT_EQ(json["step"][0], 1.0);
    EXPECT_EQ(json["last_step"], double(count));
    if (count == 1)
      continue;
    double least = INFINITY, most = -INFINITY;
    const Json &value = json["columns"]["value"], &ms = json["columns"]["step_ms"];
    for (size_t row = 0; row < rows; ++row) {
      least = std::min(least, value["min"][row].get<double>());
      most = std::max(most, value["max"][row].get<double>());
      // A row has the lines from its first step to the one before the next row's.
      double begin = json["step"][row].get<double>();
      double end = row + 1 < rows ? json["step"][row + 1].get<double>() : count + 1;
      EXPECT_EQ(ms["min"][row], begin);
      EXPECT_EQ(ms["max"][row], end - 1);
      EXPECT_DOUBLE_EQ(ms["mean"][row].get<double>(), (begin + end - 1) / 2);
    }
    EXPECT_EQ(most, 7e6);
    EXPECT_EQ(least, -7e6);
  }
}

TEST(LineSeries, ABucketHasTheFormsOfItsLastLine) {
  LineSeries series("step_id");
  constexpr int count = 10000;
  for (int step = 0; step < count; ++step)
    series.add({{"step_id", step},
                {"block_details",
                 {{"h.0", {{"precision", step < count / 2 ? "bf16" : "int8"}, {"rel", 1}}}, {"odd", 3}}}});
  Json json = series.precision(10);
  ASSERT_EQ(json["step"].size(), 10u);
  EXPECT_EQ(json["step"].back(), double(count - 1));
  EXPECT_EQ(json["blocks"]["h.0"].front(), "bf16");
  EXPECT_EQ(json["blocks"]["h.0"].back(), "int8");
  EXPECT_EQ(json["blocks"]["odd"].back(), Json());
  EXPECT_TRUE(series.columns(10)["columns"].empty());
}

/// A trainer that counts its bytes has a page whatever the number of its steps, and lines of telemetry are read once.
TEST(RunReport, TakesNoMoreForALongRun) {
  TemporaryFolder folder;
  std::filesystem::path file = folder / "activation.jsonl";
  Config config = Config::parse(Json{{"memory", {{"stagehand", {{"activation_stagehand", {
      {"enabled", true}, {"telemetry_file", file.string()}}}}}}}}.dump(), "test");
  RunReport report(Device::open("cpu:threads=1"), &config);
  std::ofstream telemetry(file);
  int64_t step = 0;
  auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      report.addStep({.loss = 0.5, .step = ++step}, 0.001);
      telemetry << Json{{"step", step}, {"activations_saved", 3}, {"stall_time_ms", 0.5}}.dump() << "\n";
    }
    telemetry.flush();
  };
  run(8000);
  EXPECT_EQ(report.records().telemetry.at("activations").lines(), 8000u);
  size_t before = heapBytes();
  run(12000);
  telemetry << R"({"step": 1, "activations_sav)"; // which is being written
  telemetry.flush();
  RunRecords records = report.records();
  EXPECT_EQ(records.steps.lines(), 20000u);
  EXPECT_EQ(records.telemetry.at("activations").lines(), 20000u);
  size_t after = heapBytes();
  EXPECT_LT(after, before + (4 << 20)) << "12000 lines of steps as JSON, and as many of telemetry, take more than 10 MiB";
  telemetry << R"(ed": 3})" << "\n";
  telemetry.flush();
  EXPECT_EQ(report.records().telemetry.at("activations").lines(), 20001u);
  telemetry << "broken\n";
  telemetry.flush();
  for (int i = 0; i < 2; ++i) {
    auto [code, what] = errorOf([&] { report.records(); });
    EXPECT_EQ(code, ErrorCode::FileCorrupt);
    EXPECT_NE(what.find("activation.jsonl, line 20002: a JSON object was expected"), what.npos) << what;
  }
}

} // namespace
