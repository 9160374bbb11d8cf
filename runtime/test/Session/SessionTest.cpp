//===- SessionTest.cpp - training steps over stitched modules -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/Session.h"
#include "Session/ExpectError.h"
#include "Session/SessionModules.h"
#include "Session/TemporaryFolder.h"
#include "Transfer/ScriptedDevice.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

using namespace segue;
using namespace segue::test;

using Vector = std::vector<float>;

/// The device of the test that runs.
static DeviceRef device;

namespace {
/// Every test holds on every device; what a session does there is told in
/// SessionDevicesTest.cpp.
struct SessionTest : testing::TestWithParam<const char *> {
  void SetUp() override { device = Device::open(GetParam()); }
  void TearDown() override { device.reset(); }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Devices, SessionTest,
                         testing::Values("cpu:threads=2", "sim:dram=1MiB,pinned=1MiB,link=1GB/s",
                                         "sim:dram=1MiB,pinned=1MiB,adversarial=11",
                                         "sim:streams,dram=1MiB,pinned=1MiB,link=1GB/s",
                                         "sim:streams,dram=1MiB,pinned=1MiB,adversarial=11"));

/// On the device.
static Tensor tensor(const Vector &values) {
  Tensor host = Tensor::onHost(device, {int64_t(values.size())}, ElementType::f32);
  std::memcpy(host.bytes(), values.data(), values.size() * sizeof(float));
  return copyTo(device, host, TensorDesc(host.shape(), host.element()));
}
static Vector values(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return Vector(host.data<float>(), host.data<float>() + host.elementCount());
}
static Vector ramp(float start, float step) {
  Vector result;
  for (int64_t i = 0; i < moduleWidth; ++i)
    result.push_back(start + step * float(i));
  return result;
}

static const Vector startW = ramp(1, -0.25), startV = ramp(-0.5, 0.25), inputX = ramp(0.5, 0.125),
                    targetY = ramp(2, -0.5);

static TensorMap batch(const Vector &x = inputX, const Vector &y = targetY) {
  return {{"x", tensor(x)}, {"y", tensor(y)}};
}

static Session stitched(SessionOptions options = {}) {
  Session session(device, {{"front", makeLayer()}, {"back", makeHead()}}, std::move(options));
  session.setParameter("w", tensor(startW));
  session.setParameter("v", tensor(startV));
  return session;
}

/// The training in double, straight from the formulas.
struct Reference {
  std::vector<double> w{startW.begin(), startW.end()}, v{startV.begin(), startV.end()};
  std::vector<double> uw = std::vector<double>(moduleWidth), uv = uw, gw = uw, gv = uw;

