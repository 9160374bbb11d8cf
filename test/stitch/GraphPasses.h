//===- GraphPasses.h - a graph after every pass -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Interprets a graph and its gradients as each pass of the compiler leaves them,
// and says what they should be. Knows nothing of the runtime.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_GRAPHPASSES_H
#define SEGUE_TEST_STITCH_GRAPHPASSES_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace segue::test {

/// Elements of f32 tensors in row-major order, by the tensor's name.
using GraphTensors = std::map<std::string, std::vector<double>>;

struct GraphAnswers {
  /// Arguments of @forward, and the gradients of its results.
  GraphTensors given;
  /// Results of @forward, and the gradients of its arguments, in double.
  GraphTensors expected;
  /// Tells what went wrong in which pass; empty if nothing did.
  std::string failure;
  /// Modules that were interpreted.
  int64_t interpreted = 0;
};

/// Compiles `text`, a @forward in f32, as far as its functions can be
/// interpreted. The gradients that autodiff derives must be those of finite
/// differences, and stay what they are in every pass after it; with `everyPass`
/// all of them are asked, else the last of each pipeline.
GraphAnswers checkPasses(const std::string &text, uint64_t seed, bool everyPass);

/// The first element that differs by more than rounding in f32 explains, for
/// tensors of one size; empty if none does. `tolerance` is relative to the
/// greatest magnitude in `expected`.
std::string differenceOf(const std::vector<double> &actual, const std::vector<double> &expected, double tolerance);

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_GRAPHPASSES_H
