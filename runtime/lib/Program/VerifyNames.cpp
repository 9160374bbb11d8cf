//===- VerifyNames.cpp - names and roles across the programs of a file ----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A session joins the programs of a file by the names and roles of their values:
// what backward calls the gradient of "w" is added to a sum of the size of
// forward's "w". Here each name that a role makes a promise of is looked up, and
// the two tensors are compared, so that whoever joins programs later finds what
// he looks for. Programs by other names, and values of role input or output that
// only a caller joins, are free.
//
//===----------------------------------------------------------------------===//

#include "BinaryImage.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Module.h"
#include <map>

namespace segue::inline runtime {

namespace {
using Values = flatbuffers::Vector<flatbuffers::Offset<schema::Value>>;
using ByName = std::map<std::string_view, const schema::Value *>;

class NameVerifier {
public:
  NameVerifier(const schema::Binary &root, const std::string &file) : root_(root), file_(file) {
    for (uint32_t i = 0; i < countOf(root.programs()); ++i)
      programs_.emplace(root.programs()->Get(i)->name()->string_view(), root.programs()->Get(i));
  }

  void verify() {
    forward_ = find("forward");
    if (!forward_)
      forward_ = find("inference");
    if (forward_) {
      inputs_ = byName(forward_->inputs());
      outputs_ = byName(forward_->outputs());
    }
    for (uint32_t i = 0; i < countOf(root_.programs()); ++i) {
      const schema::Program &program = *root_.programs()->Get(i);
      verifyStatistics(program);
      verifySavePoints(program);
      if (program.name()->string_view().starts_with("segment."))
        verifyWeights(program);
    }
    if (const schema::Program *inference = find("inference"); inference && inference != forward_)
      verifyInference(*inference);
    if (const schema::Program *backward = find("backward"))
      verifyBackward(*backward);
    if (const schema::Program *optimizer = find("optimizer"))
      verifyOptimizer(*optimizer);
    if (const schema::Program *gradNorm = find("grad_norm"))
      verifyGradNorm(*gradNorm);
    if (const schema::Program *updating = find(Module::updatingForward))
      verifyForwardUpdating(*updating);
  }

private:
  const schema::Program *find(std::string_view name) const {
    auto found = programs_.find(name);
    return found == programs_.end() ? nullptr : found->second;
  }

  static ByName byName(const Values *values) {
    ByName map;
    for (uint32_t i = 0; i < countOf(values); ++i)
      map.emplace(values->Get(i)->name()->string_view(), values->Get(i));
    return map;
  }

  static const schema::Value *find(const ByName &values, std::string_view name) {
    auto found = values.find(name);
    return found == values.end() ? nullptr : found->second;
  }

  static std::string_view of(const schema::Value &value) {
    return value.of() ? value.of()->string_view() : std::string_view();
  }

  static bool isSameTensor(const schema::Value &a, const schema::Value &b) {
    return std::ranges::equal(numbers(a.desc()->shape()), numbers(b.desc()->shape())) &&
           a.desc()->element() == b.desc()->element();
  }

  static bool hasShapeOf(const schema::Value &a, const schema::Value &b) {
    return std::ranges::equal(numbers(a.desc()->shape()), numbers(b.desc()->shape()));
  }

  static std::string quoted(std::string_view name) { return "\"" + std::string(name) + "\""; }

  /// Throws unless `holds`. `value` is an input or output (`kind`) of `program`.
  void check(bool holds, const schema::Program &program, const char *kind, const schema::Value &value,
             const std::string &what) const {
    if (!holds)
      throw Error(ErrorCode::FileCorrupt, file_ + ": program " + quoted(program.name()->string_view()) + ", " + kind +
                                              " " + quoted(value.name()->string_view()) + " (role " +
                                              std::string(name(Role(value.role()))) + "): " + what);
  }

  /// Throws unless `value` is what `known` has under `called`, with its role: an input or
  /// output (`where`) of forward.
  const schema::Value &require(const schema::Program &program, const char *kind, const schema::Value &value,
                               const ByName &known, std::string_view called, schema::Role role,
                               const char *where) const {
    const schema::Value *found = find(known, called);
    check(found && found->role() == role, program, kind, value,
          "forward has no " + std::string(where) + " " + quoted(called) + " of role " + std::string(name(Role(role))));
    return *found;
  }

