//===- SessionModules.cpp - small modules to stitch in tests --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Session/SessionModules.h"

namespace segue::test {

using schema::BufferKind;
using Shape = std::vector<int64_t>;

namespace {

/// Writes one program; functions return the buffer of what they add.
class ProgramWriter {
public:
  /// Enters the phase that a program of this name belongs to.
  ProgramWriter(TestFile &file, const std::string &name) : file_(file), program_(file.addProgram(name)) {
    bool optimizes = name == "optimizer" || name == "grad_norm";
    addPhase(program_, optimizes            ? schema::Phase::optimizer
                       : name == "backward" ? schema::Phase::backward
                                            : schema::Phase::forward);
  }

  void setPhase(std::optional<Phase> phase) {
    if (phase)
      program_.commands[0]->body.AsSetPhase()->phase = schema::Phase(*phase);
  }

  uint32_t input(const std::string &name, schema::Role role, const std::string &of = "", const Shape &shape = vector,
                 schema::ElementType element = schema::ElementType::f32) {
    uint32_t index = addInput(program_, name, shape, element, role);
    program_.inputs[index]->of = of;
    return addBuffer(program_, BufferKind::input, index, 0, bytes(shape, element));
  }

  /// `alias`: the input, by index, that the output is written in place of.
  uint32_t output(const std::string &name, schema::Role role, const std::string &of = "", const Shape &shape = vector,
                  int alias = -1) {
    uint32_t index = addOutput(program_, name, shape, schema::ElementType::f32, role);
    program_.outputs[index]->of = of;
    if (alias >= 0) {
      program_.aliases.push_back(std::make_unique<schema::AliasT>());
      program_.aliases.back()->input = uint32_t(alias);
      program_.aliases.back()->output = index;
      program_.aliases.back()->required = true;
    }
    return addBuffer(program_, BufferKind::output, index, 0, bytes(shape, schema::ElementType::f32));
  }

  uint32_t temporary() {
    if (program_.arenas.empty())
      program_.arenas.push_back(std::make_unique<schema::ArenaT>());
    uint64_t offset = program_.arenas[0]->bytes;
    program_.arenas[0]->bytes += 64;
    program_.arenas[0]->lower_bound += 64;
    return addBuffer(program_, BufferKind::arena, 0, offset, bytes(vector, schema::ElementType::f32));
  }

  /// Over the vector, or as one piece where `whole`.
  void launch(const std::string &kernel, std::vector<uint32_t> args, bool whole = false) {
    uint32_t index = kernelIndex(kernel, args);
    addLaunch(program_, index, std::move(args), whole ? 1 : moduleWidth);
  }

  static inline const Shape vector{moduleWidth}, scalar{}, one{1};

private:
  static uint64_t bytes(const Shape &shape, schema::ElementType element) {
    return uint64_t(shape.empty() ? 1 : shape[0]) * (element == schema::ElementType::i64 ? 8 : 4);
  }

  uint32_t kernelIndex(const std::string &name, const std::vector<uint32_t> &args) {
    for (uint32_t i = 0; i < file_.root.kernels.size(); ++i)
      if (file_.root.kernels[i]->name == name)
        return i;
    std::vector<uint64_t> fixed;
    for (uint32_t arg : args)
      fixed.push_back(program_.buffers[arg]->bytes);
    return file_.addKernel(name, name.starts_with("sgd") ? 2 : 1, fixed, std::vector<uint64_t>(args.size(), 0));
  }

