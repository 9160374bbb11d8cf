//===- SessionDevicesTest.cpp - a device never changes a result -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The same training on devices of which one does its work at once, one in
// queues beside each other, and others in whatever order the fences allow, with
// freed memory poisoned: losses, norms, gradients, parameters and states are
// equal to the bit. What is missing from a fence shows here.
//
//===----------------------------------------------------------------------===//

#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include "Session/TrainingCourse.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cstring>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

static const char *const referenceDevice = "cpu:threads=1";

namespace {

/// A way to train, on any device.
struct Recipe {
  const char *name;
  std::function<Session(const DeviceRef &)> make;
  /// Micro-batches per step.
  int batches = 1;
};

struct SessionDevicesTest : testing::TestWithParam<const char *> {
  DeviceRef device = Device::open(GetParam());
};

} // namespace

INSTANTIATE_TEST_SUITE_P(Devices, SessionDevicesTest,
                         testing::Values("cpu:threads=2", "sim:dram=1MiB,pinned=1MiB,link=1GB/s,latency=5us",
                                         "sim:dram=1MiB,adversarial=1", "sim:dram=1MiB,adversarial=2",
                                         "sim:dram=1MiB,adversarial=3", "sim:dram=1MiB,pinned=0,adversarial=4",
                                         "sim:streams,dram=1MiB,pinned=1MiB,link=1GB/s,latency=5us",
                                         "sim:streams,dram=1MiB,pinned=0,adversarial=4"));

static Session withValues(Session session) {
  setValues(session);
  return session;
}

static const Recipe recipes[] = {
    {"plain",
     [](const DeviceRef &device) {
       return withValues(Session(device, {{"front", makeLayer()}, {"back", makeHead()}}));
     }},
    {"accumulated and clipped",
     [](const DeviceRef &device) {
       return withValues(Session(device, {{"front", makeLayer()}, {"back", makeHead()}}, {.maxGradNorm = 0.5}));
     },
     3},
    {"tied, with a frozen module between",
     [](const DeviceRef &device) {
       return withValues(Session(
           device,
           {{"front", makeLayer()}, {"middle", makeLayer({.parameter = "f", .frozen = true})}, {"back", makeHead()}},
           {.tied = {{{"front", "w"}, {"back", "v"}}},
            .wires = {{"middle", "x", "front", "h"}, {"back", "hidden", "middle", "h"}}}));
     },
     2},
    {"random numbers",
     [](const DeviceRef &device) {
       return withValues(Session(device, {{"hypers", makeHypers()}, {"back", makeHead()}}, {.seed = 7}));
     },
     2},
};

static std::vector<TensorMap> batchesOf(const DeviceRef &device, int64_t step, int count) {
  std::vector<TensorMap> batches;
  for (int i = 0; i < count; ++i)
    batches.push_back(batchOf(device, step, i));
  return batches;
}

static Course train(Session &session, const Recipe &recipe, int steps) {
  Course course;
  for (int step = 0; step < steps; ++step) {
    StepResult result = session.step(batchesOf(session.device(), session.stepCount(), recipe.batches), 1e-3);
    course.add(result);
    course.addOutputs(result);
  }
  course.addState(session);
  return course;
}

// Losses, norms, outputs of every step, parameters and states after six.
TEST_P(SessionDevicesTest, TrainsAsTheCpuDoes) {
  for (const Recipe &recipe : recipes) {
    SCOPED_TRACE(recipe.name);
    Session here = recipe.make(device), there = recipe.make(Device::open(referenceDevice));
    EXPECT_EQ(train(here, recipe, 6), train(there, recipe, 6));
  }
}

// The sums that wait for the optimizer, and those of the batch.
TEST_P(SessionDevicesTest, GradientsAreTheCpus) {
  for (const Recipe &recipe : recipes) {
    SCOPED_TRACE(recipe.name);
    auto gradients = [&](Session session) {
      std::map<std::string, Vector> gradients;
      for (int batch = 0; batch < 2; ++batch)
        session.forwardBackward(batchesOf(session.device(), batch, 1).front());
      for (const ParameterInfo &info : session.parameters())
        if (info.trained)
          gradients[info.key] = values(session.gradient(info.key));
      for (const auto &[name, tensor] : session.inputGradients())
        gradients[name] = values(tensor);
      return gradients;
    };
    auto expected = gradients(recipe.make(Device::open(referenceDevice)));
    EXPECT_EQ(gradients(recipe.make(device)), expected);
    EXPECT_EQ(expected.count("x"), 1u);
  }
}

// A checkpoint goes from any device to any other: what follows is equal.
TEST_P(SessionDevicesTest, CheckpointsMoveBetweenDevices) {
  TemporaryFolder folder;
  const Recipe &recipe = recipes[1];
  DeviceRef cpu = Device::open(referenceDevice);
  Session reference = recipe.make(cpu), here = recipe.make(device);
  train(reference, recipe, 3);
  train(here, recipe, 3);
  reference.save(folder / "cpu");
  here.save(folder / "here");
  EXPECT_EQ(readText(folder / "cpu"), readText(folder / "here"));
  Course expected = train(reference, recipe, 3);
  Session resumed = recipe.make(device), moved = recipe.make(cpu);
  resumed.load(folder / "here");
  moved.load(folder / "here");
  EXPECT_EQ(train(resumed, recipe, 3), expected);
  EXPECT_EQ(train(moved, recipe, 3), expected);
  // Over parameters and states that are in use.
  resumed.load(folder / "cpu");
  EXPECT_EQ(train(resumed, recipe, 3), expected);
}

