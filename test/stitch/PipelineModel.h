//===- PipelineModel.h - modules that ranks run one behind the other -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Modules compiled apart: the first gives a value that the last reads again, past those
// between; one of these has a loss of its own; one is frozen; all take random numbers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_PIPELINEMODEL_H
#define SEGUE_TEST_STITCH_PIPELINEMODEL_H

#include "CompiledModule.h"
#include "RandomTensors.h"
#include "segue/runtime/Session/Session.h"
#include <map>
#include <sstream>

namespace segue::test {

struct PipelineModel {
  int64_t rows = 128, width = 64;
  /// The modules between the first and the last.
  int64_t layers = 3;
  /// The element type of what goes from module to module.
  std::string element = "f32";
  std::string optimizer = "adamw";
  /// For the fake driver alone, with twins where that looks for them.
  bool forGpus = false;
  /// The parameters that modules share.
  std::vector<std::vector<ParameterRef>> tied;

  std::vector<SessionModule> modules() const {
    std::vector<SessionModule> all{{"embed", compile("embed", embed())}};
    Binary layer = compile("layer", this->layer(false, true)), withLoss = compile("layer", this->layer(true, true)),
           frozen = compile("layer", this->layer(false, false));
    for (int64_t i = 0; i < layers; ++i)
      all.push_back({"layer" + std::to_string(i), i == 1 ? withLoss : i == 2 ? frozen : layer});
    all.push_back({"head", compile("head", head())});
    return all;
  }
  /// Three modules read one value of the first.
  bool threeReadOne = false;
  /// The wires that position does not give.
  std::vector<Wire> wires() const {
    if (threeReadOne)
      return {{"head", "s", "embed", "h"}, {"layer2", "h", "embed", "h"}};
    return {{"head", "s", "embed", "s"}};
  }

  TensorMap batch(const DeviceRef &device, int64_t step, int64_t index) const {
    auto seed = uint32_t(1000 * step + index);
    return {{"x", randomTensor(device, {rows, width}, seed)}, {"y", randomTensor(device, {rows, width}, seed + 500)}};
  }
  void setValues(Session &session) const {
    for (const ParameterInfo &info : session.parameters())
      session.setParameter(info.key, randomTensor(session.device(), info.desc.shape,
                                                  uint32_t(info.key.size()) + uint32_t(info.key[info.key.size() - 4])));
  }

private:
  static std::string value(const char *name, const char *role, const char *more = "") {
    return std::string(" {segue.name = \"") + name + "\", segue.role = #segue.role<" + role + ">" + more + "}";
  }
  std::string wide() const { return "tensor<" + std::to_string(rows) + "x" + std::to_string(width) + "xf32>"; }
  std::string matrix() const { return "tensor<" + std::to_string(width) + "x" + std::to_string(width) + "xf32>"; }
  std::string between() const { return "tensor<" + std::to_string(rows) + "x" + std::to_string(width) + "x" + element + ">"; }
  std::string hypers() const {
    return ", %seed: tensor<i64>" + value("seed", "hyper") + ", %step: tensor<i64>" + value("step", "hyper");
  }
  /// Converts a value of one module for the next, and back.
  std::string cast(const std::string &to, const std::string &from, bool leaves) const {
    std::string types = leaves ? wide() + " -> " + between() : between() + " -> " + wide();
    if (element == std::string_view("f32"))
      return "  %zero" + to + " = segue.constant dense<0.0> : " + wide() + "\n  %" + to + " = segue.add %" + from + ", %zero" +
             to + " : " + wide() + "\n";
    return "  %" + to + " = segue.cast %" + from + " : " + types + "\n";
  }
  /// One block: gelu(h·w) times random numbers.
  std::string block(const std::string &to, const std::string &from, const std::string &w, int id) const {
    std::string in = " {segue.block = \"b." + std::to_string(id) + "\"} : ", n = std::to_string(id);
    return "  %p" + n + " = segue.dot_general %" + from + ", %" + w + " batch [] x [] contract [1] x [1]" + in + wide() +
           ", " + matrix() + " -> " + wide() + "\n  %g" + n + " = segue.gelu tanh %p" + n + in + wide() + "\n  %u" + n +
           " = segue.random %seed, %step id " + n + in + wide() + "\n  %" + to + " = segue.mul %g" + n + ", %u" + n + in +
           wide() + "\n";
  }
  std::string embed() const {
    return "func.func @forward(%x: " + wide() + value("x", "input", ", segue.requires_grad = false") + ", %w: " + matrix() +
           value("embed", "parameter") + hypers() + ") -> (" + between() + value("h", "output") + ", " + between() +
           value("s", "output") + ") {\n" + block("a", "x", "w", 0) + cast("h", "a", true) + "  %aa = segue.mul %a, %a : " +
           wide() + "\n" + cast("s", "aa", true) + "  return %h, %s : " + between() + ", " + between() + "\n}\n";
  }
  std::string layer(bool hasLoss, bool trains) const {
    std::string role = trains ? "parameter" : "frozen", f = "tensor<f32>";
    return "func.func @forward(%h: " + between() + value("h", "input") + ", %v: " + matrix() + value("v", role.c_str()) +
           ", %w: " + matrix() + value("w", role.c_str()) + hypers() + ") -> (" + between() + value("h", "output") +
           (hasLoss ? ", " + f + value("loss", "output") : "") + ") {\n" + cast("i", "h", false) + block("a", "i", "v", 0) +
           block("b", "a", "w", 1) + cast("o", "b", true) +
           (hasLoss ? "  %s = segue.mul %b, %b : " + wide() + "\n  %loss = segue.reduce mean %s dims [0, 1] : " + wide() +
                          " -> " + f + "\n"
                    : "") +
           "  return %o" + (hasLoss ? ", %loss : " + between() + ", " + f : " : " + between()) + "\n}\n";
  }
  std::string head() const {
    std::string f = "tensor<f32>";
    return "func.func @forward(%h: " + between() + value("h", "input") + ", %s: " + between() + value("s", "input") + ", %y: " +
           wide() + value("y", "input", ", segue.requires_grad = false") + ", %w: " + matrix() + value("head", "parameter") +
           hypers() + ") -> (" + f + value("loss", "output") + ", " + wide() + value("z", "output") + ") {\n" +
           cast("i", "h", false) + cast("k", "s", false) + block("a", "i", "w", 0) + "  %z = segue.mul %a, %k : " + wide() +
           "\n  %d = segue.sub %z, %y : " + wide() + "\n  %q = segue.mul %d, %d : " + wide() +
           "\n  %loss = segue.reduce mean %q dims [0, 1] : " + wide() + " -> " + f + "\n  return %loss, %z : " + f + ", " +
           wide() + "\n}\n";
  }
  Binary compile(const std::string &name, const std::string &text) const {
    CompileOptions options;
    options.name = name;
    options.training = true;
    options.optimizer = optimizer;
    options.v4 = false;
    if (forGpus) {
      options.v3 = false;
      options.gpuCapability = 80;
      options.gpuTwins = std::getenv("FAKE_CUDA_TWINS");
    }
    CompiledModule module(text, options);
    if (!module.binary)
      throw std::runtime_error(module.diagnostics + "in\n" + text);
    return *module.binary;
  }
};

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_PIPELINEMODEL_H
