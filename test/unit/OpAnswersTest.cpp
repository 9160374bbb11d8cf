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

/// How many kernels `text`, a function, becomes; nothing if it does not parse.
static std::optional<int64_t> kernelsOf(MLIRContext &context, const std::string &text) {
  ScopedDiagnosticHandler quiet(&context, [](Diagnostic &) { return success(); });
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  if (!module)
    return std::nullopt;
  PassManager pm(&context);
  pm.addNestedPass<func::FuncOp>(createSegueFormKernels());
  if (failed(pm.run(*module)))
    return std::nullopt;
  int64_t kernels = 0;
  module->walk([&](FusedOp) { ++kernels; });
  return kernels;
}

TEST_F(OpAnswers, WhatCostsAsMuchAsADivisionIsNotComputedForEachReader) {
  std::set<std::string> once, again;
  for (RegisteredOperationName op : context.getRegisteredOperations()) {
    if (!op.hasInterface<ScalarOpInterface>())
      continue;
    std::string name = op.getStringRef().str();
    // Four elements, each of which is read by 256.
    std::string ends = R"( : (tensor<4xf32>) -> tensor<4xf32>
      %b = segue.broadcast %a dims [1] : tensor<4xf32> -> tensor<256x4xf32>
      %y = segue.mul %b, %z : tensor<256x4xf32>
      return %y : tensor<256x4xf32>
    })";
    std::optional<int64_t> kernels = kernelsOf(
        context, "func.func @f(%x: tensor<4xf32>, %z: tensor<256x4xf32>) -> tensor<256x4xf32> {\n%a = \"" + name +
                     "\"(%x)" + ends);
    if (!kernels)
      continue; // takes two operands, or truth values
    (*kernels == 1 ? again : once).insert(name);
  }
  std::set<std::string> costly = {"segue.exp",  "segue.expm1", "segue.log", "segue.log1p", "segue.sqrt",
                                  "segue.rsqrt", "segue.sin",   "segue.cos", "segue.tanh",  "segue.erf"};
  std::set<std::string> cheap = {"segue.neg",   "segue.abs",  "segue.sign",  "segue.floor",
                                 "segue.ceil",  "segue.trunc", "segue.round", "segue.cast"};
  EXPECT_EQ(once, costly);
  EXPECT_EQ(again, cheap);
}