  TestFile &file_;
  schema::ProgramT &program_;
};

} // namespace

static void writeOptimizer(TestFile &file, const std::vector<std::string> &parameters,
                           const std::string &kernel = "sgd") {
  {
    ProgramWriter p(file, "optimizer");
    std::vector<std::vector<uint32_t>> args;
    for (const std::string &name : parameters)
      args.push_back({p.input(name, schema::Role::parameter), p.input("grad." + name, schema::Role::gradient, name),
                      p.input("u." + name, schema::Role::state, name)});
    uint32_t lr = p.input("lr", schema::Role::hyper, "", ProgramWriter::scalar);
    p.input("step", schema::Role::hyper, "", ProgramWriter::scalar, schema::ElementType::i64);
    uint32_t clip = p.input("clip", schema::Role::hyper, "", ProgramWriter::scalar);
    for (size_t i = 0; i < parameters.size(); ++i) {
      uint32_t value = p.output(parameters[i], schema::Role::parameter, "", ProgramWriter::vector, int(3 * i));
      uint32_t state =
          p.output("u." + parameters[i], schema::Role::state, parameters[i], ProgramWriter::vector, int(3 * i + 2));
      p.launch(kernel, {args[i][0], args[i][1], args[i][2], lr, clip, value, state});
    }
  }
  ProgramWriter p(file, "grad_norm");
  std::vector<uint32_t> gradients;
  for (const std::string &name : parameters)
    gradients.push_back(p.input("grad." + name, schema::Role::gradient, name));
  // One square for each gradient, by itself.
  for (size_t i = 0; i < parameters.size(); ++i) {
    uint32_t square = p.output("grad_norm_squares." + parameters[i], schema::Role::output, "", ProgramWriter::one);
    p.launch("square_sum", {gradients[i], square}, true);
  }
}

static Binary finish(TestFile &file, const std::string &name) { return Binary::fromMemory(file.serialize(), {}, name); }

Binary makeLayer(const ModuleOptions &options) {
  TestFile file;
  schema::Role role = options.frozen ? schema::Role::frozen : schema::Role::parameter;
  for (const char *name : {"inference", "forward"}) {
    ProgramWriter p(file, name);
    p.setPhase(options.forwardPhase);
    uint32_t w = p.input(options.parameter, role), x = p.input("x", schema::Role::input);
    p.launch("mul", {w, x, p.output("h", schema::Role::output)});
  }
  ProgramWriter p(file, "backward");
  uint32_t w = p.input(options.parameter, role), x = p.input("x", schema::Role::input);
  uint32_t gradH = p.input("grad.h", schema::Role::gradient, "h");
  if (!options.frozen)
    p.launch("mul", {x, gradH, p.output("grad." + options.parameter, schema::Role::gradient, options.parameter)});
  p.launch("mul", {w, gradH, p.output("grad.x", schema::Role::gradient, "x")});
  if (!options.frozen && options.optimizer)
    writeOptimizer(file, {options.parameter}, options.update);
  return finish(file, "layer.segue");
}

Binary makeHead(const ModuleOptions &options) {
  TestFile file = makeHeadFile(options);
  return finish(file, "head.segue");
}

TestFile makeHeadFile(const ModuleOptions &options) {
  TestFile file;
  schema::Role role = options.frozen ? schema::Role::frozen : schema::Role::parameter;
  for (const char *name : {"inference", "forward"}) {
    ProgramWriter p(file, name);
    uint32_t v = p.input(options.parameter, role), h = p.input("hidden", schema::Role::input),
             y = p.input("y", schema::Role::input);
    uint32_t prediction = p.output("p", schema::Role::output);
    p.launch("mul", {v, h, prediction});
    p.launch("square_error", {prediction, y, p.output("loss", schema::Role::output, "", ProgramWriter::scalar)}, true);
    if (std::string_view(name) == "forward")
      p.launch("mul", {v, h, p.output("saved.0", schema::Role::saved, "p")});
  }
  ProgramWriter p(file, "backward");
  uint32_t prediction = p.input("saved.0", schema::Role::saved, "p");
  uint32_t v = p.input(options.parameter, role), h = p.input("hidden", schema::Role::input),
           y = p.input("y", schema::Role::input);
  uint32_t gradP = p.input("grad.p", schema::Role::gradient, "p"),
           gradLoss = p.input("grad.loss", schema::Role::gradient, "loss", ProgramWriter::scalar);
  uint32_t d = p.temporary();
  p.launch("square_error_grad", {prediction, y, gradLoss, gradP, d});
  if (!options.frozen)
    p.launch("mul", {d, h, p.output("grad." + options.parameter, schema::Role::gradient, options.parameter)});
  p.launch("mul", {d, v, p.output("grad.hidden", schema::Role::gradient, "hidden")});
  if (!options.frozen && options.optimizer)
    writeOptimizer(file, {options.parameter}, options.update);
  return file;
}

Binary makeJoined() {
  TestFile file;
  for (const char *name : {"inference", "forward"}) {
    ProgramWriter p(file, name);
    uint32_t w = p.input("w", schema::Role::parameter), v = p.input("v", schema::Role::parameter);
    uint32_t x = p.input("x", schema::Role::input), y = p.input("y", schema::Role::input);
    uint32_t prediction = p.output("p", schema::Role::output);
    uint32_t loss = p.output("loss", schema::Role::output, "", ProgramWriter::scalar);
    bool saves = std::string_view(name) == "forward";
    uint32_t h = saves ? p.output("saved.0", schema::Role::saved) : p.temporary();
    p.launch("mul", {w, x, h});
    p.launch("mul", {v, h, prediction});
    p.launch("square_error", {prediction, y, loss}, true);
    if (saves)
      p.launch("mul", {v, h, p.output("saved.1", schema::Role::saved, "p")});
  }
  ProgramWriter p(file, "backward");
  uint32_t h = p.input("saved.0", schema::Role::saved), prediction = p.input("saved.1", schema::Role::saved, "p");
  uint32_t w = p.input("w", schema::Role::parameter), v = p.input("v", schema::Role::parameter);
  uint32_t x = p.input("x", schema::Role::input), y = p.input("y", schema::Role::input);
  uint32_t gradP = p.input("grad.p", schema::Role::gradient, "p"),
           gradLoss = p.input("grad.loss", schema::Role::gradient, "loss", ProgramWriter::scalar);
  uint32_t d = p.temporary(), gradH = p.temporary();
  p.launch("square_error_grad", {prediction, y, gradLoss, gradP, d});
  p.launch("mul", {d, h, p.output("grad.v", schema::Role::gradient, "v")});
  p.launch("mul", {d, v, gradH});
  p.launch("mul", {x, gradH, p.output("grad.w", schema::Role::gradient, "w")});
  p.launch("mul", {w, gradH, p.output("grad.x", schema::Role::gradient, "x")});
  writeOptimizer(file, {"w", "v"});
  return finish(file, "joined.segue");
}

Binary makeHypers() {
  TestFile file;
  for (const char *name : {"inference", "forward"}) {
    ProgramWriter p(file, name);
    uint32_t x = p.input("x", schema::Role::input);
    uint32_t seed = p.input("seed", schema::Role::hyper, "", ProgramWriter::scalar, schema::ElementType::i64);
    uint32_t step = p.input("step", schema::Role::hyper, "", ProgramWriter::scalar, schema::ElementType::i64);
    p.launch("add_hypers", {x, seed, step, p.output("shifted", schema::Role::output)});
  }
  ProgramWriter p(file, "backward");
  uint32_t gradient = p.input("grad.shifted", schema::Role::gradient, "shifted");
  p.launch("copy", {gradient, p.output("grad.x", schema::Role::gradient, "x")});
  return finish(file, "hypers.segue");
}

} // namespace segue::test
