//===- BlockGuardsTest.cpp - types and numbers that blocks give -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Weight Stagehand's numeric guards on compiled models: which types count as
// activations, and values that pass from block to block in temporaries.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "StreamedModel.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <nlohmann/json.hpp>

using namespace segue;
using namespace segue::test;

namespace {
/// Two blocks of bf16 weights with a norm, whose statistics are f32, and an f32
/// loss in the second. `promotes`: the first gives f32 to the second, and the
/// program returns that.
std::string normsText(bool promotes) {
  std::string between = promotes ? "f32" : "bf16", text = R"(
func.func @forward(%x: tensor<16x64xbf16> {segue.name = "x", segue.role = #segue.role<input>},
  %w0: tensor<64x64xbf16> {segue.name = "w0", segue.role = #segue.role<parameter>},
  %w1: tensor<64x64xTYPE> {segue.name = "w1", segue.role = #segue.role<parameter>})
  -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}HIDDEN) {
  %p0 = segue.dot_general %x, %w0 batch [] x [] contract [1] x [1] {segue.block = "h.0"} : tensor<16x64xbf16>, tensor<64x64xbf16> -> tensor<16x64xbf16>
  %n0, %m0, %r0 = segue.layer_norm %p0 eps 1.0e-5 {segue.block = "h.0"} : tensor<16x64xbf16> -> tensor<16xf32>
  %h0 = segue.gelu tanh %n0 {segue.block = "h.0"} : tensor<16x64xbf16>
  %c0 = CAST
  %p1 = segue.dot_general %c0, %w1 batch [] x [] contract [1] x [1] {segue.block = "h.1"} : tensor<16x64xTYPE>, tensor<64x64xTYPE> -> tensor<16x64xTYPE>
  %n1, %m1, %r1 = segue.layer_norm %p1 eps 1.0e-5 {segue.block = "h.1"} : tensor<16x64xTYPE> -> tensor<16xf32>
  %f1 = segue.cast %n1 {segue.block = "h.1"} : tensor<16x64xTYPE> -> tensor<16x64xf32>
  %s1 = segue.mul %f1, %f1 {segue.block = "h.1"} : tensor<16x64xf32>
  %loss = segue.reduce mean %s1 dims [0, 1] {segue.block = "h.1"} : tensor<16x64xf32> -> tensor<f32>
  return %loss RETURNED
})";
  auto replace = [&](const std::string &from, const std::string &to) {
    for (size_t at; (at = text.find(from)) != std::string::npos;)
      text.replace(at, from.size(), to);
  };
  replace("CAST", promotes ? "segue.cast %h0 {segue.block = \"h.0\"} : tensor<16x64xbf16> -> tensor<16x64xf32>"
                           : "segue.neg %h0 {segue.block = \"h.0\"} : tensor<16x64xbf16>");
  replace("HIDDEN",
          promotes ? R"(, tensor<16x64xf32> {segue.name = "hidden", segue.role = #segue.role<output>})" : "");
  replace("RETURNED", promotes ? ", %c0 : tensor<f32>, tensor<16x64xf32>" : ": tensor<f32>");
  replace("TYPE", between);
  if (promotes) // a cast to the same type is none
    replace("  %f1 = segue.cast %n1 {segue.block = \"h.1\"} : tensor<16x64xf32> -> tensor<16x64xf32>\n",
            "  %f1 = segue.neg %n1 {segue.block = \"h.1\"} : tensor<16x64xf32>\n");
  return text;
}

Session makeNorms(const DeviceRef &device, bool promotes, const std::string &config, SessionOptions options = {}) {
  CompileOptions compile;
  compile.name = "m";
  compile.training = true;
  compile.optimizer = "adamw";
  CompiledModule module(normsText(promotes), compile);
  if (!module.binary)
    throw std::runtime_error(module.diagnostics);
  options.config = Config::parse(config, "test");
  Session session(device, {{"m", *module.binary}}, std::move(options));
  uint32_t seed = 1;
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, copyTo(device, randomTensor(device, info.desc.shape, seed++),
                                          TensorDesc(info.desc.shape, info.desc.element)));
  return session;
}

TensorMap bf16Batch(const DeviceRef &device, uint32_t seed) {
  return {{"x", copyTo(device, randomTensor(device, {16, 64}, seed), TensorDesc({16, 64}, ElementType::bf16))}};
}

class BlockGuardsTest : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(All, BlockGuardsTest,
                         testing::Values("cpu:threads=2", "sim:dram=4MiB,pinned=8MiB", "sim:dram=4MiB,adversarial=1",
                                         "sim:streams,dram=4MiB,pinned=8MiB",
                                         "sim:streams,dram=4MiB,adversarial=1"));
} // namespace

// Statistics of norms, saved for backward in f32, and a loss in f32 are no
// activations; gradients of bf16 are bf16 in backward.
TEST_P(BlockGuardsTest, LossesAndStatisticsAreNoPromotion) {
  Session session = makeNorms(Device::open(GetParam()), /*promotes=*/false, streamingConfig(1, 2));
  for (uint32_t step = 0; step < 2; ++step)
    EXPECT_TRUE(std::isfinite(session.step(bf16Batch(session.device(), step), 1e-3).loss));
  EXPECT_EQ(session.services()->weightRecord()["dtype_promotions"], 0);
  EXPECT_EQ(session.services()->weights()->parameters().size(), 2u) << "both blocks are streamed";
}

