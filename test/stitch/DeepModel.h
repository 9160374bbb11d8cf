//===- DeepModel.h - a chain of layers for plans ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_DEEPMODEL_H
#define SEGUE_TEST_STITCH_DEEPMODEL_H

#include "CompiledModule.h"
#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace segue::test {

/// A chain of layers gelu (x w) in blocks of their own, each times numbers that are drawn
/// anew in every step, or not; its loss is the mean of the squares.
struct DeepModel {
  int64_t layers = 6, rows = 512, width = 64;
  bool isRandom = false;
  /// For the fake driver alone, with twins where that looks for them.
  bool forGpus = false;
  std::string optimizer = "adamw";

  std::string text() const {
    std::string matrix = "tensor<" + std::to_string(width) + "x" + std::to_string(width) + "xf32>";
    std::string wide = "tensor<" + std::to_string(rows) + "x" + std::to_string(width) + "xf32>";
    std::ostringstream out;
    out << "func.func @forward(%h0: " << wide
        << " {segue.name = \"x\", segue.role = #segue.role<input>, segue.requires_grad = false}";
    for (int64_t i = 0; i < layers; ++i)
      out << ",\n  %w" << i << ": " << matrix << " {segue.name = \"w" << i
          << "\", segue.role = #segue.role<parameter>}";
    for (const char *name : {"seed", "step"})
      if (isRandom)
        out << ",\n  %" << name << ": tensor<i64> {segue.name = \"" << name << "\", segue.role = #segue.role<hyper>}";
    out << ")\n  -> (tensor<f32> {segue.name = \"loss\", segue.role = #segue.role<output>}) {\n";
    for (int64_t i = 0; i < layers; ++i) {
      std::string block = " {segue.block = \"h." + std::to_string(i) + "\"} : ", n = std::to_string(i);
      std::string next = "h" + std::to_string(i + 1);
      out << "  %p" << n << " = segue.dot_general %h" << n << ", %w" << n << " batch [] x [] contract [1] x [1]"
          << block << wide << ", " << matrix << " -> " << wide << "\n  %" << (isRandom ? "g" + n : next)
          << " = segue.gelu tanh %p" << n << block << wide << "\n";
      if (isRandom)
        out << "  %u" << n << " = segue.random %seed, %step id " << n << block << wide << "\n  %" << next
            << " = segue.mul %g" << n << ", %u" << n << block << wide << "\n";
    }
    out << "  %s = segue.mul %h" << layers << ", %h" << layers << " : " << wide
        << "\n  %loss = segue.reduce mean %s dims [0, 1] : " << wide
        << " -> tensor<f32>\n  return %loss : tensor<f32>\n}\n";
    return out.str();
  }

  Binary compiled() const {
    CompileOptions options;
    options.name = "deep";
    options.training = true;
    options.optimizer = optimizer;
    options.v4 = false;
    if (forGpus) {
      options.v3 = false;
      options.gpuCapability = 80;
      options.gpuTwins = std::getenv("FAKE_CUDA_TWINS");
    }
    CompiledModule module(text(), options);
    if (!module.binary)
      throw std::runtime_error(module.diagnostics + "in\n" + text());
    return *module.binary;
  }
};

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_DEEPMODEL_H