  double loss(const Vector &x, const Vector &y) const {
    double sum = 0;
    for (size_t i = 0; i < w.size(); ++i)
      sum += std::pow(v[i] * w[i] * x[i] - y[i], 2);
    return sum;
  }
  void addGradients(const Vector &x, const Vector &y) {
    for (size_t i = 0; i < w.size(); ++i) {
      double d = 2 * (v[i] * w[i] * x[i] - y[i]);
      gv[i] += d * w[i] * x[i];
      gw[i] += d * v[i] * x[i];
    }
  }
  double norm() const {
    double sum = 0;
    for (size_t i = 0; i < w.size(); ++i)
      sum += gw[i] * gw[i] + gv[i] * gv[i];
    return std::sqrt(sum);
  }
  void optimize(double lr, double factor) {
    for (size_t i = 0; i < w.size(); ++i) {
      uw[i] = 0.5 * uw[i] + factor * gw[i];
      uv[i] = 0.5 * uv[i] + factor * gv[i];
      w[i] -= lr * uw[i];
      v[i] -= lr * uv[i];
      gw[i] = gv[i] = 0;
    }
  }
};

static void expectNear(const Vector &given, const std::vector<double> &expected) {
  ASSERT_EQ(given.size(), expected.size());
  for (size_t i = 0; i < given.size(); ++i)
    EXPECT_NEAR(given[i], expected[i], 1e-4 * (1 + std::fabs(expected[i]))) << "element " << i;
}

// Twenty steps follow the formulas: losses, gradient norms, parameters, state.
TEST_P(SessionTest, TrainsAsTheFormulasSay) {
  Session session = stitched();
  Reference reference;
  for (int step = 1; step <= 20; ++step) {
    double loss = reference.loss(inputX, targetY);
    reference.addGradients(inputX, targetY);
    double norm = reference.norm();
    StepResult result = session.step(batch(), 0.01);
    reference.optimize(0.01, 1);
    EXPECT_NEAR(result.loss, loss, 1e-4 * loss) << "step " << step;
    EXPECT_NEAR(result.gradNorm, norm, 1e-4 * norm) << "step " << step;
    EXPECT_EQ(result.step, step);
    EXPECT_EQ(result.clip, 1);
    EXPECT_EQ(result.outputs.count("p"), 1u);
  }
  EXPECT_EQ(session.stepCount(), 20);
  expectNear(values(session.parameter("w")), reference.w);
  expectNear(values(session.parameter("v")), reference.v);
  expectNear(values(session.state().find("u.w")->second), reference.uw);
}

// Modules compiled apart give what one module with both inside gives, bit for
// bit: stitching neither rounds nor reorders.
TEST_P(SessionTest, StitchedEqualsJoined) {
  Session apart = stitched();
  Session joined(device, {{"all", makeJoined()}});
  joined.setParameter("w", tensor(startW));
  joined.setParameter("v", tensor(startV));
  for (int step = 0; step < 20; ++step) {
    apart.forwardBackward(batch());
    joined.forwardBackward(batch());
    for (const char *name : {"w", "v"})
      EXPECT_EQ(values(apart.gradient(name)), values(joined.gradient(name)));
    EXPECT_EQ(values(apart.inputGradients().find("x")->second), values(joined.inputGradients().find("x")->second));
    EXPECT_EQ(apart.optimize(0.01).loss, joined.optimize(0.01).loss);
  }
  EXPECT_EQ(values(apart.parameter("w")), values(joined.parameter("w")));
  EXPECT_EQ(values(apart.evaluate(batch()).find("p")->second), values(joined.evaluate(batch()).find("p")->second));
}

// The gradient is the mean over micro-batches, and so is the loss.
TEST_P(SessionTest, AccumulatesTheMean) {
  Session session = stitched();
  Reference reference;
  Vector otherX = ramp(-1, 0.25), otherY = ramp(0, 0.5);
  for (int step = 0; step < 5; ++step) {
    double loss = (reference.loss(inputX, targetY) + reference.loss(otherX, otherY)) / 2;
    reference.addGradients(inputX, targetY);
    reference.addGradients(otherX, otherY);
    std::vector<TensorMap> batches{batch(), batch(otherX, otherY)};
    StepResult result = session.step(batches, 0.01);
    EXPECT_NEAR(result.loss, loss, 1e-4 * loss);
    EXPECT_NEAR(result.gradNorm, reference.norm() / 2, 1e-4 * reference.norm());
    reference.optimize(0.01, 0.5);
  }
  expectNear(values(session.parameter("w")), reference.w);
}

// One norm over all modules decides the factor of all.
TEST_P(SessionTest, ClipsByTheJointNorm) {
  Session session = stitched({.maxGradNorm = 0.5});
  Reference reference;
  for (int step = 0; step < 5; ++step) {
    reference.addGradients(inputX, targetY);
    double factor = std::min(1.0, 0.5 / (reference.norm() + 1e-6));
    StepResult result = session.step(batch(), 0.01);
    EXPECT_NEAR(result.clip, factor, 1e-5);
    EXPECT_LT(result.clip, 1);
    reference.optimize(0.01, factor);
  }
  expectNear(values(session.parameter("v")), reference.v);
}

// Clipping shortens long gradients and leaves short ones as they are: a run
// whose norms lie below the limit is, bit for bit, the run without one.
TEST_P(SessionTest, ClipsNeverUpwards) {
  Session clipped = stitched({.maxGradNorm = 1e6}), unlimited = stitched();
  for (int step = 0; step < 3; ++step) {
    StepResult result = clipped.step(batch(), 0.01);
    EXPECT_EQ(unlimited.step(batch(), 0.01).gradNorm, result.gradNorm);
    EXPECT_LT(result.gradNorm, 1e6);
    EXPECT_EQ(result.clip, 1);
  }
  EXPECT_EQ(values(clipped.parameter("w")), values(unlimited.parameter("w")));
  EXPECT_EQ(values(clipped.parameter("v")), values(unlimited.parameter("v")));
}

// Inference runs between steps without a trace in training.
TEST_P(SessionTest, EvaluateChangesNothing) {
  Session session = stitched(), quiet = stitched();
  for (int step = 0; step < 3; ++step) {
    TensorMap outputs = session.evaluate(batch());
    double loss = outputs.find("loss")->second.item();
    EXPECT_EQ(session.step(batch(), 0.01).loss, loss);
    EXPECT_EQ(quiet.step(batch(), 0.01).loss, loss);
  }
}

//===----------------------------------------------------------------------===//
// Names and ties
//===----------------------------------------------------------------------===//

// Equal names are two parameters, each under its module's name.
TEST_P(SessionTest, EqualNamesAreNotTied) {
  Session session(device, {{"front", makeLayer({.parameter = "w"})}, {"back", makeHead({.parameter = "w"})}});
  ASSERT_EQ(session.parameters().size(), 2u);
  EXPECT_EQ(session.parameters()[0].key, "front.w");
  EXPECT_EQ(session.parameters()[1].key, "back.w");
  session.setParameter("front.w", tensor(startW));
  session.setParameter("back.w", tensor(startV));
  EXPECT_ERROR(session.setParameter("w", tensor(startW)), NameUnknown, "no parameter \"w\"");
  Session plain = stitched();
  for (int step = 0; step < 5; ++step)
    EXPECT_EQ(session.step(batch(), 0.01).loss, plain.step(batch(), 0.01).loss);
}

// The full name is understood where the short one is the key.
TEST_P(SessionTest, FullNamesAreUnderstood) {
  Session session = stitched();
  session.setParameter("back.v", tensor(ramp(3, 0)));
  EXPECT_EQ(values(session.parameter("v")), ramp(3, 0));
  EXPECT_ERROR(session.setParameter("vv", tensor(startV)), NameUnknown, "the nearest is \"v\"");
}

// Tied: one storage, gradients summed, updated once, one state.
TEST_P(SessionTest, TiedParametersAreOne) {
  SessionOptions options{.tied = {{{"front", "w"}, {"back", "v"}}}};
  Session session(device, {{"front", makeLayer()}, {"back", makeHead()}}, std::move(options));
  ASSERT_EQ(session.parameters().size(), 1u);
  EXPECT_EQ(session.parameters()[0].key, "w");
  EXPECT_EQ(session.parameters()[0].members.size(), 2u);
  EXPECT_EQ(session.state().size(), 1u);
  session.setParameter("w", tensor(startW));
  std::vector<double> w(startW.begin(), startW.end()), u(moduleWidth);
  for (int step = 0; step < 5; ++step) {
    double norm = 0;
    std::vector<double> gradient(moduleWidth);
    for (size_t i = 0; i < w.size(); ++i) {
      gradient[i] = 2 * (w[i] * w[i] * inputX[i] - targetY[i]) * 2 * w[i] * inputX[i]; // of (w² x - y)²
      norm += gradient[i] * gradient[i];
      u[i] = 0.5 * u[i] + gradient[i];
      w[i] -= 0.01 * u[i];
    }
    session.forwardBackward(batch());
    expectNear(values(session.gradient("w")), gradient);
    EXPECT_NEAR(session.optimize(0.01).gradNorm, std::sqrt(norm), 1e-3 * std::sqrt(norm));
  }
  expectNear(values(session.parameter("w")), w);
}

TEST_P(SessionTest, WrongTies) {
  auto make = [](std::vector<std::vector<ParameterRef>> tied) {
    return Session(device, {{"front", makeLayer()}, {"back", makeHead()}}, {.tied = std::move(tied)});
  };
  EXPECT_ERROR(make({{{"front", "w"}, {"back", "u"}}}), NameUnknown,
               "there is no \"back.u\"; the nearest is \"back.v\"");
  EXPECT_ERROR(make({{{"front", "w"}}, {{"front", "w"}}}), InvalidArgument, "\"front.w\" is given twice");
}

// A hook sees the gradients of a step in which no other step of its session has room.
TEST_P(SessionTest, AHookTakesNoStepOfItsOwnSession) {
  Session session = stitched();
  std::vector<TensorMap> batches = {batch()};
  int called = 0;
  std::vector<GradientHook> hooks = {{"w", [&](Tensor &) {
                                        ++called;
                                        EXPECT_ERROR(session.step(batch(), 0.1), StateTransition, "by a hook on a gradient");
                                        EXPECT_ERROR(session.forwardBackward(batch()), StateTransition, "by a hook");
                                        EXPECT_ERROR(session.optimize(0.1), StateTransition, "by a hook");
                                        session.clearGradients();
                                      }}};
  EXPECT_ERROR(session.step(batches, 0.1, hooks), StateTransition, "clearGradients was called by a hook on a gradient");
  EXPECT_EQ(called, 1);
  Session other = stitched();
  EXPECT_EQ(session.step(batch(), 0.1).loss, other.step(batch(), 0.1).loss);
  EXPECT_EQ(session.stepCount(), 1);
}

// A session that was moved from says so at every call, and the one that it was moved to trains on.
TEST_P(SessionTest, WhatWasMovedFromSaysSo) {
  Session session = stitched(), other = std::move(session);
  constexpr const char *says = "Session: used after it was moved from";
  EXPECT_ERROR(session.step(batch(), 0.1), InvalidArgument, says);
  EXPECT_ERROR(session.evaluate(batch()), InvalidArgument, says);
  EXPECT_ERROR(session.parameters(), InvalidArgument, says);
  EXPECT_ERROR(session.parameter("w"), InvalidArgument, says);
  EXPECT_ERROR(session.stepCount(), InvalidArgument, says);
  EXPECT_ERROR(session.services(), InvalidArgument, says);
  EXPECT_ERROR(session.save("never"), InvalidArgument, says);
  EXPECT_EQ(other.step(batch(), 0.1).step, 1);
  session = std::move(other);
  EXPECT_EQ(session.step(batch(), 0.1).step, 2);
  EXPECT_ERROR(session.gatherParameters({}), InvalidArgument, "an empty function");
  std::vector<TensorMap> batches = {batch()};
  std::vector<GradientHook> hooks = {{"w", {}}};
  EXPECT_ERROR(session.step(batches, 0.1, hooks), InvalidArgument, "the hook on the gradient of \"w\": an empty function");
  EXPECT_EQ(session.step(batch(), 0.1).step, 3);
  std::string keys;
  for (const ParameterInfo &parameter : stitched().parameters())
    keys += parameter.key;
  EXPECT_EQ(keys, "wv");
}

TEST_P(SessionTest, ModulesNeedDifferentNames) {
  EXPECT_ERROR(Session(device, {{"m", makeLayer()}, {"m", makeHead()}}), InvalidArgument, "are called \"m\"");
  EXPECT_EQ(Session(device, {{"", makeLayer()}, {"", makeHead()}}).modules()[1].name(), "1");
}

// A frozen value takes no part in training.
TEST_P(SessionTest, FrozenStays) {
  Session session(device, {{"front", makeLayer({.parameter = "w", .frozen = true})}, {"back", makeHead()}});
  EXPECT_FALSE(session.parameters()[0].trained);
  session.setParameter("w", tensor(startW));
  session.setParameter("v", tensor(startV));
  double first = session.step(batch(), 0.01).loss;
  EXPECT_LT(session.step(batch(), 0.01).loss, first);
  EXPECT_EQ(values(session.parameter("w")), startW);
  EXPECT_EQ(session.state().count("u.w"), 0u);
  session.forwardBackward(batch());
  EXPECT_ERROR(session.gradient("w"), InvalidArgument, "parameter \"w\" has no gradient now");
}

//===----------------------------------------------------------------------===//
// Memory of the caller
//===----------------------------------------------------------------------===//

// setParameter copies; bindParameter trains in the caller's memory.
TEST_P(SessionTest, BindsTheCallersMemory) {
  Session session = stitched(), plain = stitched();
  Tensor mine = tensor(startW);
  session.setParameter("w", mine);
  session.step(batch(), 0.01);
  plain.step(batch(), 0.01);
  EXPECT_EQ(values(mine), startW);
  alignas(64) float memory[moduleWidth]; // as of a torch tensor
  std::memcpy(memory, values(session.parameter("w")).data(), sizeof(memory));
  Tensor copy = Tensor::wrap(device, TensorDesc({moduleWidth}, ElementType::f32), memory, [] {});
  if (!device->hasUnifiedMemory()) { // memory of the host is not the device's
    EXPECT_FALSE(session.bindParameter("w", copy));
    EXPECT_EQ(values(session.parameter("w")), values(copy));
    return;
  }
  EXPECT_TRUE(session.bindParameter("w", copy));
  session.step(batch(), 0.01);
  plain.step(batch(), 0.01);
  EXPECT_EQ(values(copy), values(plain.parameter("w")));
  session.setParameter("w", tensor(ramp(7, 0))); // into the bound memory
  EXPECT_EQ(values(copy), ramp(7, 0));
}

// Memory of another layout, or that may not be written, is copied and said so.
TEST_P(SessionTest, DoesNotBindWhatDoesNotFit) {
  Session session = stitched();
  Tensor strided = Tensor::zeros(device, TensorDesc({moduleWidth}, ElementType::f32, Layout{.strides = {2}}));
  EXPECT_FALSE(session.bindParameter("w", strided));
  EXPECT_EQ(values(session.parameter("w")), Vector(moduleWidth, 0));
  alignas(64) float fixed[moduleWidth] = {1, 2, 3, 4, 5, 6, 7, 8};
  Tensor constant = Tensor::wrap(device, TensorDesc({moduleWidth}, ElementType::f32), fixed, [] {}, false);
  EXPECT_FALSE(session.bindParameter("w", constant));
  session.step(batch(), 0.01);
  EXPECT_EQ(fixed[7], 8);
}

TEST_P(SessionTest, ParametersOfOtherShapes) {
  Session session = stitched();
  EXPECT_ERROR(session.setParameter("w", tensor({1, 2})), LayoutMismatch,
               "parameter \"w\": f32[2] given, f32[8] declared");
  EXPECT_ERROR(session.bindParameter("w", Tensor::zeros(device, TensorDesc({8}, ElementType::bf16))), LayoutMismatch,
               "bf16[8] given");
  EXPECT_EQ(values(session.parameter("w")), startW);
}

//===----------------------------------------------------------------------===//
// Hypers
//===----------------------------------------------------------------------===//

// The first module of the first batch gets the seed as given and the step from
// 1 on; a second micro-batch gets another seed, so that masks differ.
TEST_P(SessionTest, OtherSizesHaveTheSameModules) {
  Session session = stitched();
  EXPECT_ERROR(session.addSizes({{"front", makeLayer()}}), InvalidArgument, "has 2 modules, and 1 are given");
  EXPECT_ERROR(session.addSizes({{"back", makeHead()}, {"front", makeLayer()}}), InvalidArgument,
               "\"back\" for batches of other extents stands where \"front\" is");
  EXPECT_ERROR(session.addSizes({{"front", makeLayer({.parameter = "u"})}, {"back", makeHead()}}), InvalidArgument,
               "\"front\" for batches of other extents lacks \"w\"");
  EXPECT_ERROR(session.addSizes({{"front", makeLayer()}, {"back", makeJoined()}}), InvalidArgument,
               "has \"w\", which the session lacks");
  EXPECT_ERROR(session.addSizes({{"front", makeLayer({.parameter = "w", .frozen = true})}, {"back", makeHead()}}),
               InvalidArgument, "lacks \"w\"");
  EXPECT_ERROR(session.addSizes({{"front", makeLayer({.parameter = "w", .forwardPhase = Phase::Optimizer})},
                                 {"back", makeHead()}}),
               PhaseOrder, "enters optimizer after step_begin");
  double loss = session.step(batch(), 0.1).loss;
  EXPECT_EQ(loss, stitched().step(batch(), 0.1).loss);
  // A batch that no module fits is told of the first ones.
  EXPECT_ERROR(session.step({{"x", tensor({1, 2})}, {"y", tensor({1, 2})}}, 0.1), LayoutMismatch, "f32[8]");
}

TEST_P(SessionTest, GivesSeedAndStep) {
  SessionOptions options{.seed = 5};
  Session session(device, {{"hypers", makeHypers()}, {"back", makeHead()}}, std::move(options));
  session.setParameter("v", tensor(ramp(1, 0)));
  TensorMap input = batch(ramp(0, 0));
  EXPECT_EQ(values(session.step(input, 0).outputs.find("p")->second), ramp(105, 0));
  EXPECT_EQ(values(session.step(input, 0).outputs.find("p")->second), ramp(205, 0));
  std::vector<TensorMap> twice{input, input};
  EXPECT_NE(values(session.step(twice, 0).outputs.find("p")->second), ramp(305, 0));
}

//===----------------------------------------------------------------------===//
// Failures
//===----------------------------------------------------------------------===//

TEST_P(SessionTest, MissingWeightsAreNamed) {
  Session session(device, {{"front", makeLayer()}, {"back", makeHead()}});
  EXPECT_ERROR(session.step(batch(), 0.01), MissingWeight,
               "module \"front\", parameter \"w\" (f32[8]) has no value (and 1 others have none)");
  session.setParameter("w", tensor(startW));
  EXPECT_ERROR(session.evaluate(batch()), MissingWeight, "module \"back\", parameter \"v\"");
  EXPECT_ERROR(session.parameter("v"), MissingWeight, "\"v\" has no value yet");
}

TEST_P(SessionTest, LoadsWeightsWholeOrNotAtAll) {
  TemporaryFolder folder;
  Session session = stitched();
  saveSafetensors(folder / "some", {{"w", tensor(ramp(9, 0))}, {"back.vv", tensor(startV)}});
  EXPECT_ERROR(session.loadWeights(folder / "some"), MissingWeight,
               "module \"back\", parameter \"v\" (f32[8]): " + (folder / "some").string() +
                   " has no tensor \"v\"; the nearest is \"w\"");
  EXPECT_EQ(values(session.parameter("w")), startW);
  saveSafetensors(folder / "all", {{"w", tensor(ramp(9, 0))}, {"back.v", tensor(startW)}, {"other", tensor({1})}});
  EXPECT_EQ(session.loadWeights(folder / "all"), std::vector<std::string>{"other"});
  EXPECT_EQ(values(session.parameter("w")), ramp(9, 0));
  EXPECT_EQ(values(session.parameter("v")), startW);
}

// A loss that is no number stops the step before anything is written.
TEST_P(SessionTest, NanLossLeavesTheLastStep) {
  Session session = stitched(), plain = stitched();
  session.step(batch(), 0.01);
  plain.step(batch(), 0.01);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_ERROR(session.step(batch(ramp(bad, 0)), 0.01), NanLoss, "step 2: the loss is ");
    EXPECT_EQ(session.stepCount(), 1);
    EXPECT_EQ(values(session.parameter("w")), values(plain.parameter("w")));
  }
  EXPECT_EQ(session.step(batch(), 0.01).loss, plain.step(batch(), 0.01).loss);
}

