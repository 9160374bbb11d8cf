//===- OpAnswersTest.cpp - every op tells the passes what they ask --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Conversion/SegueToProg/Commands.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/Interpreter.h"
#include "segue/Dialect/Segue/Lowerings/Lowerings.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include <gtest/gtest.h>
#include <map>
#include <set>

using namespace mlir;
using namespace segue;

namespace {
struct OpAnswers : ::testing::Test {
  OpAnswers() {
    DialectRegistry registry;
    registry.insert<SegueDialect, func::FuncDialect>();
    registerCommands(registry);
    registerKernelModels(registry);
    registerLowerings(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }
  MLIRContext context;
};
} // namespace

/// Ops that are lowered by no kernel, no command and no other ops, with what does it.
static const std::map<std::string, std::string> kElsewhere = {
    {"segue.to_layout", "says how the ends of a program lie"},
    {"segue.fused", "is a kernel"},
    {"segue.yield", "ends a kernel"},
};

TEST_F(OpAnswers, EveryOpTellsItsCostAndHowItIsLowered) {
  std::set<std::string> seen;
  for (RegisteredOperationName op : context.getRegisteredOperations()) {
    if (op.getDialectNamespace() != "segue")
      continue;
    std::string name = op.getStringRef().str();
    seen.insert(name);
    EXPECT_TRUE(op.hasInterface<CostOpInterface>())
        << name << " tells no cost: add a line to lib/Dialect/Segue/Lowerings/Costs.cpp";
    int answers = op.hasInterface<ScalarOpInterface>() + op.hasInterface<KernelOpInterface>() +
                  op.hasInterface<ExpandableOpInterface>() + op.hasInterface<CommandOpInterface>() +
                  kElsewhere.count(name);
    EXPECT_EQ(answers, 1) << name << " must have a body for one element (ScalarModels.cpp), an expansion "
                          << "(Expansions.cpp), a place in kernels (KernelModels.cpp, OwnLoops.cpp) or a command "
                          << "(lib/Conversion/SegueToProg/Commands.cpp), one of them; "
                          << "or say here what lowers it";
  }
  for (const auto &[name, reason] : kElsewhere)
    EXPECT_TRUE(seen.count(name)) << name << " is listed, but there is no such op";
}

/// Ops without a value of their own, and why.
static const std::map<std::string, std::string> kNoValue = {
    {"segue.launch", "calls what was an op before"},
    {"segue.yield", "hands values over"},
};

TEST_F(OpAnswers, EveryOpHasAValueInTheInterpreter) {
  for (RegisteredOperationName op : context.getRegisteredOperations())
    if (std::string name = op.getStringRef().str(); op.getDialectNamespace() == "segue") {
      EXPECT_NE(isInterpreted(name), kNoValue.count(name) == 1)
          << name << " has no value: add an evaluator to lib/Dialect/Segue/Interpreter, in the file of its family, or say "
          << "here why it has none";
    }
}

TEST_F(OpAnswers, WhatCostsAsMuchAsADivisionIsNotComputedForEachReader) {
  unsigned once = 0, again = 0;
  for (RegisteredOperationName name : context.getRegisteredOperations()) {
    if (!name.hasInterface<ScalarOpInterface>())
      continue;
    // Four elements, each of which is read by 256. Text of an op that takes other operands does not parse.
    std::string text = "func.func @f(%x: tensor<4xf32>, %z: tensor<256x4xf32>) -> tensor<256x4xf32> {\n%a = \"" +
                       name.getStringRef().str() + R"("(%x) : (tensor<4xf32>) -> tensor<4xf32>
      %b = segue.broadcast %a dims [1] : tensor<4xf32> -> tensor<256x4xf32>
      %y = segue.mul %b, %z : tensor<256x4xf32>
      return %y : tensor<256x4xf32>
    })";
    ScopedDiagnosticHandler quiet(&context, [](Diagnostic &) { return success(); });
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
    if (!module)
      continue;
    int64_t cost = 0, kernels = 0;
    module->walk([&](Operation *op) { cost = op->getName() == name ? elementCostOf(op) : cost; });
    PassManager pm(&context);
    pm.addNestedPass<func::FuncOp>(createSegueFormKernels());
    ASSERT_TRUE(succeeded(pm.run(*module)));
    module->walk([&](FusedOp) { ++kernels; });
    bool isKept = cost >= kCostWorthKeeping;
    EXPECT_EQ(kernels, isKept ? 2 : 1) << name.getStringRef().str() << ", which costs " << cost << " for each element";
    (isKept ? once : again) += 1;
  }
  EXPECT_GE(once, 10u);
  EXPECT_GE(again, 8u);
}