  /// Verifies that statistics of gradients are four numbers of f32.
  void verifyStatistics(const schema::Program &program) const {
    for (uint32_t i = 0; i < countOf(program.outputs()); ++i) {
      const schema::Value &value = *program.outputs()->Get(i);
      if (value.role() != schema::Role::statistics)
        continue;
      auto shape = numbers(value.desc()->shape());
      check(shape.size() == 1 && shape[0] == 4 && value.desc()->element() == schema::ElementType::f32, program,
            "output", value, "statistics are f32[4]");
    }
  }

  /// Checks that a save point joins tensors which are the same and have one name. VerifyBinary.cpp
  /// has seen that the indices are in range.
  void verifySavePoints(const schema::Program &program) const {
    const schema::Program *backward = find("backward");
    for (uint32_t i = 0; i < countOf(program.save_points()); ++i) {
      const schema::SavePoint &point = *program.save_points()->Get(i);
      bool isInput = point.aliases_input();
      const schema::Value &value = *(isInput ? program.inputs() : program.outputs())->Get(point.value());
      const schema::Value &read = *backward->inputs()->Get(point.backward_input());
      std::string which = "save point " + std::to_string(i);
      check(isInput || value.role() == schema::Role::saved, program, "output", value, which + " keeps it");
      check(value.name()->string_view() == read.name()->string_view() && value.role() == read.role() &&
                isSameTensor(value, read),
            program, isInput ? "input" : "output", value,
            which + " gives it to backward as " + quoted(read.name()->string_view()) + ", which is another value");
    }
  }

  /// Verifies that parameters and frozen values of a program are forward's.
  void verifyWeights(const schema::Program &program) const {
    for (uint32_t i = 0; i < countOf(program.inputs()); ++i) {
      const schema::Value &value = *program.inputs()->Get(i);
      if (value.role() == schema::Role::parameter || value.role() == schema::Role::frozen)
        verifySame(program, value,
                   require(program, "input", value, inputs_, value.name()->string_view(), value.role(), "input"));
    }
  }

  void verifySame(const schema::Program &program, const schema::Value &value, const schema::Value &known) const {
    check(isSameTensor(value, known), program, "input", value,
          "is " + text(value) + ", but " + text(known) + " in forward");
  }

  static std::string text(const schema::Value &value) { return readTensorDesc(*value.desc()).str(); }

  /// Verifies that evaluation is given what forward is, and gives what forward does.
  void verifyInference(const schema::Program &inference) const {
    for (uint32_t i = 0; i < countOf(inference.inputs()); ++i) {
      const schema::Value &value = *inference.inputs()->Get(i);
      verifySame(inference, value,
                 require(inference, "input", value, inputs_, value.name()->string_view(), value.role(), "input"));
    }
    auto results = [](const schema::Program &program) {
      std::vector<const schema::Value *> results;
      for (uint32_t i = 0; i < countOf(program.outputs()); ++i)
        if (program.outputs()->Get(i)->role() == schema::Role::output)
          results.push_back(program.outputs()->Get(i));
      return results;
    };
    std::vector<const schema::Value *> given = results(inference), wanted = results(*forward_);
    for (size_t i = 0; i < std::max(given.size(), wanted.size()); ++i) {
      const schema::Value &value = *(i < given.size() ? given : wanted)[i];
      check(i < given.size() && i < wanted.size() &&
                given[i]->name()->string_view() == wanted[i]->name()->string_view() &&
                isSameTensor(*given[i], *wanted[i]),
            inference, "output", value, "inference and forward do not have the same outputs");
    }
  }

