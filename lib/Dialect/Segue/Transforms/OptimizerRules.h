//===- OptimizerRules.h - what each optimizer does ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rule is all that the compiler knows of an optimizer: its name, the numbers that it is
// compiled with, the states that it keeps, and the formula of a step on one parameter.
// segue-optimizer writes that formula in ops of the dialect, once per parameter.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_OPTIMIZERRULES_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_OPTIMIZERRULES_H

#include "StateCodes.h"
#include "segue/Dialect/Segue/IR/Formula.h"
#include "llvm/ADT/StringMap.h"
#include <optional>
#include <string>

namespace segue {

/// The numbers that a constant of an optimizer may be.
enum class ConstantRange { NotNegative, NotPositive, AtLeastOne, BelowOne, Finite, Bits, Flag };

/// A number that an optimizer is compiled with.
struct OptimizerConstant {
  llvm::StringLiteral name;
  double fallback = 0;
  ConstantRange range = ConstantRange::NotNegative;
};

/// A tensor that an optimizer keeps from step to step, which is zero before the first.
struct OptimizerState {
  /// The state of `w` is called "<name>.w".
  llvm::StringRef name;
  llvm::SmallVector<int64_t> shape;
  /// The code that it may be kept in, if it may.
  StateCode code = StateCode::None;
  /// The elements that share a scale; 0: it is kept in f32.
  int64_t block = 0;
};

struct OptimizerSpec;
class OptimizerStep;

struct OptimizerRule {
  llvm::StringLiteral name;
  /// All but those that every optimizer has.
  llvm::SmallVector<OptimizerConstant> constants;
  /// The states of a parameter of this shape, but for those that every optimizer may have.
  llvm::SmallVector<OptimizerState> (*states)(const OptimizerSpec &spec, llvm::ArrayRef<int64_t> shape);
  /// Writes a step; returns the new parameter and the new states in f32.
  llvm::SmallVector<mlir::Value> (*write)(OptimizerStep &step);
  /// Returns the fault of constants that are each in their range; empty where there is none. May be null.
  std::string (*check)(const OptimizerSpec &spec) = nullptr;
  /// Returns why the optimizer is not for a parameter of this shape; empty where it is. May be null.
  std::string (*misfit)(llvm::ArrayRef<int64_t> shape) = nullptr;
};

/// An optimizer and its constants: "adamw:beta2=0.95,decay=0.1".
struct OptimizerSpec {
  /// Parses `kind:key=value,...`. Says in `error` what is wrong with it.
  static std::optional<OptimizerSpec> parse(llvm::StringRef text, std::string &error);

  /// The states of a parameter of this shape.
  llvm::SmallVector<OptimizerState> states(llvm::ArrayRef<int64_t> shape) const;
  /// Writes a step; returns the new parameter and the new states in f32, before any of them is coded. `step` has the
  /// gradient before its elements are bounded.
  llvm::SmallVector<mlir::Value> write(OptimizerStep &step) const;

  double operator[](llvm::StringRef constant) const;
  bool is(llvm::StringRef flag) const { return (*this)[flag] != 0; }

  const OptimizerRule *rule = nullptr;
  llvm::StringMap<double> given;
};

/// A step on one parameter, as the formula of a rule sees it: all values are f32.
class OptimizerStep : public Formula {
public:
  OptimizerStep(mlir::OpBuilder &builder, mlir::Location loc, const OptimizerSpec &spec)
      : Formula(builder, loc), spec(spec) {}

  const OptimizerSpec &spec;
  /// The parameter, and its gradient, which is clipped.
  mlir::Value parameter, gradient;
  llvm::SmallVector<mlir::Value> states;
  /// The learning rate and the number of the step, which is 1 at the first: scalars.
  mlir::Value rate, step;
  /// The weight decay of this parameter, and the distance from 1 to the next number of its element type.
  double decay = 0, epsilon = 0;

  /// Returns 1 - beta^step, by which a mean that began at zero is divided. It is -expm1(step *
  /// log(beta)): exact for a beta near 1.
  mlir::Value biasCorrection(double beta);
  /// Returns beta * old + (1 - beta) * now.
  mlir::Value mean(mlir::Value old, mlir::Value now, double beta);
  /// Returns a scalar that is true in the first step.
  mlir::Value isFirst() { return compare(Predicate::Eq, step, splat(step, 1.0)); }
  /// Adds weight decay as a part of the gradient; and as a share of the parameter that each step takes.
  void decayGradient();
  void decayParameter();
};

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_OPTIMIZERRULES_H