// So does a gradient that overflows while the loss is still a number.
TEST_P(SessionTest, OverflowingGradientLeavesTheLastStep) {
  Session session = stitched();
  session.setParameter("w", tensor(ramp(0, 0)));
  session.setParameter("v", tensor(ramp(3e38f, 0)));
  EXPECT_ERROR(session.step(batch(ramp(3e38f, 0), ramp(1, 0)), 0.01), NanLoss, "the norm of the gradients is");
  EXPECT_EQ(values(session.parameter("v")), ramp(3e38f, 0));
  EXPECT_EQ(session.stepCount(), 0);
}

TEST_P(SessionTest, BatchErrorsNameTheModule) {
  Session session = stitched();
  EXPECT_ERROR(session.step({{"x", tensor(inputX)}}, 0.01), MissingInput, "module \"back\", input \"y\"");
  EXPECT_ERROR(session.step({{"x", tensor({1})}, {"y", tensor(targetY)}}, 0.01), LayoutMismatch,
               "module \"front\", input \"x\": f32[1] given by the batch");
  EXPECT_ERROR(session.step({{"x", Tensor()}, {"y", tensor(targetY)}}, 0.01), InvalidArgument, "null tensor for \"x\"");
  EXPECT_ERROR(session.optimize(0.01), InvalidArgument, "no gradients wait");
  EXPECT_ERROR(session.step(std::span<const TensorMap>(), 0.01), InvalidArgument, "at least one batch");
  EXPECT_ERROR(session.step(batch(), NAN), InvalidArgument, "the learning rate is");
}

