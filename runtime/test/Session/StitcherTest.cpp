//===- StitcherTest.cpp - any schedule of modules, with gradients ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Against a session where there is one for the schedule, to the bit, and against
// formulas elsewhere. Of layers h = w x and heads p = v h, loss = sum (p - y)^2:
//
//   d p = 2 (p - y),  d v = d p h,  d h = d p v,  d w = d h x,  d x = d h w
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/Stitcher.h"
#include "Session/ExpectError.h"
#include "Session/SessionModules.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

using Vector = std::vector<float>;

namespace {
struct StitcherTest : testing::TestWithParam<const char *> {
  DeviceRef device = Device::open(GetParam());
  Stitcher stitcher{device};

  Tensor tensor(float start, float step) {
    Tensor host = Tensor::onHost(device, {moduleWidth}, ElementType::f32);
    for (int64_t i = 0; i < moduleWidth; ++i)
      host.data<float>()[i] = start + step * float(i);
    return copyTo(device, host, TensorDesc(host.shape(), host.element()));
  }
  Module layer(const ModuleOptions &options = {.parameter = "w"}) { return Module(device, makeLayer(options)); }
  Module head() { return Module(device, makeHead()); }
  Vector gradient(const Tensor &of) {
    Tensor found = stitcher.gradient(of);
    return found ? values(found) : Vector();
  }
  static Vector values(const Tensor &tensor) {
    Tensor host = toHost(tensor);
    return Vector(host.data<float>(), host.data<float>() + host.elementCount());
  }
};

/// One element, in double.
struct Element {
  double w, v, x, y;
  double dp() const { return 2 * (v * w * x - y); }
  double dv() const { return dp() * w * x; }
  double dw() const { return dp() * v * x; }
  double dx() const { return dp() * v * w; }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(Devices, StitcherTest,
                         testing::Values("cpu:threads=1", "sim:dram=1MiB,link=1GB/s", "sim:dram=1MiB,adversarial=21",
                                         "sim:dram=1MiB,adversarial=22",
                                         "sim:streams,dram=1MiB,link=1GB/s",
                                         "sim:streams,dram=1MiB,adversarial=22"));

template <typename Function> static void expectNear(const Vector &given, Function expected) {
  ASSERT_EQ(given.size(), size_t(moduleWidth));
  for (int64_t i = 0; i < moduleWidth; ++i)
    EXPECT_NEAR(given[size_t(i)], expected(double(i)), 1e-4 * (1 + std::fabs(expected(double(i))))) << "element " << i;
}

// A chain is what a session makes of it, to the bit: three micro-batches, with a
// frozen module between two trained ones and a parameter that both ends share.
TEST_P(StitcherTest, AChainEqualsTheSession) {
  Session session(
      device, {{"front", makeLayer()}, {"middle", makeLayer({.parameter = "f", .frozen = true})}, {"back", makeHead()}},
      {.tied = {{{"front", "w"}, {"back", "v"}}},
       .wires = {{"middle", "x", "front", "h"}, {"back", "hidden", "middle", "h"}}});
  session.setParameter("w", tensor(0.5f, 0.125f));
  session.setParameter("f", tensor(-1, 0.25f));
  Module front = layer(), middle = layer({.parameter = "f", .frozen = true}), back = head();
  const Tensor &w = session.parameter("w"), &f = session.parameter("f");
  Tensor x;
  for (int batch = 0; batch < 3; ++batch) {
    x = tensor(float(batch), 0.5f);
    Tensor y = tensor(1, -0.125f);
    double loss = session.forwardBackward({{"x", x}, {"y", y}});
    auto a = stitcher.forward(front, {{"w", w}, {"x", x}});
    auto b = stitcher.forward(middle, {{"f", f}, {"x", a[0]}});
    auto c = stitcher.forward(back, {{"v", w}, {"hidden", b[0]}, {"y", y}});
    EXPECT_EQ(stitcher.pending(), 3u);
    stitcher.backward({c[1]});
    EXPECT_EQ(stitcher.pending(), 0u);
    EXPECT_EQ(c[1].item(), loss);
  }
  EXPECT_EQ(gradient(w), values(session.gradient("w")));
  EXPECT_EQ(gradient(x), values(session.inputGradients().find("x")->second));
  EXPECT_EQ(gradient(f), Vector());
  stitcher.clearGradients();
  EXPECT_EQ(gradient(w), Vector());
}

// One value with two readers, and two losses: what both give is summed.
TEST_P(StitcherTest, TwoHeadsOnOneLayer) {
  Module front = layer(), left = head(), right = head();
  Tensor w = tensor(1, 0.125f), v = tensor(0.5f, -0.25f), u = tensor(-1, 0.5f);
  Tensor x = tensor(0.25f, 0.25f), y = tensor(1, 0), z = tensor(-2, 0.5f);
  auto h = stitcher.forward(front, {{"w", w}, {"x", x}});
  auto a = stitcher.forward(left, {{"v", v}, {"hidden", h[0]}, {"y", y}});
  auto b = stitcher.forward(right, {{"v", u}, {"hidden", h[0]}, {"y", z}});
  stitcher.backward({a[1], b[1]});
  auto first = [](double i) { return Element{1 + 0.125 * i, 0.5 - 0.25 * i, 0.25 + 0.25 * i, 1}; };
  auto second = [](double i) { return Element{1 + 0.125 * i, -1 + 0.5 * i, 0.25 + 0.25 * i, -2 + 0.5 * i}; };
  expectNear(gradient(v), [&](double i) { return first(i).dv(); });
  expectNear(gradient(u), [&](double i) { return second(i).dv(); });
  expectNear(gradient(w), [&](double i) { return first(i).dw() + second(i).dw(); });
  expectNear(gradient(x), [&](double i) { return first(i).dx() + second(i).dx(); });
}

// One module several times, interleaved with another model that shares a
// parameter with it; the backwards of one model, then of the other.
TEST_P(StitcherTest, TwoModelsShareAParameter) {
  Module front = layer(), back = head(), otherFront = layer(), otherBack = head();
  Tensor w = tensor(1, 0.125f), v = tensor(0.5f, -0.25f), u = tensor(-1, 0.5f), y = tensor(1, 0);
  Tensor x = tensor(0.25f, 0.25f), z = tensor(2, -0.5f);
  auto h = stitcher.forward(front, {{"w", w}, {"x", x}});
  auto g = stitcher.forward(otherFront, {{"w", w}, {"x", z}});
  auto k = stitcher.forward(front, {{"w", w}, {"x", z}}); // a second time, another input
  auto b = stitcher.forward(otherBack, {{"v", u}, {"hidden", g[0]}, {"y", y}});
  auto a = stitcher.forward(back, {{"v", v}, {"hidden", h[0]}, {"y", y}});
  auto c = stitcher.forward(back, {{"v", v}, {"hidden", k[0]}, {"y", y}});
  stitcher.backward({a[1], c[1]});
  EXPECT_EQ(stitcher.pending(), 2u) << "the other model waits";
  auto one = [](double i) { return Element{1 + 0.125 * i, 0.5 - 0.25 * i, 0.25 + 0.25 * i, 1}; };
  auto two = [](double i) { return Element{1 + 0.125 * i, 0.5 - 0.25 * i, 2 - 0.5 * i, 1}; };
  auto other = [](double i) { return Element{1 + 0.125 * i, -1 + 0.5 * i, 2 - 0.5 * i, 1}; };
  expectNear(gradient(w), [&](double i) { return one(i).dw() + two(i).dw(); });
  EXPECT_EQ(gradient(u), Vector());
  stitcher.backward({b[1]});
  expectNear(gradient(w), [&](double i) { return one(i).dw() + two(i).dw() + other(i).dw(); });
  expectNear(gradient(u), [&](double i) { return other(i).dv(); });
  expectNear(gradient(z), [&](double i) { return two(i).dx() + other(i).dx(); });
}

// A parameter that a module made: the gradient goes on to what made it.
TEST_P(StitcherTest, AParameterThatAModuleMade) {
  Module maker = layer(), back = head();
  Tensor w = tensor(1, 0.125f), x = tensor(0.25f, 0.25f), hidden = tensor(2, -0.5f), y = tensor(1, 0);
  auto v = stitcher.forward(maker, {{"w", w}, {"x", x}});
  auto a = stitcher.forward(back, {{"v", v[0]}, {"hidden", hidden}, {"y", y}});
  stitcher.backward({a[1]});
  expectNear(gradient(w), [](double i) {
    double made = (1 + 0.125 * i) * (0.25 + 0.25 * i), h = 2 - 0.5 * i;
    return 2 * (made * h - 1) * h * (0.25 + 0.25 * i);
  });
}

// A conversion by the stitcher is the same value; a seed with a gradient of its
// own begins in the middle.
TEST_P(StitcherTest, ConversionsAndSeeds) {
  Module front = layer(), second = layer({.parameter = "u"});
  Tensor w = tensor(1, 0.125f), u = tensor(0.5f, -0.25f), x = tensor(0.25f, 0.25f);
  auto h = stitcher.forward(front, {{"w", w}, {"x", x}});
  Tensor strided = stitcher.toLayout(
      h[0], TensorDesc({moduleWidth}, ElementType::f32, Layout{.space = Space::DeviceDram, .strides = {3}}));
  EXPECT_NE(strided.storage(), h[0].storage());
  auto k = stitcher.forward(second, {{"u", u}, {"x", strided}});
  Stitcher::Seed seeds[] = {{k[0], tensor(3, 1)}};
  stitcher.backward(seeds);
  expectNear(gradient(u), [](double i) { return (3 + i) * (1 + 0.125 * i) * (0.25 + 0.25 * i); });
  expectNear(gradient(w), [](double i) { return (3 + i) * (0.5 - 0.25 * i) * (0.25 + 0.25 * i); });
}

// Training by hand: accumulation, an update in place, and the next step.
TEST_P(StitcherTest, TrainsWithAnOptimizerOfTheCaller) {
  Module front = layer(), back = head();
  Tensor w = tensor(1, 0.125f), v = tensor(0.5f, -0.25f), y = tensor(1, 0);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    Tensor x = tensor(0.25f, 0.0625f);
    auto h = stitcher.forward(front, {{"w", w}, {"x", x}});
    auto a = stitcher.forward(back, {{"v", v}, {"hidden", h[0]}, {"y", y}});
    stitcher.backward({a[1]});
    for (const Tensor &parameter : {w, v}) {
      Vector value = values(parameter), slope = gradient(parameter);
      Tensor host = Tensor::onHost(device, {moduleWidth}, ElementType::f32);
      for (int64_t i = 0; i < moduleWidth; ++i)
        host.data<float>()[i] = value[size_t(i)] - 0.1f * slope[size_t(i)];
      copyInto(host, parameter);
    }
    stitcher.clear();
    (step ? last : first) = a[1].item();
  }
  EXPECT_LT(last, 0.1 * first);
}

TEST_P(StitcherTest, WhatIsRefused) {
  Stitcher moved(device), movedTo = std::move(moved);
  EXPECT_ERROR(moved.pending(), InvalidArgument, "Stitcher: used after it was moved from");
  Module front = layer(), left = head(), right = head();
  Tensor w = tensor(1, 0.125f), v = tensor(0.5f, -0.25f), x = tensor(0.25f, 0.25f), y = tensor(1, 0);
  EXPECT_ERROR(stitcher.backward({Tensor()}), InvalidArgument, "a null tensor is not a float scalar");
  EXPECT_ERROR(stitcher.backward({x}), InvalidArgument, "f32[8] is not a float scalar; give its gradient with a Seed");
  EXPECT_ERROR(stitcher.backward({Tensor::scalar(device, 1.0f)}), InvalidArgument, "is not an output of a forward");
  EXPECT_ERROR(stitcher.forward(front, {{"w", w}}), MissingInput, "\"x\"");
  EXPECT_EQ(stitcher.pending(), 0u);
  Module elsewhere(Device::open("cpu:threads=1"), makeLayer());
  EXPECT_ERROR(stitcher.forward(elsewhere, {{"w", w}, {"x", x}}), InvalidArgument, "make both on one device");

  auto h = stitcher.forward(front, {{"w", w}, {"x", x}});
  auto a = stitcher.forward(left, {{"v", v}, {"hidden", h[0]}, {"y", y}});
  auto b = stitcher.forward(right, {{"v", v}, {"hidden", h[0]}, {"y", y}});
  Stitcher::Seed wrong[] = {{h[0], Tensor::scalar(device, 1.0f)}}, null[] = {{h[0], Tensor()}};
  EXPECT_ERROR(stitcher.backward(wrong), LayoutMismatch, "it has the shape of the value");
  EXPECT_ERROR(stitcher.backward(null), InvalidArgument, "a seed has a null tensor");
  EXPECT_EQ(stitcher.pending(), 3u);
  stitcher.backward({a[1]});
  Vector before = gradient(w);
  EXPECT_ERROR(stitcher.backward({b[1]}), InvalidArgument,
               "output \"h\" of module \"layer.segue\", whose backward was "
               "played before; give all losses");
  EXPECT_EQ(gradient(w), before) << "nothing has run";
  EXPECT_EQ(stitcher.pending(), 1u);
  stitcher.clear();
  EXPECT_EQ(stitcher.pending(), 0u);
  EXPECT_ERROR(stitcher.backward({b[1]}), InvalidArgument, "is not an output of a forward of this stitcher");
}

namespace {
struct PhaseLog : EventSink {
  std::vector<Phase> phases;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) { phases.push_back(begin.phase); }
};
} // namespace

// Rule R8: forwards of several modules are one FORWARD.
TEST_P(StitcherTest, PhasesGoOnAcrossModules) {
  PhaseLog log;
  Stitcher told(device, &log);
  Module front = layer(), back = head();
  Tensor w = tensor(1, 0), x = tensor(1, 0);
  for (int batch = 0; batch < 2; ++batch) {
    auto h = told.forward(front, {{"w", w}, {"x", x}});
    told.backward({told.forward(back, {{"v", w}, {"hidden", h[0]}, {"y", x}})[1]});
  }
  using enum Phase;
  EXPECT_EQ(log.phases, (std::vector{Forward, Backward, Forward, Backward}));
}
