//===- DerivativeTest.cpp - derivatives against finite differences --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every case of DerivativeCases.cpp is differentiated by `segue-autodiff` and
// run by the reference interpreter in double. With random gradients g of the
// outputs, each element of each gradient must equal the central difference of
// sum(g * outputs). The same module after `segue-plan-saved` must give the
// same gradients to the bit, in the precision of the IR.
//
//===----------------------------------------------------------------------===//

#include "DerivativeCases.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "segue/Dialect/Segue/Derivatives/Derivatives.h"
#include "segue/Dialect/Segue/Lowerings/Lowerings.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/Interpreter.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/StringMap.h"
#include "gtest/gtest.h"
#include <cmath>
#include <map>
#include <set>

using namespace mlir;
using namespace segue;

namespace {
using TensorMap = std::map<std::string, HostTensor>;

class Differentiated {
public:
  /// Parses `text`, runs autodiff and, if asked, planning on it.
  explicit Differentiated(const std::string &text, std::optional<Recompute> recompute = std::nullopt) {
    DialectRegistry registry;
    registry.insert<SegueDialect, func::FuncDialect>();
    registerDerivatives(registry);
    registerLowerings(registry);
    context.appendDialectRegistry(registry);
    context.disableMultithreading();
    context.loadAllAvailableDialects();
    module = parseSourceString<ModuleOp>(text, &context);
    if (!module)
      return;
    PassManager passes(&context);
    passes.addPass(createSegueAutodiff());
    if (recompute) {
      SeguePlanSavedOptions options;
      options.recompute = *recompute;
      passes.addPass(createSeguePlanSaved(options));
    }
    if (failed(passes.run(*module)))
      module = {};
  }

  bool ok() const { return !!*const_cast<Differentiated *>(this)->module; }
  func::FuncOp function(StringRef name) { return module->lookupSymbol<func::FuncOp>(name); }

  /// Runs function `name` on those of `values` that it takes; its results by name.
  TensorMap run(StringRef name, const TensorMap &values, bool roundFloats) {
    func::FuncOp target = function(name);
    std::vector<HostTensor> arguments;
    for (unsigned index = 0; index < target.getNumArguments(); ++index) {
      auto found = values.find(target.getArgAttrOfType<StringAttr>(index, SegueDialect::kNameAttr).str());
      if (found == values.end()) {
        ADD_FAILURE() << name.str() << " wants an argument that nothing gives";
        return {};
      }
      arguments.push_back(found->second);
    }
    InterpreterOptions options;
    options.roundFloats = roundFloats;
    auto results = interpret(target, arguments, options);
    TensorMap byName;
    if (failed(results)) {
      ADD_FAILURE() << name.str() << " could not be interpreted";
      return byName;
    }
    for (auto [index, result] : llvm::enumerate(*results))
      byName[target.getResultAttrOfType<StringAttr>(index, SegueDialect::kNameAttr).str()] = result;
    return byName;
  }

  /// The gradients of all arguments, from those of the outputs.
  TensorMap gradients(const TensorMap &inputs, const TensorMap &seeds, bool roundFloats) {
    TensorMap values = run("forward", inputs, roundFloats);
    values.insert(inputs.begin(), inputs.end());
    values.insert(seeds.begin(), seeds.end());
    return run("backward", values, roundFloats);
  }