TEST_P(SessionTest, ModulesThatCannotTrain) {
  Session lossless(device, {{"front", makeLayer()}});
  lossless.setParameter("w", tensor(startW));
  EXPECT_ERROR(lossless.step({{"x", tensor(inputX)}}, 0.01), InvalidArgument, "output called \"loss\"");
  Session fixed(device, {{"front", makeLayer({.parameter = "w", .optimizer = false})}, {"back", makeHead()}},
                {.maxGradNorm = 1});
  fixed.setParameter("w", tensor(startW));
  fixed.setParameter("v", tensor(startV));
  EXPECT_ERROR(fixed.step(batch(), 0.01), InvalidArgument, "module \"front\" was compiled without optimizer");
}

// An optimizer that fails after it may have written: the session says so and
// does nothing more until it has a checkpoint.
TEST_P(SessionTest, TornStateStopsTheSession) {
  TemporaryFolder folder;
  Session session = stitched();
  session.step(batch(), 0.01);
  session.save(folder / "c");
  Vector w = values(session.parameter("w"));
  if (device->runsInline()) {
    EXPECT_ERROR(session.step(batch(), -1), StateTorn,
                 "step 2 was torn: the optimizer of module \"front\" failed midway");
  } else {
    session.step(batch(), -1); // queued; whoever comes next is told
  }
  EXPECT_ERROR(session.step(batch(), 0.01), StateTorn,
               device->runsInline() ? "step 2 was torn: the optimizer of module \"front\" failed midway"
                                    : "step 2 was torn: its optimizer failed midway");
  EXPECT_ERROR(session.save(folder / "d"), StateTorn, "load the last checkpoint");
  EXPECT_ERROR(session.parameter("w"), StateTorn, "step 2 was torn");
  EXPECT_ERROR(session.evaluate(batch()), StateTorn, "load the last checkpoint");
  session.load(folder / "c");
  EXPECT_EQ(values(session.parameter("w")), w);
  EXPECT_EQ(session.step(batch(), 0.01).step, 2);
}

