//===- RandomModel.h - small models and their cuts --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Draws a small graph of ops with several inputs, parameters and outputs, and
// cuts it into modules: ranges of its ops, each the text of one @forward whose
// arguments and results are the values that cross its ends. Values are called
// v0, v1, ... in every module. Knows neither compiler nor runtime.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_RANDOMMODEL_H
#define SEGUE_TEST_STITCH_RANDOMMODEL_H

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace segue::test {

struct ModelValue {
  enum class Kind { Input, Parameter, Result };
  Kind kind = Kind::Result;
  std::vector<int64_t> shape;
  /// "f32", "bf16" or "i64".
  std::string element = "f32";
  /// Indices of an i64 tensor lie below it.
  int64_t bound = 0;

  int64_t elements() const;
};

struct ModelOp {
  /// Its line, with values as %v3.
  std::string text;
  std::vector<size_t> operands;
  size_t result = 0;
};

struct RandomModel {
  std::vector<ModelValue> values;
  std::vector<ModelOp> ops;
  /// The values that it computes: everything that no op reads, and perhaps more.
  std::vector<size_t> outputs;

  /// Inputs have `scale` times the rows.
  static RandomModel make(std::mt19937_64 &random, int64_t scale = 1);

  /// Ends of `pieces` ranges of ops, in order; fewer if there are fewer ops.
  std::vector<size_t> cut(std::mt19937_64 &random, size_t pieces) const;
};

/// "v7".
std::string valueName(size_t value);

/// "tensor<4x8xf32>", or with `layout` as its encoding.
std::string tensorType(const std::vector<int64_t> &shape, const std::string &element, const std::string &layout = "");

/// One module of a model: the ops [begin, end).
struct ModelPiece {
  size_t begin = 0, end = 0;
  /// Values that it reads from outside, and that others or the caller read.
  std::vector<size_t> arguments, results;

  ModelPiece(const RandomModel &model, size_t begin, size_t end);

  /// Its @forward. `layouts`: of arguments and results by value, the layout
  /// that the signature declares; plain where there is none.
  std::string text(const RandomModel &model, const std::map<size_t, std::string> &layouts) const;
};

/// A module that adds two tensors.
std::string sumText(const std::vector<int64_t> &shape, const std::string &element);

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_RANDOMMODEL_H
