//===- SliceProgramTest.cpp - programs for some of their outputs ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include "DeepModel.h"
#include "ErrorOf.h"
#include "RandomTensors.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <bit>
#include <gtest/gtest.h>
#include <map>
#include <set>

using namespace segue;
using namespace segue::test;

static std::vector<std::string> namesOf(const std::vector<Value> &values) {
  std::vector<std::string> names;
  for (const Value &value : values)
    names.push_back(value.name);
  return names;
}

/// Runs a program on inputs that are made from their names; returns its outputs by name.
static std::map<std::string, std::vector<uint32_t>> run(const DeviceRef &device, const Program &program) {
  std::vector<Tensor> inputs;
  for (const Value &value : program.inputs())
    inputs.push_back(value.role == Role::Hyper && !isFloat(value.desc().element)
                         ? Tensor::scalar(device, int64_t(3))
                         : randomTensor(device, value.desc().shape, uint32_t(std::hash<std::string>()(value.name))));
  std::vector<Tensor> outputs = submit(device, program, std::move(inputs));
  std::map<std::string, std::vector<uint32_t>> results;
  for (size_t i = 0; i < outputs.size(); ++i)
    for (float number : values(outputs[i]))
      results[program.output(i).name].push_back(std::bit_cast<uint32_t>(number)); // NaN, too: states are random
  return results;
}

static bool isOf(const Value &value, std::string_view parameter) {
  return value.name == parameter || value.of == parameter;
}

TEST(SliceProgram, AnOptimizerForSomeParameters) {
  DeviceRef device = Device::open("cpu:threads=1");
  for (const char *optimizer : {"adamw", "adafactor"}) { // the second one has temporaries
    SCOPED_TRACE(optimizer);
    Binary file = DeepModel{.layers = 4, .rows = 16, .width = 32, .optimizer = optimizer}.compiled();
    const Program &whole = file.program("optimizer");
    auto expected = run(device, whole);
    Binary sliced = file.slice("optimizer", [](const Value &output) { return isOf(output, "w1") || isOf(output, "w3"); });
    const Program &slice = sliced.program("optimizer");
    std::vector<std::string> inputs, outputs;
    for (const Value &value : whole.inputs())
      if (value.role == Role::Hyper || isOf(value, "w1") || isOf(value, "w3"))
        inputs.push_back(value.name);
    for (const Value &value : whole.outputs())
      if (isOf(value, "w1") || isOf(value, "w3"))
        outputs.push_back(value.name);
    EXPECT_EQ(namesOf(slice.inputs()), inputs);
    EXPECT_EQ(namesOf(slice.outputs()), outputs);
    auto results = run(device, slice);
    EXPECT_EQ(results.size(), outputs.size());
    for (const auto &[name, bits] : results)
      EXPECT_TRUE(bits == expected.at(name)) << name;
    EXPECT_EQ(slice.phases(), whole.phases());
    EXPECT_LE(slice.arenaBytes(), whole.arenaBytes());
    EXPECT_NE(slice.signatureHash(), whole.signatureHash());
    // Blocks of other parameters are gone, and with them what would have come for them.
    BlockUses uses = blockUses(slice);
    ASSERT_EQ(uses.blocks.size(), 2u);
    EXPECT_EQ(uses.blocks[0].name, "h.1");
    EXPECT_EQ(uses.blocks[1].name, "h.3");
    // All else is as it was.
    EXPECT_EQ(sliced.programs().size(), file.programs().size());
    EXPECT_EQ(sliced.program("backward").signatureHash(), file.program("backward").signatureHash());
    EXPECT_EQ(run(device, sliced.program("grad_norm")), run(device, file.program("grad_norm")));
    EXPECT_EQ(sliced.nativeCodeLeave().reason, file.nativeCodeLeave().reason);
    // A slice of a slice is one, down to nothing.
    Binary nothing = sliced.slice("optimizer", [](const Value &) { return false; });
    EXPECT_TRUE(nothing.program("optimizer").inputs().empty());
    EXPECT_TRUE(run(device, nothing.program("optimizer")).empty());
    // With everything kept it is the same program.
    Binary same = file.slice("optimizer", [](const Value &) { return true; });
    EXPECT_EQ(same.program("optimizer").signatureHash(), whole.signatureHash());
    EXPECT_TRUE(run(device, same.program("optimizer")) == expected);
  }
}