// A checkpoint of which only some tensors arrive is no checkpoint: what was
// written over is put back, whichever copy fails, and training goes on with the
// bits of a session that never tried. Where the link stays cut, the state is torn.
TEST(SessionFaults, ALoadThatFailsMidwayChangesNothing) {
  TemporaryFolder folder;
  auto scripted = std::make_shared<ScriptedDevice>("sim:dram=1MiB,pinned=1MiB");
  device = scripted;
  {
    Session session = stitched({.seed = 11}), plain = stitched({.seed = 11});
    session.save(folder / "other");
    session.step(batch(), 0.01);
    plain.step(batch(), 0.01);
    session.save(folder / "c");
    Vector w = values(session.parameter("w"));
    // Two parameters and a state of each: copied aside, then written over.
    constexpr int copies = 4;
    for (int arrived = 0; arrived < 2 * copies; ++arrived) {
      SCOPED_TRACE(std::to_string(arrived) + " copies arrived");
      session.forwardBackward(batch()); // these gradients wait
      plain.forwardBackward(batch());
      device->drain();
      scripted->copiesToPass = arrived;
      scripted->copiesToFail = 2; // each is tried twice
      EXPECT_ERROR(session.load(folder / "other"), TransferFailed, "the test cut the link");
      EXPECT_EQ(scripted->copiesToFail, 0);
      EXPECT_EQ(session.stepCount(), plain.stepCount());
      EXPECT_EQ(session.seed(), 11);
      EXPECT_EQ(session.optimize(0.01).gradNorm, plain.optimize(0.01).gradNorm);
      EXPECT_EQ(values(session.parameter("w")), values(plain.parameter("w")));
      EXPECT_EQ(session.step(batch(), 0.01).loss, plain.step(batch(), 0.01).loss);
    }
    for (int arrived = 0; arrived < copies; ++arrived) {
      SCOPED_TRACE(std::to_string(arrived) + " copies arrived, then none");
      session.step(batch(), 0.01);
      session.parameter("w"); // all that was queued has run
      scripted->copiesToPass = copies + arrived;
      scripted->copiesToFail = 1000;
      EXPECT_ERROR(session.load(folder / "c"), TransferFailed, "the test cut the link");
      scripted->copiesToFail = 0;
      EXPECT_EQ(scripted->copiesToPass, 0);
      EXPECT_ERROR(session.parameter("w"), StateTorn, "a load of parameters failed midway");
      EXPECT_ERROR(session.step(batch(), 0.01), StateTorn, "a load of parameters failed midway");
      EXPECT_ERROR(session.save(folder / "d"), StateTorn, "a load of parameters failed midway");
      session.load(folder / "c");
      EXPECT_EQ(values(session.parameter("w")), w);
      EXPECT_EQ(session.stepCount(), 1);
    }
  }
  device.reset();
}

