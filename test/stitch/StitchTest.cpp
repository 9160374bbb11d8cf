//===- StitchTest.cpp - two compiled modules equal the joined one ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// front.mlir and back.mlir were compiled by two processes that knew nothing of
// each other; joined.mlir is both in one module and gives the right answer.
//
//===----------------------------------------------------------------------===//

#include "../../runtime/test/Device/RenamedSim.h"
#include "segue/runtime/Runtime.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

using namespace segue;

static Binary load(const std::string &module) {
  return Binary::load(std::filesystem::path(SEGUE_STITCH_BINARIES) / (module + ".segue"));
}

namespace {
class StitchTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam());

  Session stitched() {
    std::vector<SessionModule> modules;
    modules.push_back({"front", load("front")});
    modules.push_back({"back", load("back")});
    return initialized(Session(device, std::move(modules)));
  }

  Session joined() {
    std::vector<SessionModule> modules;
    modules.push_back({"joined", load("joined")});
    return initialized(Session(device, std::move(modules)));
  }

  /// Values that depend on the name of the parameter alone.
  Session initialized(Session session) {
    for (const ParameterInfo &info : session.parameters()) {
      std::mt19937 random(uint32_t(info.key[0]) * 31 + uint32_t(info.key.back()));
      Tensor tensor = Tensor::onHost(device, info.desc.shape, ElementType::f32);
      for (uint64_t i = 0; i < tensor.elementCount(); ++i)
        tensor.data<float>()[i] = float(random() % 2001) / 4000 - 0.25f + (info.key == "gamma" ? 1.0f : 0.0f);
      session.setParameter(info.key, tensor);
    }
    return session;
  }

  TensorMap batch(uint32_t seed) {
    std::mt19937 random(seed);
    TensorMap batch;
    for (const char *name : {"tokens", "targets"}) {
      Tensor tensor = Tensor::onHost(device, {2, 8}, ElementType::i64);
      for (int i = 0; i < 16; ++i)
        tensor.data<int64_t>()[i] = int64_t(random() % 13);
      batch[name] = tensor;
    }
    return batch;
  }
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, StitchTest,
                         testing::Values("cpu:threads=1", "cpu:threads=2", "sim:dram=16MiB,pinned=1MiB,link=4GB/s",
                                         "sim:dram=16MiB,adversarial=5",
                                         "sim:streams,dram=16MiB,pinned=1MiB,link=4GB/s",
                                         "sim:streams,dram=16MiB,adversarial=5", "renamed:dram=16MiB"));