  uint64_t savedBytes() {
    uint64_t bytes = 0;
    func::FuncOp forward = function("forward");
    for (unsigned index = 0; index < forward.getNumResults(); ++index)
      if (forward.getResultAttrOfType<RoleAttr>(index, SegueDialect::kRoleAttr).getValue() == Role::Saved) {
        auto type = cast<RankedTensorType>(forward.getResultTypes()[index]);
        bytes += type.getNumElements() * ((type.getElementTypeBitWidth() + 7) / 8);
      }
    return bytes;
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

uint64_t hashOf(const std::string &text) {
  uint64_t hash = 14695981039346656037u; // FNV-1a
  for (unsigned char c : text)
    hash = (hash ^ c) * 1099511628211u;
  return hash;
}

/// The arguments of a case; the same for every context. Floats are rounded to
/// the type of the argument, so that both precisions start from one point.
TensorMap inputsOf(const DerivativeCase &test, func::FuncOp function) {
  TensorMap inputs;
  for (auto [argument, type] : llvm::zip_equal(test.arguments, function.getArgumentTypes())) {
    HostTensor tensor = HostTensor::random(cast<RankedTensorType>(type), hashOf(test.name + argument.name));
    HostTensor unit =
        HostTensor::random(RankedTensorType::get(tensor.type.getShape(), Float32Type::get(type.getContext())),
                           hashOf(argument.name + test.name));
    for (int64_t i = 0; i < tensor.size(); ++i) {
      double value = argument.low + (unit.floats[i] + 1) / 2 * (argument.high - argument.low);
      tensor.set(i, tensor.isFloat() ? value : std::floor(value));
    }
    inputs[argument.name] = tensor;
  }
  return inputs;
}

/// Random gradients of the float outputs of @inference.
TensorMap seedsOf(const DerivativeCase &test, func::FuncOp function) {
  TensorMap seeds;
  for (auto [result, type] : llvm::zip_equal(test.results, function.getResultTypes()))
    seeds["grad." + result.first] = HostTensor::random(cast<RankedTensorType>(type), hashOf(test.name + result.first));
  return seeds;
}

class DerivativeTest : public testing::TestWithParam<DerivativeCase> {};
} // namespace

static std::string nameOf(const testing::TestParamInfo<DerivativeCase> &info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Ops, DerivativeTest, testing::ValuesIn(derivativeCases()), nameOf);

TEST_P(DerivativeTest, EqualsFiniteDifferences) {
  const DerivativeCase &test = GetParam();
  Differentiated graph(test.module());
  ASSERT_TRUE(graph.ok()) << test.module();
  TensorMap inputs = inputsOf(test, graph.function("inference"));
  TensorMap seeds = seedsOf(test, graph.function("inference"));
  TensorMap gradients = graph.gradients(inputs, seeds, /*roundFloats=*/false);

  auto weighted = [&] {
    double sum = 0;
    for (auto &[name, output] : graph.run("inference", inputs, /*roundFloats=*/false)) {
      const HostTensor &seed = seeds.at("grad." + name);
      for (int64_t i = 0; i < output.size(); ++i)
        sum += output.at(i) * seed.at(i);
    }
    return sum;
  };

  // Central differences of step h err by about h^2; constants in the IR are
  // rounded to f32.
  const double h = 1e-5, tolerance = 2e-6;
  unsigned checked = 0;
  for (const CaseArgument &argument : test.arguments) {
    HostTensor &value = inputs.at(argument.name);
    if (argument.frozen || !value.isFloat()) {
      EXPECT_EQ(gradients.count("grad." + argument.name), 0u) << argument.name << " wants no gradient";
      continue;
    }
    ASSERT_EQ(gradients.count("grad." + argument.name), 1u) << argument.name;
    const HostTensor &gradient = gradients.at("grad." + argument.name);
    EXPECT_EQ(gradient.type, value.type) << argument.name;
    for (int64_t i = 0; i < value.size(); ++i, ++checked) {
      double at = value.floats[i];
      value.floats[i] = at + h;
      double above = weighted();
      value.floats[i] = at - h;
      double below = weighted();
      value.floats[i] = at;
      double difference = (above - below) / (2 * h);
      EXPECT_NEAR(gradient.at(i), difference, tolerance * (1 + std::abs(difference)))
          << "element " << i << " of the gradient of " << argument.name << " at " << at;
    }
  }
  EXPECT_GT(checked, 0u) << "the case checks nothing";
}

TEST_P(DerivativeTest, PlanningChangesNoBit) {
  const DerivativeCase &test = GetParam();
  Differentiated plain(test.module());
  ASSERT_TRUE(plain.ok());
  TensorMap inputs = inputsOf(test, plain.function("inference"));
  TensorMap seeds = seedsOf(test, plain.function("inference"));
  TensorMap expected = plain.gradients(inputs, seeds, /*roundFloats=*/true);

  uint64_t bytesAbove = plain.savedBytes();
  for (Recompute recompute : {Recompute::None, Recompute::Cheap, Recompute::All}) {
    Differentiated planned(test.module(), recompute);
    ASSERT_TRUE(planned.ok());
    EXPECT_TRUE(succeeded(verify(*planned.module)));
    TensorMap inputsThere = inputsOf(test, planned.function("inference"));
    TensorMap seedsThere = seedsOf(test, planned.function("inference"));
    TensorMap gradients = planned.gradients(inputsThere, seedsThere, /*roundFloats=*/true);
    ASSERT_EQ(gradients.size(), expected.size());
    for (auto &[name, gradient] : gradients) {
      const HostTensor &reference = expected.at(name);
      ASSERT_EQ(gradient.size(), reference.size());
      for (int64_t i = 0; i < gradient.size(); ++i)
        EXPECT_TRUE(gradient.at(i) == reference.at(i) || (std::isnan(gradient.at(i)) && std::isnan(reference.at(i))))
            << "element " << i << " of " << name << " with recompute " << static_cast<int>(recompute) << ": "
            << gradient.at(i) << " against " << reference.at(i);
    }
    // More freedom never keeps more; arguments are not counted, they are inputs
    // of backward either way.
    EXPECT_LE(planned.savedBytes(), bytesAbove);
    bytesAbove = planned.savedBytes();
  }
}

//===----------------------------------------------------------------------===//
// Points where no difference quotient decides
//===----------------------------------------------------------------------===//

/// The gradient of `of` where `y = body(x, ...)` and the gradient of y is 1.
static std::vector<double> gradientAt(const std::string &body, const std::map<std::string, std::vector<double>> &at,
                                      const std::string &of, const std::string &resultType) {
  DerivativeCase test{"point", {}, body, {{"y", resultType}}};
  for (auto &[name, values] : at)
    test.arguments.push_back({name, "tensor<" + std::to_string(values.size()) + "xf32>"});
  Differentiated graph(test.module());
  if (!graph.ok()) {
    ADD_FAILURE() << test.module();
    return {};
  }
  TensorMap inputs = inputsOf(test, graph.function("inference")), seeds;
  for (auto &[name, values] : at)
    inputs[name].floats = values;
  seeds["grad.y"] = HostTensor::filled(cast<RankedTensorType>(graph.function("inference").getResultTypes()[0]), 1.0);
  return graph.gradients(inputs, seeds, true).at("grad." + of).floats;
}

using Numbers = std::vector<double>;

TEST(DerivativeAtKink, ReluAbsAndSignGiveZeroAtZero) {
  EXPECT_EQ(gradientAt("%y = segue.relu %x : tensor<3xf32>", {{"x", {0, -1, 2}}}, "x", "tensor<3xf32>"),
            (Numbers{0, 0, 1}));
  EXPECT_EQ(gradientAt("%y = segue.abs %x : tensor<3xf32>", {{"x", {0, -1, 2}}}, "x", "tensor<3xf32>"),
            (Numbers{0, -1, 1}));
  EXPECT_EQ(gradientAt("%y = segue.sign %x : tensor<2xf32>", {{"x", {0, 2}}}, "x", "tensor<2xf32>"), (Numbers{0, 0}));
}

TEST(DerivativeAtKink, ReluPassesTheGradientOfNaN) {
  EXPECT_EQ(gradientAt("%y = segue.relu %x : tensor<1xf32>", {{"x", {std::nan("")}}}, "x", "tensor<1xf32>"),
            (Numbers{1}));
}

TEST(DerivativeAtKink, EqualOperandsOfMaxAndMinShare) {
  for (std::string op : {"max", "min"})
    for (std::string side : {"a", "b"})
      EXPECT_EQ(
          gradientAt("%y = segue." + op + " %a, %b : tensor<1xf32>", {{"a", {2}}, {"b", {2}}}, side, "tensor<1xf32>"),
          (Numbers{0.5}));
}

TEST(DerivativeAtKink, NaNInMaxAndMinPassesTheGradientToBoth) {
  for (std::string op : {"max", "min"})
    for (std::string side : {"a", "b"})
      EXPECT_EQ(gradientAt("%y = segue." + op + " %a, %b : tensor<2xf32>",
                           {{"a", {std::nan(""), 1}}, {"b", {3, std::nan("")}}}, side, "tensor<2xf32>"),
                (Numbers{1, 1}));
}

TEST(DerivativeAtKink, AReductionThatIsNaNHasNoGradient) {
  for (double slope : gradientAt("%y = segue.reduce max %x dims [0] : tensor<3xf32> -> tensor<f32>",
                                 {{"x", {3, std::nan(""), 1}}}, "x", "tensor<f32>"))
    EXPECT_TRUE(std::isnan(slope));
}

TEST(DerivativeAtKink, EqualElementsOfAReductionShare) {
  EXPECT_EQ(gradientAt("%y = segue.reduce max %x dims [0] : tensor<5xf32> -> tensor<f32>", {{"x", {3, 1, 3, 3, 3}}},
                       "x", "tensor<f32>"),
            (Numbers{0.25, 0, 0.25, 0.25, 0.25}));
  EXPECT_EQ(gradientAt("%y = segue.reduce min %x dims [0] : tensor<4xf32> -> tensor<f32>", {{"x", {3, 1, 3, 1}}}, "x",
                       "tensor<f32>"),
            (Numbers{0, 0.5, 0, 0.5}));
}

/// 0^0 has no slope, nor has 0^b in b: torch says so, too.
TEST(DerivativeAtKink, PowAtZero) {
  std::map<std::string, Numbers> at{{"a", {0, 0, -2}}, {"b", {0, 2, 2}}};
  EXPECT_EQ(gradientAt("%y = segue.pow %a, %b : tensor<3xf32>", at, "a", "tensor<3xf32>"), (Numbers{0, 0, -4}));
  Numbers slopes = gradientAt("%y = segue.pow %a, %b : tensor<3xf32>", at, "b", "tensor<3xf32>");
  ASSERT_EQ(slopes.size(), 3u);
  EXPECT_EQ(slopes[0], 0);
  EXPECT_EQ(slopes[1], 0);
  EXPECT_TRUE(std::isnan(slopes[2]));
}

/// A product with a 0 has a slope by each factor, the later of equal maxima takes the
/// gradient, and no first factor counts.
TEST(DerivativeAtKink, AlongADimension) {
  std::string product = "%y = segue.recurrence %a, %x dim 0 : tensor<4xf32>";
  std::map<std::string, Numbers> at{{"a", {std::nan(""), 0, 3, 2}}, {"x", {5, 0, 0, 0}}};
  EXPECT_EQ(gradientAt(product, at, "a", "tensor<4xf32>"), (Numbers{0, 5 * (1 + 3 * (1 + 2)), 0, 0}));
  EXPECT_EQ(gradientAt(product, at, "x", "tensor<4xf32>"), (Numbers{1, 1 + 3 + 6, 1 + 2, 1}));
  EXPECT_EQ(gradientAt("%y = segue.cummax %x dim 0 : tensor<6xf32>", {{"x", {1, 1, 0, 3, 2, std::nan("")}}}, "x",
                       "tensor<6xf32>"),
            (Numbers{1, 2, 0, 2, 0, 1}));
}

TEST(DerivativeAtKink, NothingGoesThroughDetach) {
  EXPECT_EQ(gradientAt("%d = segue.detach %x : tensor<2xf32>\n%y = segue.mul %x, %d : tensor<2xf32>",
                       {{"x", {3, -2}}}, "x", "tensor<2xf32>"),
            (Numbers{3, -2}));
}

//===----------------------------------------------------------------------===//
// Completeness
//===----------------------------------------------------------------------===//

/// Ops without a derivative, and why. An op that is in no list fails the test.
static const std::map<std::string, std::string> kNotDifferentiable = {
    {"segue.attention_grad", "second derivatives are not offered"},
    {"segue.argsort", "gives places; the gather that follows has the derivative"},
    {"segue.and", "takes bits"},
    {"segue.or", "takes bits"},
    {"segue.not", "takes truth values"},
    {"segue.compare", "gives truth values"},
    {"segue.constant", "has no operand"},
    {"segue.iota", "has no operand"},
    {"segue.random", "takes integers"},
    {"segue.dot_gelu", "is formed after derivatives were taken"},
    {"segue.fused", "is formed after derivatives were taken"},
    {"segue.yield", "is formed after derivatives were taken"},
    {"segue.launch", "is formed after derivatives were taken"},
};

TEST(DerivativeCompleteness, EveryOpHasADerivativeAndACaseOrAReason) {
  Differentiated any("func.func @forward() { return }");
  ASSERT_TRUE(any.ok());
  std::string text;
  for (const DerivativeCase &test : derivativeCases())
    text += test.body + "\n";

  std::set<std::string> seen;
  for (RegisteredOperationName op : any.context.getRegisteredOperations()) {
    // By the list of all: the look-up of one dialect misses it among others (MLIR 22 searches with `compare`).
    if (op.getDialectNamespace() != "segue")
      continue;
    std::string name = op.getStringRef().str();
    seen.insert(name);
    if (!op.hasInterface<DifferentiableOpInterface>()) {
      EXPECT_TRUE(kNotDifferentiable.count(name))
          << name << " has no derivative: add one to lib/Dialect/Segue/Derivatives, or say here why it has none";
      continue;
    }
    EXPECT_FALSE(kNotDifferentiable.count(name)) << name << " has a derivative and is listed as having none";
    EXPECT_TRUE(text.find(name + " ") != std::string::npos)
        << name << " has a derivative that no case checks: add one to test/unit/DerivativeCases.cpp for each path through it";
  }
  for (const auto &[name, reason] : kNotDifferentiable)
    EXPECT_TRUE(seen.count(name)) << name << " is listed, but there is no such op";
}