// The copies aside are not worth a load that would do without: where the host has
// no memory for them, a load that fails midway leaves a torn state.
TEST(SessionFaults, ALoadNeedsNoSecondCopyOnTheHost) {
  TemporaryFolder folder;
  auto scripted = std::make_shared<ScriptedDevice>("sim:dram=1MiB,pinned=1MiB");
  device = scripted;
  {
    Session session = stitched();
    session.step(batch(), 0.01);
    session.save(folder / "c");
    Vector w = values(session.parameter("w"));
    session.step(batch(), 0.01);
    scripted->noHost = true;
    session.load(folder / "c");
    scripted->copiesToPass = 1;
    scripted->copiesToFail = 2;
    EXPECT_ERROR(session.load(folder / "c"), TransferFailed, "the test cut the link");
    scripted->noHost = false;
    EXPECT_ERROR(session.step(batch(), 0.01), StateTorn, "a load of parameters failed midway");
    session.load(folder / "c");
    EXPECT_EQ(values(session.parameter("w")), w);
  }
  device.reset();
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

// A resumed session goes on with the same losses to the bit.
TEST_P(SessionTest, ResumesToTheBit) {
  TemporaryFolder folder;
  Session session = stitched({.maxGradNorm = 2, .seed = 11});
  for (int step = 0; step < 7; ++step)
    session.step(batch(), 0.01);
  session.save(folder / "c");
  Session resumed(device, {{"front", makeLayer()}, {"back", makeHead()}}, {.maxGradNorm = 2});
  resumed.load(folder / "c");
  EXPECT_EQ(resumed.stepCount(), 7);
  EXPECT_EQ(resumed.seed(), 11);
  for (int step = 0; step < 10; ++step) {
    StepResult a = session.step(batch(), 0.01), b = resumed.step(batch(), 0.01);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.gradNorm, b.gradNorm);
  }
  EXPECT_EQ(values(session.parameter("w")), values(resumed.parameter("w")));
}

