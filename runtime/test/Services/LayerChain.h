//===- LayerChain.h - a chain of linear layers, a block each ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// y = x W0 W1 ... with its backward pass and, for trained layers, an optimizer
// that writes the weights in place; all of matmul commands, each layer a block
// "h.i". Two chains make a stitched model.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_SERVICES_LAYERCHAIN_H
#define SEGUE_TEST_SERVICES_LAYERCHAIN_H

#include "Program/TestFile.h"
#include "segue/runtime/Program/Binary.h"
#include <gtest/gtest.h>

namespace segue::test {

struct ChainSize {
  int64_t layers = 6, rows = 2, width = 64;
  bool isTrained = false;
  /// That the first block holds; each other one is a block.
  int64_t firstLayers = 1;
};

class ChainWriter {
public:
  explicit ChainWriter(const ChainSize &size) : size_(size) {
    forward();
    backward();
    if (size.isTrained)
      optimizer();
  }
  Binary binary() { return Binary::fromMemory(file_.serialize()); }

private:
  using Kind = schema::BufferKind;
  using Program = schema::ProgramT;

  std::string layer(const char *prefix, int64_t i) { return prefix + std::to_string(i); }
  uint32_t input(Program &program, const std::string &name, int64_t rows, int64_t columns,
                 schema::Role role = schema::Role::input) {
    uint32_t index = addInput(program, name, {rows, columns}, schema::ElementType::f32, role);
    return addBuffer(program, Kind::input, index, 0, uint64_t(4 * rows * columns));
  }
  uint32_t output(Program &program, const std::string &name, int64_t rows, int64_t columns,
                  schema::Role role = schema::Role::output) {
    uint32_t index = addOutput(program, name, {rows, columns}, schema::ElementType::f32, role);
    return addBuffer(program, Kind::output, index, 0, uint64_t(4 * rows * columns));
  }
  schema::Role weightRole() const { return size_.isTrained ? schema::Role::parameter : schema::Role::frozen; }

  std::string blockOf(int64_t i) { return layer("h.", std::max<int64_t>(i - size_.firstLayers + 1, 0)); }
  /// Before layer `i` is run, of layers from `before` on; and after it, up to
  /// `after`.
  void begin(Program &program, int64_t i, int64_t before) {
    if (before >= 0 && before < size_.layers && blockOf(before) == blockOf(i))
      return;
    schema::BlockBeginT block;
    block.name = blockOf(i);
    addCommand(program, std::move(block));
  }
  void end(Program &program, int64_t i, int64_t after) {
    if (after >= 0 && after < size_.layers && blockOf(after) == blockOf(i))
      return;
    schema::BlockEndT block;
    block.name = blockOf(i);
    addCommand(program, std::move(block));
  }

  /// c [m,n] (+)= a [m,k] b [k,n]; either factor may be transposed.
  void matmul(Program &program, uint32_t a, bool turnA, uint32_t b, bool turnB, uint32_t c, int64_t m, int64_t k,
              int64_t n, bool accumulate = false) {
    schema::MatmulT matmul;
    matmul.a = view(a, {1, m, k}, turnA ? std::vector<int64_t>{m * k, 1, m} : std::vector<int64_t>{m * k, k, 1});
    matmul.b = view(b, {1, k, n}, turnB ? std::vector<int64_t>{k * n, 1, k} : std::vector<int64_t>{k * n, n, 1});
    matmul.c = view(c, {1, m, n}, {m * n, n, 1});
    matmul.accumulate = accumulate;
    addCommand(program, std::move(matmul));
  }

  void forward() {
    Program &program = file_.addProgram("forward");
    addPhase(program, schema::Phase::forward);
    int64_t rows = size_.rows, width = size_.width;
    uint32_t before = input(program, "x", rows, width);
    std::vector<uint32_t> weights;
    for (int64_t i = 0; i < size_.layers; ++i)
      weights.push_back(input(program, layer("w", i), width, width, weightRole()));
    for (int64_t i = 0; i < size_.layers; ++i) {
      bool isLast = i + 1 == size_.layers;
      uint32_t after = output(program, isLast ? "y" : layer("s", i + 1), rows, width);
      begin(program, i, i - 1);
      matmul(program, before, false, weights[size_t(i)], false, after, rows, width, width);
      end(program, i, i + 1);
      before = after;
    }
  }

  /// gradient of x, then those of the weights, last layer first.
  void backward() {
    Program &program = file_.addProgram("backward");
    addPhase(program, schema::Phase::backward);
    int64_t rows = size_.rows, width = size_.width;
    uint32_t gradient = input(program, "gy", rows, width);
    std::vector<uint32_t> saved, weights;
    for (int64_t i = 0; i < size_.layers; ++i)
      saved.push_back(input(program, i ? layer("s", i) : "x", rows, width));
    for (int64_t i = 0; i < size_.layers; ++i)
      weights.push_back(input(program, layer("w", i), width, width, weightRole()));
    for (int64_t i = size_.layers; i-- > 0;) {
      uint32_t before = output(program, i ? layer("g", i) : "gx", rows, width);
      begin(program, i, i + 1);
      if (size_.isTrained) {
        uint32_t result = output(program, layer("dw", i), width, width);
        matmul(program, saved[size_t(i)], true, gradient, false, result, width, rows, width);
      }
      matmul(program, gradient, false, weights[size_t(i)], true, before, rows, width, width);
      end(program, i, i - 1);
      gradient = before;
    }
  }

  /// w += rate dw, where `rate` is a diagonal matrix.
  void optimizer() {
    Program &program = file_.addProgram("optimizer");
    addPhase(program, schema::Phase::optimizer);
    int64_t width = size_.width;
    uint32_t rate = input(program, "rate", width, width);
    std::vector<uint32_t> gradients;
    for (int64_t i = 0; i < size_.layers; ++i)
      gradients.push_back(input(program, layer("dw", i), width, width));
    for (int64_t i = 0; i < size_.layers; ++i) {
      uint32_t in = addInput(program, layer("w", i), {width, width}, schema::ElementType::f32, schema::Role::parameter);
      addBuffer(program, Kind::input, in, 0, uint64_t(4 * width * width));
      uint32_t out =
          addOutput(program, layer("w", i), {width, width}, schema::ElementType::f32, schema::Role::parameter);
      uint32_t buffer = addBuffer(program, Kind::output, out, 0, uint64_t(4 * width * width));
      auto alias = std::make_unique<schema::AliasT>();
      alias->input = in;
      alias->output = out;
      alias->required = true;
      program.aliases.push_back(std::move(alias));
      begin(program, i, i - 1);
      matmul(program, rate, false, gradients[size_t(i)], false, buffer, width, width, width, /*accumulate=*/true);
      end(program, i, i + 1);
    }
  }

  ChainSize size_;
  TestFile file_;
};

} // namespace segue::test

#endif // SEGUE_TEST_SERVICES_LAYERCHAIN_H
