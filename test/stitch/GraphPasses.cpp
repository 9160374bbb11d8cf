//===- GraphPasses.cpp - a graph after every pass -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GraphPasses.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OperationSupport.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassInstrumentation.h"
#include "mlir/Pass/PassManager.h"
#include "segue/Compiler/Pipelines.h"
#include "segue/Compiler/Registration.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/Interpreter.h"
#include <cmath>
#include <optional>
#include <sstream>

using namespace mlir;
using namespace segue;
using namespace segue::test;

using Tensors = std::map<std::string, HostTensor>;

/// In double, a pass changes nothing but the order of operations and constants
/// that it folds in f32.
static constexpr double kPassTolerance = 1e-6;
/// Half the step of the central difference, and what its error may be.
static constexpr double kStep = 1e-4, kStepTolerance = 1e-5;

std::string segue::test::differenceOf(const std::vector<double> &actual, const std::vector<double> &expected,
                                      double tolerance) {
  if (actual.size() != expected.size())
    return std::to_string(actual.size()) + " elements, " + std::to_string(expected.size()) + " expected";
  double greatest = 0;
  for (double value : expected)
    greatest = std::max(greatest, std::abs(value));
  size_t wrong = 0, worst = 0;
  double most = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    double difference = std::abs(actual[i] - expected[i]);
    bool isClose = actual[i] == expected[i] || difference <= tolerance * (greatest + 0.1);
    wrong += !isClose;
    // A NaN is the worst there is.
    if (!isClose && !(difference <= most)) {
      most = difference;
      worst = i;
    }
  }
  if (!wrong)
    return "";
  std::ostringstream os;
  os << wrong << " of " << actual.size() << " elements differ, most at " << worst << ": " << actual[worst] << ", expected "
     << expected[worst];
  return os.str();
}

namespace {
class Checker {
public:
  Checker(ModuleOp module, uint64_t seed, bool everyPass, GraphAnswers &answers)
      : module(module), seed(seed), everyPass(everyPass), answers(answers) {}

  /// Interprets @forward and, once it is there, @backward with what that saved.
  std::optional<Tensors> run(const Tensors &given) {
    Tensors values = given, results;
    for (StringRef name : {SegueDialect::kForward, SegueDialect::kBackward})
      if (auto function = module.lookupSymbol<func::FuncOp>(name); function && !call(function, values, results))
        return std::nullopt;
    return results;
  }

  /// Arguments and gradients of results, in [-1, 1).
  void drawValues() {
    auto forward = module.lookupSymbol<func::FuncOp>(SegueDialect::kForward);
    auto draw = [&](std::string name, Type type) {
      given[name] = HostTensor::random(cast<RankedTensorType>(type), seed * 1000 + given.size());
      answers.given[name] = given[name].floats;
    };
    for (unsigned i = 0; i < forward.getNumArguments(); ++i)
      draw(nameOf(forward, i, true), forward.getArgumentTypes()[i]);
    for (unsigned i = 0; i < forward.getNumResults(); ++i)
      draw("grad." + nameOf(forward, i, false), forward.getResultTypes()[i]);
    compare("before any pass");
  }

  /// The derivative of all results along one direction.
  void compareWithDifferences() {
    Tensors before = given, after = given;
    double derived = 0, size = 1, measured = 0;
    for (auto &[name, gradient] : expected) {
      auto argument = given.find(name.substr(std::min<size_t>(name.size(), 5)));
      if (!StringRef(name).starts_with("grad.") || argument == given.end())
        continue;
      HostTensor direction = HostTensor::random(gradient.type, seed + 17);
      for (int64_t i = 0; i < gradient.size(); ++i) {
        before[argument->first].floats[i] -= kStep * direction.floats[i];
        after[argument->first].floats[i] += kStep * direction.floats[i];
        derived += gradient.floats[i] * direction.floats[i];
        size += std::abs(gradient.floats[i] * direction.floats[i]);
      }
    }
    std::optional<Tensors> low = run(before), high = run(after);
    if (!low || !high)
      return fail("finite differences", "cannot be interpreted");
    for (auto &[name, value] : expected)
      if (auto weight = given.find("grad." + name); weight != given.end())
        for (int64_t i = 0; i < value.size(); ++i)
          measured += weight->second.floats[i] * ((*high)[name].floats[i] - (*low)[name].floats[i]) / (2 * kStep);
    if (!(std::abs(measured - derived) <= kStepTolerance * size))
      fail("segue-autodiff", "derives " + std::to_string(derived) + " along a direction, finite differences give " +
                                 std::to_string(measured));
  }