// Whatever is wrong with the file, the session goes on as if nothing had been.
TEST_P(SessionTest, AWrongCheckpointChangesNothing) {
  TemporaryFolder folder;
  Session session = stitched(), plain = stitched();
  session.step(batch(), 0.01);
  plain.step(batch(), 0.01);
  Checkpoint good = session.checkpoint();
  auto refuse = [&](const char *part, ErrorCode code, auto &&change) {
    Checkpoint bad = good;
    change(bad);
    saveCheckpoint(folder / "bad", bad);
    try {
      session.load(folder / "bad");
      ADD_FAILURE() << part;
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refuse("lacks parameter \"v\"; the nearest is \"w\"", ErrorCode::MissingWeight,
         [](Checkpoint &bad) { bad.parameters.erase("v"); });
  refuse("lacks optimizer state \"u.v\"", ErrorCode::MissingWeight, [](Checkpoint &bad) { bad.state.erase("u.v"); });
  refuse("parameter \"q\", which the session lacks", ErrorCode::NameUnknown,
         [](Checkpoint &bad) { bad.parameters["q"] = tensor({1}); });
  refuse("parameter \"w\": f32[1]", ErrorCode::LayoutMismatch,
         [](Checkpoint &bad) { bad.parameters["w"] = tensor({1}); });
  refuse("optimizer state \"u.w\" is i8[1] in the checkpoint, which was written with state_bits=8, and f32[",
         ErrorCode::LayoutMismatch, [&](Checkpoint &bad) { bad.state["u.w"] = Tensor::onHost(device, Shape{1}, ElementType::i8); });
  session.save(folder / "good");
  std::string bytes = readText(folder / "good");
  writeText(folder / "cut", bytes.substr(0, bytes.size() - 1));
  EXPECT_ERROR(session.load(folder / "cut"), FileCorrupt, "truncated");
  auto damage = [&](size_t at, const char *part) {
    std::string damaged = bytes;
    damaged[at] = char(damaged[at] ^ 1);
    writeText(folder / "damaged", damaged);
    EXPECT_ERROR(session.load(folder / "damaged"), FileCorrupt, part);
    EXPECT_EQ(session.stepCount(), 1);
  };
  damage(bytes.size() - 1, "\"w\" does not match its hash");
  EXPECT_ERROR(session.loadWeights(folder / "damaged"), FileCorrupt, "\"w\" does not match its hash");
  damage(bytes.find("\"segue.step\":\"") + 14, "metadata \"segue.step\" does not match its hash");
  for (int step = 0; step < 3; ++step)
    EXPECT_EQ(session.step(batch(), 0.01).loss, plain.step(batch(), 0.01).loss);
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

// One line per step with the keys of docs/specs; the sums of a line agree, and a
// chain whose layouts agree converts nothing.
TEST_P(SessionTest, WritesALineOfTelemetryPerStep) {
  TemporaryFolder folder;
  auto configured = [&](const std::string &more) {
    return Config::parse(R"({"memory":{"stitch":{)" + more + R"("telemetry_file":")" + (folder / "t.jsonl").string() +
                             R"("}}})",
                         "run.json");
  };
  Session session = stitched({.config = configured("")});
  for (int step = 0; step < 3; ++step)
    session.step(batch(), 0.01);
  std::istringstream lines(readText(folder / "t.jsonl"));
  std::string line;
  int64_t step = 0;
  while (std::getline(lines, line)) {
    Json record = parseJson(line, "line");
    std::vector<std::string> keys;
    for (const auto &[key, value] : record.items())
      keys.push_back(key);
    EXPECT_EQ(keys, (std::vector<std::string>{"step", "submits", "inputs", "inputs_elided", "inputs_converted",
                                              "cache_hits", "h2d_bytes", "d2h_bytes", "d2d_bytes", "host_bytes",
                                              "bounces", "donations_ignored", "lossy_casts", "wait_ms", "align_ms",
                                              "l1_compactions", "l1_fallbacks"}));
    EXPECT_EQ(record["step"], ++step);
    EXPECT_EQ(record["submits"], 8) << "forward, backward, norm and optimizer of two modules";
    uint64_t aligned = record["inputs_elided"].get<uint64_t>() + record["inputs_converted"].get<uint64_t>() +
                       record["cache_hits"].get<uint64_t>();
    EXPECT_EQ(record["inputs"].get<uint64_t>(), aligned);
    EXPECT_GT(aligned, 0u);
    EXPECT_EQ(record["inputs_converted"], 0);
  }
  EXPECT_EQ(step, 3);
  EXPECT_EQ(stitchReport(*device).steps(), 3u);
  // Off, and without the section.
  Session quiet = stitched({.config = configured(R"("telemetry_enabled":false,)")}),
          bare = stitched({.config = Config()});
  quiet.step(batch(), 0.01);
  bare.step(batch(), 0.01);
  EXPECT_EQ(std::ranges::count(readText(folder / "t.jsonl"), '\n'), 3);
  EXPECT_ERROR(configured(R"("telemetry_fil":"x",)"), ConfigInvalid, "telemetry_fil");
}