TEST(SliceProgram, WhatCannotBeSlicedIsRefused) {
  Binary file = DeepModel{.layers = 2, .rows = 16, .width = 32}.compiled();
  auto all = [](const Value &) { return true; };
  auto [unknown, what] = errorOf([&] { file.slice("optimiser", all); });
  EXPECT_EQ(unknown, ErrorCode::NameUnknown) << what;
  auto [saves, why] = errorOf([&] { file.slice("forward", all); });
  EXPECT_EQ(saves, ErrorCode::Unsupported) << why;
  EXPECT_NE(why.find("program \"forward\" saves values for another one"), std::string::npos) << why;
  // One command writes a parameter and its states.
  auto [together, reason] = errorOf([&] {
    file.slice("optimizer", [](const Value &output) { return output.role == Role::Parameter; });
  });
  EXPECT_EQ(together, ErrorCode::Unsupported) << reason;
  EXPECT_NE(reason.find("makes \"m.w0\" by a command that others need"), std::string::npos) << reason;
}

static const char *const manyBiases = R"(
func.func @forward(
    %x: tensor<8x16xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
    %a: tensor<16xf32> {segue.name = "a", segue.role = #segue.role<parameter>},
    %b: tensor<16xf32> {segue.name = "b", segue.role = #segue.role<parameter>},
    %w: tensor<16x16xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %p = segue.dot_general %x, %w batch [] x [] contract [1] x [1] : tensor<8x16xf32>, tensor<16x16xf32> -> tensor<8x16xf32>
  %as = segue.broadcast %a dims [1] : tensor<16xf32> -> tensor<8x16xf32>
  %bs = segue.broadcast %b dims [1] : tensor<16xf32> -> tensor<8x16xf32>
  %m = segue.mul %p, %as : tensor<8x16xf32>
  %y = segue.add %m, %bs : tensor<8x16xf32>
  %s = segue.mul %y, %y : tensor<8x16xf32>
  %loss = segue.reduce mean %s dims [0, 1] : tensor<8x16xf32> -> tensor<f32>
  return %loss : tensor<f32>
}
)";

// Small parameters of one shape are updated by one command: all of them or none.
TEST(SliceProgram, WhatOneCommandMakesStaysTogether) {
  CompiledModule module(manyBiases, {.name = "biases", .training = true, .optimizer = "adamw"});
  ASSERT_TRUE(module.binary) << module.diagnostics;
  const Program &whole = module.binary->program("optimizer");
  std::vector<size_t> together = module.binary->outputsMadeTogether("optimizer");
  std::map<size_t, std::set<std::string>> groups;
  for (size_t i = 0; i < together.size(); ++i)
    groups[together[i]].insert(whole.output(i).role == Role::Parameter ? whole.output(i).name : whole.output(i).of);
  std::set<std::set<std::string>> parameters;
  for (const auto &[first, names] : groups)
    parameters.insert(names);
  EXPECT_EQ(parameters, (std::set<std::set<std::string>>{{"w"}, {"a", "b"}}));
  auto [code, what] = errorOf([&] { module.binary->slice("optimizer", [](const Value &value) { return isOf(value, "a"); }); });
  EXPECT_EQ(code, ErrorCode::Unsupported) << what;
  module.binary->slice("optimizer", [](const Value &value) { return isOf(value, "a") || isOf(value, "b"); });
}

// The code of a file that may not run does not run as a slice of it.
TEST(SliceProgram, CodeThatMayNotRunStaysSo) {
  DeepModel model{.layers = 2, .rows = 16, .width = 32};
  std::string diagnostics;
  llvm::FailureOr<std::string> bytes =
      compileText(model.text(), {.name = "deep", .training = true, .optimizer = "adamw"}, diagnostics);
  ASSERT_TRUE(succeeded(bytes)) << diagnostics;
  Binary file = Binary::fromMemory(std::as_bytes(std::span(*bytes)), {.nativeCode = NativeCode::Refuse});
  Binary slice = file.slice("optimizer", [](const Value &output) { return isOf(output, "w1"); });
  auto [code, what] = errorOf([&] { run(Device::open("cpu:threads=1"), slice.program("optimizer")); });
  EXPECT_EQ(code, ErrorCode::NativeCodeRefused) << what;
}
