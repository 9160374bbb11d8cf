//===- Specs.cpp - what the engine can run --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The checks of specs. They may come from a file that nobody trusts, so every
// property that a plan relies on is checked here, apart from the bounds of the
// buffers, which the executor knows.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/Attention.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/QuantizedMatmul.h"
#include <algorithm>
#include <initializer_list>
#include <utility>

using namespace segue;

static std::string text(ElementType type) { return std::string(name(type)); }

/// Returns what is wrong with the extents of one tensor, or an empty text; `least` is the least that each may be.
static std::string findExtentProblem(std::initializer_list<std::pair<const char *, int64_t>> extents, int64_t least) {
  // No machine holds tensors of 2^46 elements, and below that sizes in bytes
  // and sums of offsets do not overflow.
  constexpr double kMost = 1ull << 46;
  double elements = 1;
  for (auto [what, extent] : extents) {
    if (extent < least)
      return std::string(what) + " is " + std::to_string(extent) + ", the least is " + std::to_string(least);
    elements *= std::max<double>(1, static_cast<double>(extent));
  }
  if (elements <= kMost)
    return {};
  std::string shape;
  for (auto [what, extent] : extents)
    shape += std::string(shape.empty() ? "" : " * ") + what + " " + std::to_string(extent);
  return shape + " are more than 2^46 elements";
}

/// "f32", or "bf16 or f32"; f64 alone.
static std::string orF32(ElementType type) {
  return type == ElementType::f32 || type == ElementType::f64 ? text(type) : text(type) + " or f32";
}

/// True if a value of `type` may be one of `like`, or f32 where that holds all of it.
static bool isLike(ElementType type, ElementType like) {
  return type == like || (type == ElementType::f32 && isComputedInF32(like));
}

std::string MatmulSpec::findProblem() const {
  std::string problem = findExtentProblem({{"batch", batch}, {"m", m}, {"k", k}}, 0);
  if (problem.empty())
    problem = findExtentProblem({{"batch", batch}, {"k", k}, {"n", n}}, 0);
  if (problem.empty())
    problem = findExtentProblem({{"batch", batch}, {"m", m}, {"n", n}}, 0);
  if (!problem.empty())
    return problem;
  if (!isFloat(a.element) || a.element != b.element)
    return "operands are " + text(a.element) + " and " + text(b.element) +
           ", they must be one float type; insert a cast";
  if (!isLike(c.element, a.element))
    return "result is " + text(c.element) + ", it must be " + orF32(a.element) + "; insert a cast";
  if (hasBias && !isLike(bias, c.element))
    return "bias is " + text(bias) + ", it must be " + orF32(c.element) + "; insert a cast";
  if (n > 1 && c.strides[2] != 1)
    return "column stride of the result is " + std::to_string(c.strides[2]) + ", it must be 1";
  if (m > 1 && c.strides[1] < n)
    return "row stride of the result is " + std::to_string(c.strides[1]) + ", rows of " + std::to_string(n) +
           " elements overlap";
  if (batch > 1 && m > 0 && n > 0 && c.strides[0] < 1)
    return "batch stride of the result is " + std::to_string(c.strides[0]) + ", its matrices overlap";
  return {};
}

MatmulSpec MatmulSpec::batchAsRows() const {
  MatmulSpec spec = *this;
  auto goesOn = [&](const MatrixView &view) { return view.strides[0] == m * view.strides[1]; };
  if (batch > 1 && b.strides[0] == 0 && goesOn(a) && goesOn(c)) {
    spec.m *= batch;
    spec.batch = 1;
  }
  return spec;
}