  void compare(const std::string &when) {
    if (!answers.failure.empty())
      return;
    ++answers.interpreted;
    std::optional<Tensors> results = run(given);
    if (!results)
      return fail(when, "cannot be interpreted");
    bool hadGradients = std::exchange(hasGradients, !!module.lookupSymbol<func::FuncOp>(SegueDialect::kBackward));
    for (auto &[name, value] : *results) {
      auto [known, isNew] = expected.try_emplace(name, value);
      if (isNew && hadGradients)
        fail(when, "gives " + name + ", which was not there before");
      if (std::string difference = differenceOf(value.floats, known->second.floats, kPassTolerance); !difference.empty())
        fail(when, name + ": " + difference);
      answers.expected[name] = known->second.floats;
    }
    if (hasGradients && !hadGradients)
      compareWithDifferences();
  }

  void comparePass(Pass *pass) {
    // An adaptor has no name: its passes were seen one by one.
    if (!everyPass || pass->getArgument().empty())
      return;
    OperationFingerPrint now(module);
    if (last && *last == now)
      return;
    last = now;
    compare(("after " + pass->getArgument()).str());
  }

  void fail(const std::string &when, const std::string &what) {
    if (answers.failure.empty())
      answers.failure = when + ": " + what;
  }

private:
  static std::string nameOf(func::FuncOp function, unsigned index, bool isArgument) {
    auto name = isArgument ? function.getArgAttrOfType<StringAttr>(index, SegueDialect::kNameAttr)
                           : function.getResultAttrOfType<StringAttr>(index, SegueDialect::kNameAttr);
    return name ? name.str() : "";
  }

  bool call(func::FuncOp function, Tensors &values, Tensors &results) {
    SmallVector<HostTensor> arguments;
    for (unsigned i = 0; i < function.getNumArguments(); ++i) {
      auto value = values.find(nameOf(function, i, true));
      if (value == values.end())
        return false;
      arguments.push_back(value->second);
      // Where it lies is not part of its value.
      arguments.back().type = cast<RankedTensorType>(function.getArgumentTypes()[i]);
    }
    InterpreterOptions options;
    options.roundFloats = false;
    FailureOr<SmallVector<HostTensor>> given = interpret(function, arguments, options);
    if (failed(given))
      return false;
    for (auto [i, tensor] : llvm::enumerate(*given)) {
      std::string name = nameOf(function, i, false);
      values[name] = tensor;
      if (!StringRef(name).starts_with("saved."))
        results[name] = tensor;
    }
    return true;
  }

  ModuleOp module;
  uint64_t seed;
  bool everyPass;
  GraphAnswers &answers;
  Tensors given, expected;
  bool hasGradients = false;
  std::optional<OperationFingerPrint> last;
};

struct Observer : PassInstrumentation {
  explicit Observer(Checker &checker) : checker(checker) {}
  void runAfterPass(Pass *pass, Operation *) override { checker.comparePass(pass); }
  Checker &checker;
};
} // namespace

GraphAnswers segue::test::checkPasses(const std::string &text, uint64_t seed, bool everyPass) {
  GraphAnswers answers;
  DialectRegistry registry;
  registerAllSegue(registry);
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (answers.failure.empty())
      answers.failure = diagnostic.str();
  });
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  if (!module)
    return answers;

  Checker checker(*module, seed, everyPass, answers);
  checker.drawValues();
  std::string error;
  for (int pipeline = 0; pipeline < 3; ++pipeline) {
    PassManager pm(&context);
    pm.addInstrumentation(std::make_unique<Observer>(checker));
    bool isBuilt = true;
    if (pipeline == 0)
      isBuilt = succeeded(buildTrainingPipeline(pm, "none", error));
    else if (pipeline == 1)
      buildLayoutPipeline(pm, /*stitchHints=*/"", /*frozenStorage=*/"");
    else
      buildFusionPipeline(pm);
    if (!isBuilt || failed(pm.run(*module))) {
      checker.fail("pipeline " + std::to_string(pipeline), "failed " + error);
      break;
    }
    if (!everyPass && pipeline != 1)
      checker.compare("after pipeline " + std::to_string(pipeline));
  }
  return answers;
}
