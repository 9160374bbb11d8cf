//===- CompiledTwinTest.cpp - twins of steps that are compiled ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DeepModel.h"
#include "segue/runtime/Session/StepTwin.h"
#include <memory>
#include <set>

using namespace segue;
using segue::test::DeepModel;

// The file of a run outlives each twin on which its steps are tried.
TEST(StepTwins, LetGoOfTheirDevices) {
  std::weak_ptr<Device> device;
  {
    StepTwin twin("sim:virtual,dram=64MiB", {{"deep", DeepModel{.layers = 3, .rows = 64, .width = 64}.compiled()}}, {});
    twin.run();
    device = twin.device();
  }
  EXPECT_TRUE(device.expired());
}

// A gradient that waits for the next forward has one gap, from where backward has made it to where that reads it.
TEST(StepTwins, GradientsMayWaitForTheNextForward) {
  for (size_t microBatches : {1, 2}) {
    DeepModel model{.layers = 3, .rows = 64, .width = 64, .optimizer = "adamw:in-forward=true"};
    StepTwin twin("sim:virtual,dram=1GiB,link=16GB/s,flops=1TFLOP/s,membw=100GB/s", {{"deep", model.compiled()}}, {},
                  microBatches);
    StepProfile profile = twin.record();
    std::set<std::string> waiting, states;
    for (const ResidencyGap &gap : profile.gaps) {
      if (gap.resident == noIndex || !gap.passesEnd())
        continue;
      Role role = profile.residents[gap.resident].role;
      (role == Role::Gradient ? waiting : states).insert(gap.tensor);
      if (role == Role::Parameter)
        continue;
      EXPECT_EQ(profile.events[gap.needed].phase, Phase::Forward) << gap.tensor;
      EXPECT_EQ(profile.events[gap.leaves].phase, role == Role::Gradient ? Phase::Optimizer : Phase::Forward)
          << gap.tensor;
      EXPECT_EQ(profile.events[gap.needed].label, "h." + gap.tensor.substr(gap.tensor.size() - 1));
    }
    EXPECT_EQ(waiting, (std::set<std::string>{"grad.w0", "grad.w1", "grad.w2"}));
    EXPECT_EQ(states.size(), 9u) << "parameters and two moments of each";
    ResidencyPlanner planner(profile);
    EXPECT_LT(planner.smallestBudget(), planner.unconstrained().peakBytes * 2 / 3);
  }
}