// What the config says reaches the device's engine.
TEST_P(SessionTest, TheConfigSetsUpTheEngine) {
  Session session = stitched(
      {.config = Config::parse(R"({"memory":{"stitch":{"staging_buffers":3,"telemetry_enabled":false}}})", "run")});
  EXPECT_EQ(device->transfer().options().stagingBuffers, 3u);
  EXPECT_EQ(session.step(batch(), 0.01).step, 1);
}

// A batch that takes the place of what a module made is warned of, once.
TEST_P(SessionTest, WarnsOfAShadowedOutput) {
  std::vector<std::string> warnings;
  Session session(device, {{"front", makeLayer()}, {"middle", makeLayer({.parameter = "u"})}, {"back", makeHead()}},
                  {.warn = [&](const std::string &text) { warnings.push_back(text); }});
  for (const char *name : {"w", "u", "v"})
    session.setParameter(name, tensor(startW));
  session.evaluate(batch());
  session.evaluate(batch());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("module \"middle\", input \"x\""), std::string::npos) << warnings[0];
}

namespace {
struct PhaseLog : EventSink {
  std::vector<Phase> phases;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) { phases.push_back(begin.phase); }
};
} // namespace

// Rule R8: what has begun does not begin again, whoever says so: a session in
// the midst of a step that another one of the same services began.
TEST_P(SessionTest, APhaseGoesOnAcrossModulesAndSessions) {
  PhaseLog log;
  using enum Phase;
  log.enter(Forward);
  log.enter(Forward);
  EXPECT_EQ(log.phases, std::vector{Forward});
  Session session = stitched({.events = &log}), other = stitched({.events = &log});
  log.phases.clear();
  // Forward of two modules each, twice.
  session.forwardBackward(batch());
  other.forwardBackward(batch());
  EXPECT_EQ(log.phases, (std::vector{StepBegin, Forward, Backward, StepBegin, Forward, Backward}));
  log.phases.clear();
  session.optimize(0.01);
  EXPECT_EQ(log.phases, (std::vector{Optimizer, StepEnd}));
  log.phases.clear();
  log.enter(Optimizer);
  other.optimize(0.01);
  EXPECT_EQ(log.phases, (std::vector{Optimizer, StepEnd})) << "the optimizer's phase was current";
}

// Programs say their phases: files whose programs cannot make a step, in the order
// in which a session runs them, are refused before anything runs.
TEST_P(SessionTest, PhasesThatMakeNoStepAreRefused) {
  auto layer = [](Phase phase) { return makeLayer({.parameter = "w", .forwardPhase = phase}); };
  EXPECT_ERROR(Session(device, {{"front", layer(Phase::Optimizer)}, {"back", makeHead()}}), PhaseOrder,
               "module \"front\": program \"forward\" enters optimizer after step_begin, which no step does");
  EXPECT_ERROR(Session(device, {{"front", layer(Phase::Backward)}, {"back", makeHead()}}), PhaseOrder,
               "module \"front\": program \"forward\" enters backward after step_begin");
  EXPECT_ERROR(layer(Phase::StepEnd), FileCorrupt,
               "program \"inference\", command 0 (SetPhase): enters step_end, but steps begin and end outside");
}

// Five phases, once each; forward and backward once per micro-batch.
TEST_P(SessionTest, TellsThePhases) {
  PhaseLog log;
  Session session = stitched({.events = &log});
  session.step(batch(), 0.01);
  using enum Phase;
  EXPECT_EQ(log.phases, (std::vector{StepBegin, Forward, Backward, Optimizer, StepEnd}));
  log.phases.clear();
  std::vector<TensorMap> twice{batch(), batch()};
  session.step(twice, 0.01);
  EXPECT_EQ(log.phases, (std::vector{StepBegin, Forward, Backward, Forward, Backward, Optimizer, StepEnd}));
}