std::string QuantizedMatmulSpec::findProblem() const {
  std::string problem = findExtentProblem({{"rows", rows}, {"in", in}}, 0);
  if (problem.empty())
    problem = findExtentProblem({{"rows", rows}, {"out", out}}, 0);
  if (problem.empty())
    problem = findExtentProblem({{"out", out}, {"in", in}}, 0);
  if (!problem.empty())
    return problem;
  if (!isComputedInF32(x))
    return "operand is " + text(x) + ", it must be f32, bf16 or f16; insert a cast";
  if (y != x && y != ElementType::f32)
    return "result is " + text(y) + ", it must be " + orF32(x) + "; insert a cast";
  if (!isQuantized(storage))
    return "the weight is in element storage, it must be of codes";
  if (codeStride < in)
    return "rows of " + std::to_string(in) + " codes are " + std::to_string(codeStride) + " apart, they overlap";
  if (isGroupStorage(storage) && (codeStride % groupExtent(storage) != 0 || hasZeroPoints))
    return "rows in int4_group" + std::to_string(groupExtent(storage)) +
           " storage are whole groups without zero points, not " + std::to_string(codeStride) + " codes apart";
  if (hasBias && bias != y && bias != ElementType::f32)
    return "bias is " + text(bias) + ", it must be " + orF32(y) + "; insert a cast";
  if (rows > 1 && xStride < depth())
    return "row stride of the operand is " + std::to_string(xStride) + ", its rows of " + std::to_string(depth()) +
           " elements overlap";
  if (rows > 1 && yStride < columns())
    return "row stride of the result is " + std::to_string(yStride) + ", its rows of " + std::to_string(columns()) +
           " elements overlap";
  return {};
}

/// Returns what is wrong with the strides of a tensor [batch, heads, length, dim], or an empty text.
static std::string findStrideProblem(const char *what, const AttentionSpec &spec, const AttentionStrides &strides,
                                     int64_t length, bool isResult) {
  if (spec.dim > 1 && strides[3] != 1)
    return std::string("dim stride of ") + what + " is " + std::to_string(strides[3]) + ", it must be 1";
  int64_t extents[] = {spec.batch, spec.heads, length};
  bool empty = spec.batch == 0 || spec.heads == 0 || length == 0;
  for (int d = 0; d < 3; ++d)
    if (isResult && !empty && extents[d] > 1 && strides[d] < spec.dim)
      return "stride " + std::to_string(d) + " of " + what + " is " + std::to_string(strides[d]) + ", its rows of " +
             std::to_string(spec.dim) + " elements overlap";
  return {};
}

std::string AttentionSpec::findProblem() const {
  std::string problem = findExtentProblem({{"dim", dim}}, 1);
  if (problem.empty())
    problem = findExtentProblem({{"batch", batch}, {"heads", heads}, {"rows", rows}, {"dim", dim}}, 0);
  if (problem.empty())
    problem = findExtentProblem({{"batch", batch}, {"heads", heads}, {"keys", keys}, {"dim", dim}}, 0);
  if (problem.empty())
    problem = findStrideProblem("q", *this, q, rows, false);
  if (problem.empty())
    problem = findStrideProblem("k", *this, k, keys, false);
  if (problem.empty())
    problem = findStrideProblem("v", *this, v, keys, false);
  if (problem.empty())
    problem = findStrideProblem("out", *this, out, rows, true);
  if (!problem.empty())
    return problem;
  if (!isComputedInF32(element))
    return "operands are " + text(element) + ", they must be f32, bf16 or f16";
  if (mask == MaskKind::keep && maskElement != ElementType::i1)
    return "a mask that keeps is " + text(maskElement) + ", it must be i1";
  if (mask == MaskKind::add && !isComputedInF32(maskElement))
    return "a mask that is added is " + text(maskElement) + ", it must be f32, bf16 or f16";
  if (!(dropout >= 0 && dropout < 1))
    return "dropout is " + std::to_string(dropout) + ", it must be at least 0 and less than 1";
  return {};
}

std::string AttentionGradSpec::findProblem() const {
  std::string problem = forward.findProblem();
  if (problem.empty())
    problem = findStrideProblem("grad_out", forward, gradOut, forward.rows, false);
  if (problem.empty())
    problem = findStrideProblem("grad_q", forward, gradQ, forward.rows, true);
  if (problem.empty())
    problem = findStrideProblem("grad_k", forward, gradK, forward.keys, true);
  if (problem.empty())
    problem = findStrideProblem("grad_v", forward, gradV, forward.keys, true);
  return problem;
}
