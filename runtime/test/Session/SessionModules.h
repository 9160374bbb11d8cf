//===- SessionModules.h - small modules to stitch in tests ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Modules over f32[8] with derivatives that fit on a line, as the compiler
// would write them:
//
//   layer:   h = w * x
//   head:    p = v * h, loss = sum (p - y)^2
//   joined:  both, in one module
//
// Each has forward, backward, inference, grad_norm, and an optimizer with one
// state per parameter: u' = 0.5 u + clip g, p' = p - lr u'.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SESSION_SESSIONMODULES_H
#define SEGUE_RUNTIME_TEST_SESSION_SESSIONMODULES_H

#include "Program/TestFile.h"
#include "segue/runtime/Session/Session.h"

namespace segue::test {

inline constexpr int64_t moduleWidth = 8;

struct ModuleOptions {
  /// Name of the layer's or head's parameter.
  std::string parameter;
  /// Frozen: no gradient, no optimizer.
  bool frozen = false;
  bool optimizer = true;
  /// The kernel of the optimizer: "sgd", or "sgd_of_small_rates", which refuses rates above 1 when it has run for a while.
  std::string update = "sgd";
  /// The phase that "forward" enters in place of its own.
  std::optional<Phase> forwardPhase;
};

Binary makeLayer(const ModuleOptions &options = {.parameter = "w"});
Binary makeHead(const ModuleOptions &options = {.parameter = "v"});
/// The head before it is written, to be changed.
TestFile makeHeadFile(const ModuleOptions &options = {.parameter = "v"});
/// With parameters "w" and "v".
Binary makeJoined();
/// y = x + seed % 1000 + 100 step, without parameters; its gradient passes through.
Binary makeHypers();

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_SESSION_SESSIONMODULES_H