// A block that takes bf16 and hands f32 on is refused before anything is
// allocated, naming program, value and block.
TEST_P(BlockGuardsTest, APromotionIsRefusedBeforeTheStep) {
  DeviceRef device = Device::open(GetParam());
  Session session = makeNorms(device, /*promotes=*/true, streamingConfig(1, 2));
  uint64_t live = device->memory().liveBytes(Space::DeviceDram), pinned = device->memory().liveBytes(Space::HostPinned);
  TensorMap batch = bf16Batch(device, 1);
  uint64_t ofBatch = device->memory().liveBytes(Space::DeviceDram) - live;
  auto [code, what] = errorOf([&] { session.step(batch, 1e-3); });
  EXPECT_EQ(code, ErrorCode::DtypeMismatch) << what;
  EXPECT_NE(what.find("program \"forward\", \"hidden\": "), std::string::npos) << what;
  EXPECT_NE(what.find("block \"m/h.0\" takes bf16 and gives f32; set fail_on_dtype_promotion to false to let it"),
            std::string::npos)
      << what;
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), live + ofBatch);
  EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), pinned);
  EXPECT_FALSE(session.services()->weights()->isStarted());
}

TEST_P(BlockGuardsTest, APromotionThatIsLetIsCounted) {
  std::vector<std::string> warnings;
  SessionOptions options;
  options.warn = [&](const std::string &text) { warnings.push_back(text); };
  Session session = makeNorms(Device::open(GetParam()), /*promotes=*/true,
                              streamingConfig(1, 2, R"(, "fail_on_dtype_promotion": false)"), options);
  for (uint32_t step = 0; step < 3; ++step) {
    session.step(bf16Batch(session.device(), step), 1e-3);
    EXPECT_EQ(session.services()->weightRecord()["dtype_promotions"], 1) << "forward of h.0";
  }
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings[0].find("block \"m/h.0\" takes bf16 and gives f32"), std::string::npos) << warnings[0];
}

// A NaN that begins in one block's weights: the value that it first leaves the
// block in is named, a temporary where nothing is saved of it.
TEST_P(BlockGuardsTest, NamesTheBlockWhereNanBegins) {
  DeviceRef device = Device::open(GetParam());
  std::vector<std::string> warnings;
  SessionOptions options;
  options.warn = [&](const std::string &text) { warnings.push_back(text); };
  Session session = makeSession(device, streamingConfig(0.2, 2), options);
  Tensor bad = randomTensor(device, {modelWidth, modelWidth}, 9);
  bad.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  session.setParameter("f2.weight", bad);
  EXPECT_EQ(errorOf([&] { session.step(batchOf(device, 1), 1e-2); }).first, ErrorCode::NanLoss);
  Json record = session.services()->weightRecord();
  EXPECT_TRUE(record["aborted"]);
  EXPECT_GE(record["nan_count"], modelRows);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with("step 1: block \"front/h.2\" gives 16 NaN and 0 Inf in temporary of "))
      << warnings[0];
  session.setParameter("f2.weight", randomTensor(device, {modelWidth, modelWidth}, 9));
  session.step(batchOf(device, 1), 1e-2);
  EXPECT_EQ(session.services()->weightRecord()["nan_count"], 0);
  EXPECT_EQ(warnings.size(), 1u);
}

// A step that is given up while its kernels wait: temporaries that were not
// written are not looked at.
TEST(BlockGuards, NothingIsCountedThatNeverRan) {
  struct Stop : EventSink {
    int left = INT_MAX;
    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::BlockBegin &) {
      if (--left == 0)
        throw Error(ErrorCode::DeviceOom, "no room for what follows");
    }
  };
  for (int seed = 1; seed <= 4; ++seed)
    for (int block = 2; block <= 10; block += 2) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", block " + std::to_string(block));
      Stop stop;
      stop.left = block;
      std::vector<std::string> warnings;
      SessionOptions options;
      options.events = &stop;
      options.warn = [&](const std::string &text) { warnings.push_back(text); };
      Session session = makeSession(Device::open("sim:dram=4MiB,pinned=8MiB,adversarial=" + std::to_string(seed)),
                                    streamingConfig(1, 2), options);
      EXPECT_EQ(errorOf([&] { session.step(batchOf(session.device(), 1), 1e-2); }).first, ErrorCode::DeviceOom);
      EXPECT_EQ(session.services()->weightRecord()["aborted"], true);
      EXPECT_EQ(session.services()->weightRecord()["nan_count"], 0);
      EXPECT_EQ(warnings, std::vector<std::string>{});
    }
}

// The counts take their time on a device that has no bytes, and find nothing.
TEST(BlockGuards, CountTakesTimeWithoutBytes) {
  double seconds[2];
  for (bool counts : {false, true}) {
    DeviceRef device = Device::open("sim:virtual,dram=4MiB,link=1GB/s");
    SessionOptions options;
    options.config = Config::parse(streamingConfig(0.22, 1, counts ? "" : R"(, "nan_inf_check": false)"), "test");
    options.wires = {{"back", "hidden", "front", "h"}};
    Session session(device, modelModules(), std::move(options));
    session.allocateParameters();
    TensorMap batch{{"x", Tensor::onHost(device, {modelRows, modelWidth}, ElementType::f32)}};
    session.step(batch, 1e-2);
    double before = device->seconds();
    session.step(batch, 1e-2);
    seconds[counts] = device->seconds() - before;
    EXPECT_EQ(session.services()->weightRecord()["nan_count"], 0);
  }
  EXPECT_GE(seconds[true], seconds[false]);
}