  void verifyBackward(const schema::Program &backward) const {
    for (uint32_t i = 0; i < countOf(backward.inputs()); ++i) {
      const schema::Value &value = *backward.inputs()->Get(i);
      std::string_view called = value.name()->string_view();
      switch (value.role()) {
      case schema::Role::gradient:
        verifySame(backward, value,
                   require(backward, "input", value, outputs_, of(value), schema::Role::output, "output"));
        break;
      case schema::Role::saved: {
        // A result that is saved besides is one output of forward, with the result's role.
        const schema::Value *known = find(outputs_, called);
        bool isResult = known && known->role() == schema::Role::output;
        verifySame(backward, value,
                   isResult ? *known : require(backward, "input", value, outputs_, called, value.role(), "output"));
        break;
      }
      case schema::Role::state:
        parameterOf(backward, "input", value);
        break;
      default:
        if (const schema::Value *known = find(inputs_, called)) {
          check(known->role() == value.role(), backward, "input", value,
                "has the role " + std::string(name(Role(known->role()))) + " in forward");
          verifySame(backward, value, *known);
        }
      }
    }
    verifyWeights(backward);
    ByName gradients, given = byName(backward.inputs());
    for (uint32_t i = 0; i < countOf(backward.outputs()); ++i) {
      const schema::Value &value = *backward.outputs()->Get(i);
      if (value.role() == schema::Role::parameter || value.role() == schema::Role::state)
        verifyUpdated(backward, value, given);
      if (value.role() == schema::Role::output && value.name()->string_view() == gradSquaresName)
        check(countOf(value.desc()->shape()) == 1 && value.desc()->element() == schema::ElementType::f32, backward, "output",
              value, "squares of gradients are a vector of f32");
      if (value.role() != schema::Role::gradient)
        continue;
      const schema::Value *known = find(inputs_, of(value));
      check(known, backward, "output", value, "forward has no input " + quoted(of(value)) + " that it is the gradient of");
      check(hasShapeOf(value, *known) && isFloat(ElementType(value.desc()->element())), backward, "output", value,
            "is " + text(value) + ", which is no gradient of " + text(*known));
      check(gradients.emplace(of(value), &value).second, backward, "output", value,
            "is a second gradient of " + quoted(of(value)));
    }
  }

  /// The gradient or state of a parameter of forward.
  const schema::Value &parameterOf(const schema::Program &program, const char *kind, const schema::Value &value) const {
    return require(program, kind, value, inputs_, of(value), schema::Role::parameter, "input");
  }

  void verifyGradientInput(const schema::Program &program, const schema::Value &value) const {
    const schema::Value &parameter = parameterOf(program, "input", value);
    check(hasShapeOf(value, parameter), program, "input", value,
          "is " + text(value) + ", which is no gradient of " + text(parameter));
  }

  /// Verifies that an optimizer writes in place, or copies home, what it was given under the same name.
  void verifyOptimizer(const schema::Program &optimizer) const {
    verifyWeights(optimizer);
    ByName given = byName(optimizer.inputs());
    for (uint32_t i = 0; i < countOf(optimizer.inputs()); ++i) {
      const schema::Value &value = *optimizer.inputs()->Get(i);
      if (value.role() == schema::Role::gradient)
        verifyGradientInput(optimizer, value);
      else if (value.role() == schema::Role::state)
        parameterOf(optimizer, "input", value);
    }
    for (uint32_t i = 0; i < countOf(optimizer.outputs()); ++i) {
      const schema::Value &value = *optimizer.outputs()->Get(i);
      check(value.role() == schema::Role::parameter || value.role() == schema::Role::state, optimizer, "output", value,
            "an optimizer gives parameters and states alone");
      verifyUpdated(optimizer, value, given);
    }
  }

  /// Verifies that `value` replaces the input of the same name, one of `given`.
  void verifyUpdated(const schema::Program &program, const schema::Value &value, const ByName &given) const {
    const schema::Value *before = find(given, value.name()->string_view());
    check(before && before->role() == value.role() && of(*before) == of(value) && isSameTensor(*before, value), program,
          "output", value, "the program has no such input");
  }

