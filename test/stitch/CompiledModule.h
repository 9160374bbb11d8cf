//===- CompiledModule.h - MLIR text to a loaded binary ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// For tests that compile and run in one process.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_COMPILEDMODULE_H
#define SEGUE_TEST_STITCH_COMPILEDMODULE_H

#include "RandomTensors.h"
#include "segue/Compiler/Compiler.h"
#include "segue/runtime/Runtime.h"
#include <gtest/gtest.h>
#include <optional>
#include <span>
#include <stdexcept>

namespace segue {

/// The diagnostics of the compiler, and the binary if there is one.
struct CompiledModule {
  std::string diagnostics;
  std::optional<Binary> binary;

  explicit CompiledModule(const std::string &text, const CompileOptions &options) {
    llvm::FailureOr<std::string> file = compileText(text, options, diagnostics);
    if (succeeded(file))
      binary = Binary::fromMemory(std::as_bytes(std::span(*file)), {}, options.name);
  }
};

/// Compiles `text` and expects that it can be.
inline Binary compiled(const std::string &name, const std::string &text, const std::string &hints = "",
                       bool training = false, bool statistics = false) {
  CompileOptions options;
  options.name = name;
  options.training = training;
  options.optimizer = "none";
  options.stitchHints = hints;
  options.gradientStatistics = statistics ? StatisticsPer::Block : StatisticsPer::Nothing;
  CompiledModule module(text, options);
  if (!module.binary)
    throw std::runtime_error(module.diagnostics);
  return *module.binary;
}

} // namespace segue

#endif // SEGUE_TEST_STITCH_COMPILEDMODULE_H