// What was queued before counts in a checkpoint, its failure too: nobody has
// asked for a result of that step yet.
TEST_P(SessionDevicesTest, ACheckpointWaitsForTheOptimizer) {
  TemporaryFolder folder;
  Session session = recipes[0].make(device);
  train(session, recipes[0], 1);
  try {
    session.step(batchesOf(device, 1, 1), -1); // the optimizer refuses
  } catch (const Error &error) {
    EXPECT_TRUE(device->runsInline());
  }
  EXPECT_ERROR(session.save(folder / "c"), StateTorn, "load the last checkpoint");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

// Each tensor of a batch crosses the link once: neither a second module that
// reads it nor backward, which reads it again, brings it anew.
TEST_P(SessionDevicesTest, ABatchCrossesTheLinkOnce) {
  SessionOptions options{.wires = {{"back", "hidden", "front", "h"}}};
  Session session = withValues(Session(device, {{"front", makeLayer()}, {"back", makeHead()}}, std::move(options)));
  session.step(batchesOf(device, 0, 1), 1e-3);
  TransferCounters &counters = device->transfer().counters();
  uint64_t inputs = counters.inputs, elided = counters.inputsElided, before = counters.h2dBytes;
  session.forwardBackward(batchesOf(device, 1, 1).front());
  EXPECT_EQ(counters.inputsElided - elided, counters.inputs - inputs) << "submit had nothing to convert";
  EXPECT_GT(counters.inputs, inputs);
  // The gradient 1 of the loss, a scalar, does not.
  uint64_t expected = device->hasUnifiedMemory() ? 0 : 2 * moduleWidth * sizeof(float);
  EXPECT_EQ(counters.h2dBytes - before, expected);
}

// The caller's memory is his again when a call returns, be it by an error.
TEST_P(SessionDevicesTest, TheBatchIsTheCallersAgain) {
  Session session = recipes[0].make(device), plain = recipes[0].make(Device::open(referenceDevice));
  alignas(64) float x[moduleWidth], y[moduleWidth];
  auto fill = [&](float start) {
    for (int64_t i = 0; i < moduleWidth; ++i)
      x[i] = start + 0.125f * float(i), y[i] = -start;
  };
  auto mine = [&](const DeviceRef &on) {
    TensorDesc desc({moduleWidth}, ElementType::f32);
    return TensorMap{{"x", Tensor::wrap(on, desc, x, [] {})}, {"y", Tensor::wrap(on, desc, y, [] {})}};
  };
  for (int step = 0; step < 4; ++step) {
    fill(float(step));
    double loss = session.step(mine(device), 1e-3).loss;
    EXPECT_EQ(plain.step(mine(plain.device()), 1e-3).loss, loss);
    fill(std::numeric_limits<float>::quiet_NaN());
    EXPECT_ERROR(session.step(mine(device), 1e-3), NanLoss, "the loss is nan");
    fill(100); // read by nobody
  }
}

// Without bytes a step is queued, counted and timed like any other.
TEST(SessionVirtual, AStepTakesTimeAndMemoryAndComputesNothing) {
  TemporaryFolder folder;
  const char *profile = "dram=1MiB,pinned=1MiB,link=1MB/s,latency=1ms";
  DeviceRef planned = Device::open(std::string("sim:virtual,") + profile), real = Device::open("sim:dram=1MiB");
  auto session = [](const DeviceRef &device) {
    return Session(device, {{"front", makeLayer()}, {"back", makeHead()}}, {.maxGradNorm = 1});
  };
  auto batchOn = [](const DeviceRef &device) {
    TensorMap batch;
    for (const char *name : {"x", "y"}) {
      batch[name] = Tensor::onHost(device, {moduleWidth}, ElementType::f32);
      if (device->hasBytes())
        std::memset(batch[name].bytes(), 0, sizeof(float) * moduleWidth);
    }
    return batch;
  };
  Session plan = session(planned), done = session(real);
  EXPECT_ERROR(plan.step(batchOn(planned), 0.1), MissingWeight, "has no value");
  plan.allocateParameters();
  alignas(64) float mine[moduleWidth] = {1, 2, 3};
  plan.setParameter("w", Tensor::wrap(planned, TensorDesc({moduleWidth}, ElementType::f32), mine, [] {}));
  for (const ParameterInfo &info : done.parameters())
    done.setParameter(info.key, Tensor::zeros(real, info.desc));
  for (int step = 0; step < 3; ++step) {
    auto count = [](const DeviceRef &device, Session &session, const TensorMap &batch) {
      const TransferCounters &counters = device->transfer().counters();
      uint64_t submits = counters.submits, h2d = counters.h2dBytes, d2h = counters.d2hBytes;
      EXPECT_EQ(session.step(batch, 0.1).loss, 0);
      return std::array{counters.submits - submits, counters.h2dBytes - h2d, counters.d2hBytes - d2h};
    };
    double begin = planned->seconds();
    auto plannedCounts = count(planned, plan, batchOn(planned)), realCounts = count(real, done, batchOn(real));
    EXPECT_EQ(plannedCounts, realCounts);
    EXPECT_GT(plannedCounts[1], 0u);
    // Both tensors of the batch and the loss cross the link, each by itself.
    EXPECT_GT(planned->seconds() - begin, 3e-3);
    EXPECT_EQ(planned->memory().peakBytes(Space::DeviceDram), real->memory().peakBytes(Space::DeviceDram))
        << "step " << step;
  }
  EXPECT_EQ(plan.stepCount(), 3);
  EXPECT_ERROR(plan.save(folder / "c"), Unsupported, "which holds no bytes");
}