  /// Verifies that inputs and outputs are those of forward and, behind them, those of the optimizer.
  void verifyForwardUpdating(const schema::Program &updating) const {
    const schema::Program *forward = find("forward"), *optimizer = find("optimizer");
    if (!forward || !optimizer)
      throw Error(ErrorCode::FileCorrupt, file_ + ": program \"" + std::string(Module::updatingForward) +
                                              "\" is there without \"forward\" and \"optimizer\"");
    auto list = [](const Values *values) {
      std::vector<const schema::Value *> all;
      for (uint32_t i = 0; i < countOf(values); ++i)
        all.push_back(values->Get(i));
      return all;
    };
    auto compare = [&](const char *kind, const Values *own, const Values *forwards, const Values *optimizers) {
      std::vector<const schema::Value *> given = list(own), wanted = list(forwards);
      for (const schema::Value *value : list(optimizers))
        if (std::string_view(kind) == "output" || value->role() != schema::Role::parameter)
          wanted.push_back(value);
      for (size_t i = 0; i < given.size(); ++i) {
        std::string name = i < wanted.size() ? std::string(wanted[i]->name()->string_view()) : "";
        bool isHyper = i < wanted.size() && i >= countOf(forwards) && wanted[i]->role() == schema::Role::hyper;
        check(i < wanted.size() && given[i]->name()->string_view() == (isHyper ? "update." + name : name) &&
                  given[i]->role() == wanted[i]->role() && of(*given[i]) == of(*wanted[i]) && isSameTensor(*given[i], *wanted[i]),
              updating, kind, *given[i], "stands where forward or the optimizer have " + (name.empty() ? "none" : quoted(name)));
      }
      if (given.size() < wanted.size())
        check(false, updating, kind, *wanted[given.size()], "is not there");
    };
    compare("input", updating.inputs(), forward->inputs(), optimizer->inputs());
    compare("output", updating.outputs(), forward->outputs(), optimizer->outputs());
  }

  void verifyGradNorm(const schema::Program &gradNorm) const {
    verifyWeights(gradNorm);
    for (uint32_t i = 0; i < countOf(gradNorm.inputs()); ++i) {
      const schema::Value &value = *gradNorm.inputs()->Get(i);
      check(value.role() != schema::Role::state, gradNorm, "input", value, "a norm of gradients reads no states");
      if (value.role() == schema::Role::gradient)
        verifyGradientInput(gradNorm, value);
    }
    const schema::Value *first = countOf(gradNorm.outputs()) ? gradNorm.outputs()->Get(0) : nullptr;
    bool isSum = first && !countOf(first->desc()->shape()) && isFloat(ElementType(first->desc()->element()));
    if (!isSum) // as files had it before there was one square for each gradient
      verifySquares(gradNorm);
  }

  /// One sum of squares for each gradient that comes in, in their order: all together, or by themselves, or both.
  void verifySquares(const schema::Program &gradNorm) const {
    std::string prefix = std::string(gradSquaresName) + ".";
    std::vector<std::string> names;
    for (uint32_t i = 0; i < countOf(gradNorm.inputs()); ++i)
      if (const schema::Value &value = *gradNorm.inputs()->Get(i); value.role() == schema::Role::gradient)
        names.push_back(prefix + std::string(of(value)));
    auto isVector = [](const schema::Value &value, size_t count) {
      return countOf(value.desc()->shape()) == 1 && value.desc()->shape()->Get(0) == int64_t(count) &&
             value.desc()->element() == schema::ElementType::f32;
    };
    uint32_t count = countOf(gradNorm.outputs()), next = 0;
    if (count && gradNorm.outputs()->Get(0)->name()->string_view() == gradSquaresName) {
      const schema::Value &all = *gradNorm.outputs()->Get(next++);
      check(isVector(all, std::max<size_t>(names.size(), 1)), gradNorm, "output", all,
            "is no vector of f32 with one square for each gradient");
    }
    for (const std::string &name : names) {
      if (next == count)
        throw Error(ErrorCode::FileCorrupt, file_ + ": program \"grad_norm\" has no output \"" + name + "\"");
      const schema::Value &square = *gradNorm.outputs()->Get(next++);
      check(square.name()->string_view() == name && isVector(square, 1), gradNorm, "output", square,
            "stands where \"" + name + "\" is, one f32");
    }
    if (next < count)
      check(false, gradNorm, "output", *gradNorm.outputs()->Get(next), "is the square of no gradient that comes in");
  }

  const schema::Binary &root_;
  const std::string &file_;
  std::map<std::string_view, const schema::Program *> programs_;
  /// The program that a session trains by: forward, or inference where that is all.
  const schema::Program *forward_ = nullptr;
  ByName inputs_, outputs_;
};
} // namespace

void verifyNames(const schema::Binary &root, const std::string &file) { NameVerifier(root, file).verify(); }

} // namespace segue::inline runtime