static double relativeDistance(const Tensor &givenA, const Tensor &givenB) {
  Tensor a = toHost(givenA), b = toHost(givenB);
  double difference = 0, norm = 0;
  for (uint64_t i = 0; i < a.elementCount(); ++i) {
    difference += std::pow(double(a.data<float>()[i]) - b.data<float>()[i], 2);
    norm += std::pow(double(b.data<float>()[i]), 2);
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// Two sessions take turns on a device: each computes with its own `memory.stitch`, and the next one with neither.
TEST_P(StitchTest, OptionsOfASessionEndWithIt) {
  auto configured = [&](const std::string &stitch) {
    SessionOptions options;
    options.config = Config::parse(R"({"memory": {"stitch": {"telemetry_enabled": false, )" + stitch + "}}}", "test");
    return initialized(Session(device, {{"joined", load("joined")}}, std::move(options)));
  };
  std::optional<Session> first = configured(R"("staging_buffers": 5)");
  std::optional<Session> second = configured(R"("lossy_casts": "allow")");
  const StitchOptions &inForce = device->transfer().options();
  first->step(batch(1), 1e-3);
  EXPECT_EQ(inForce.stagingBuffers, 5u);
  EXPECT_EQ(inForce.lossyCasts, LossyCasts::Error);
  second->evaluate(batch(1));
  EXPECT_EQ(inForce.stagingBuffers, 2u);
  EXPECT_EQ(inForce.lossyCasts, LossyCasts::Allow);
  Session plain = joined();
  plain.step(batch(1), 1e-3);
  EXPECT_EQ(inForce, StitchOptions());
  first->step(batch(1), 1e-3);
  second.reset();
  EXPECT_EQ(inForce.stagingBuffers, 5u);
  first.reset();
  EXPECT_EQ(inForce, StitchOptions());
}

TEST_P(StitchTest, LossAndEveryGradientAgree) {
  Session apart = stitched(), whole = joined();
  ASSERT_EQ(apart.parameters().size(), 6u);
  double a = apart.forwardBackward(batch(1)), b = whole.forwardBackward(batch(1));
  EXPECT_NEAR(a, b, 1e-6 * b);
  EXPECT_NEAR(b, std::log(13), 1.0) << "near the entropy of 13 equal choices";
  for (const ParameterInfo &info : whole.parameters()) {
    EXPECT_LT(relativeDistance(apart.gradient(info.key), whole.gradient(info.key)), 1e-5) << info.key;
    EXPECT_GT(relativeDistance(apart.gradient(info.key), Tensor::zeros(device, info.desc)), 0.0) << info.key;
  }
}

// The gradient of one parameter element by finite differences of the loss:
// the two halves could agree and both be wrong.
TEST_P(StitchTest, GradientIsTheSlopeOfTheLoss) {
  Session session = stitched();
  TensorMap data = batch(2);
  session.forwardBackward(data);
  for (const char *key : {"wte", "wq", "wv", "gamma", "head"}) {
    Tensor gradient = toHost(session.gradient(key));
    uint64_t at = 0;
    for (uint64_t i = 0; i < gradient.elementCount(); ++i)
      if (std::abs(gradient.data<float>()[i]) > std::abs(gradient.data<float>()[at]))
        at = i;
    double expected = gradient.data<float>()[at];
    const float step = 1e-2f;
    Tensor kept = toHost(copyTo(device, session.parameter(key), TensorDesc(gradient.shape(), ElementType::f32)));
    auto lossAt = [&](float distance) {
      Tensor moved = Tensor::onHost(device, kept.shape(), ElementType::f32);
      std::memcpy(moved.bytes(), kept.bytes(), kept.desc().spanBytes());
      moved.data<float>()[at] += distance;
      session.setParameter(key, moved);
      return session.evaluate(data).at("loss").item();
    };
    double above = lossAt(step), below = lossAt(-step);
    lossAt(0);
    EXPECT_NEAR((above - below) / (2 * step), expected, 0.02 * std::abs(expected) + 1e-4) << key;
  }
}

TEST_P(StitchTest, TrainingAgreesAndLearns) {
  Session apart = stitched(), whole = joined();
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    double a = apart.step(batch(7), 1e-2).loss, b = whole.step(batch(7), 1e-2).loss;
    ASSERT_NEAR(a, b, 1e-5 * b) << "step " << step;
    (step == 0 ? first : last) = a;
  }
  EXPECT_LT(last, 0.7 * first);
}

// Losses, gradients and parameters are those of one thread, whatever the device.
TEST_P(StitchTest, DevicesAgreeToTheBit) {
  DeviceRef mine = std::exchange(device, Device::open("cpu:threads=1"));
  Session reference = stitched();
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    std::vector<TensorMap> micro{batch(uint32_t(step)), batch(uint32_t(step + 100))};
    losses.push_back(reference.step(micro, 1e-2).loss);
  }
  reference.forwardBackward(batch(50));
  device = mine;
  Session session = stitched();
  for (int step = 0; step < 5; ++step) {
    std::vector<TensorMap> micro{batch(uint32_t(step)), batch(uint32_t(step + 100))};
    EXPECT_EQ(session.step(micro, 1e-2).loss, losses[size_t(step)]) << "step " << step;
  }
  session.forwardBackward(batch(50));
  auto expectEqual = [](const Tensor &a, const Tensor &b, const std::string &what) {
    Tensor left = toHost(a), right = toHost(b);
    EXPECT_EQ(std::memcmp(left.bytes(), right.bytes(), left.desc().spanBytes()), 0) << what;
  };
  for (const ParameterInfo &info : session.parameters()) {
    expectEqual(session.parameter(info.key), reference.parameter(info.key), info.key);
    expectEqual(session.gradient(info.key), reference.gradient(info.key), "gradient of " + info.key);
  }
}

// Layouts agree, so that the seam costs no copy.
TEST_P(StitchTest, NothingIsCopiedAtTheSeam) {
  Session session = stitched();
  for (int step = 0; step < 3; ++step)
    session.step(batch(3), 1e-3);
  for (const Module &module : session.modules())
    for (const Program &program : module.binary().programs()) {
      SubmitCounters counters = Executor(device, program).counters();
      EXPECT_EQ(counters.inputsConverted, 0u) << module.name() << " " << program.name();
    }
}

// An index of the user's data that is outside of the table is found by the
// kernel and named with its source line.
TEST_P(StitchTest, TokenOutsideOfTheTable) {
  Session session = stitched();
  TensorMap data = batch(4);
  data["tokens"].data<int64_t>()[11] = 13;
  try {
    session.step(data, 1e-3);
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::IndexOutOfRange);
    EXPECT_NE(std::string(error.what()).find("\"tokens\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("model.py:3"), std::string::npos) << error.what();
  }
  EXPECT_EQ(session.stepCount(), 0);
  data["tokens"].data<int64_t>()[11] = 12;
  EXPECT_TRUE(std::isfinite(session.step(data, 1e-3).loss)) << "the session goes on";
}
