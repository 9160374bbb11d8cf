//===- StateCodes.cpp - optimizer states of a byte per element ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every op works on blocks x elements of a block, or on a number per block, so that a step with its codes is one
// kernel over rows.
//
//===----------------------------------------------------------------------===//

#include "StateCodes.h"
#include "llvm/ADT/STLExtras.h"
#include <cmath>

using namespace mlir;
using namespace segue;

constexpr int64_t kLeastElements = 4096;
/// The steps of the codes from 0 to the scale.
constexpr double kSignedSteps = 127, kSquareSteps = 256;
/// The code of the first step of Square.
constexpr double kFirstSquare = -128;
/// The least scale: its reciprocal is finite, and what it loses is far below what moves a parameter.
constexpr double kLeastScale = 0x1p-100;

int64_t segue::blockOfCodes(ArrayRef<int64_t> shape) {
  int64_t elements = llvm::product_of(shape);
  for (int64_t block : {256, 128, 64})
    if (elements >= kLeastElements && elements % block == 0)
      return block;
  return 0;
}

static Value reshape(Formula &f, Value x, ArrayRef<int64_t> shape) { return ReshapeOp::create(f.b, f.loc, x, shape); }

Value segue::decodeState(Formula &f, StateCode code, CodedState state, ArrayRef<int64_t> shape) {
  Value steps = f.f32(state.codes);
  bool isSquare = code == StateCode::Square;
  double most = isSquare ? kSquareSteps : kSignedSteps;
  if (isSquare)
    steps = f.add(steps, 1 - kFirstSquare);
  Value scale = f.along(f.mul(state.scales, 1 / (most * most)), 1, steps);
  Value value = f.mul(f.mul(steps, isSquare ? steps : f.abs(steps)), scale);
  return reshape(f, isSquare ? f.mul(value, value) : value, shape);
}

/// Returns x - floor(x).
static Value fraction(Formula &f, Value x) { return f.sub(x, f.floor(x)); }

/// Returns a number in [0, 1) for each element of blocks, at which rounding turns over in this step. Over some steps
/// those of an element are spread evenly, by the golden ratio, and so are those of neighbours in one step. `step` is a
/// scalar in f32.
static Value thresholds(Formula &f, Value step, ArrayRef<int64_t> shape) {
  // The step is taken apart, as an f32 has no digits left for the fraction of a large product.
  constexpr double kGolden = 0.6180339887498949, kPlastic = 0.7548776662466927, kPart = 4096;
  Value parts = f.floor(f.mul(step, 1 / kPart));
  Value rest = f.sub(step, f.mul(parts, kPart));
  Value ofStep = f.add(fraction(f, f.mul(parts, std::fmod(kGolden * kPart, 1.0))), f.mul(rest, kGolden));
  Value column = f.iota(shape, 1, f.b.getF32Type());
  return fraction(f, f.add(f.mul(column, kPlastic), ofStep));
}

/// Returns the codes of Signed for `roots`, which are in steps: of two the upper one as often as the root is near it.
/// The mean of what they mean is above the element by at most a quarter of the square of a step, which is nothing where
/// a tenth of it is forgotten in a step.
static Value roundSigned(Formula &f, Value roots, Value thresholds, Value x) {
  Value steps = f.min(f.floor(f.add(roots, thresholds)), kSignedSteps);
  return f.select(f.compare(Predicate::Lt, x, f.splat(x, 0)), f.neg(steps), steps);
}

/// Returns the codes of Square for `roots`, whose squares are given: of two the upper one as often as it takes for the
/// mean of their fourth powers to be right, of which but a thousandth is forgotten in a step.
static Value roundSquare(Formula &f, Value roots, Value squares, Value thresholds) {
  Value below = f.floor(roots), above = f.add(below, 1);
  auto power = [&](Value square) { return f.mul(square, square); };
  Value low = power(f.mul(below, below)), high = power(f.mul(above, above));
  Value share = f.mul(f.sub(f.splat(low, 1), thresholds), f.sub(high, low));
  Value steps = f.select(f.compare(Predicate::Lt, share, f.sub(power(squares), low)), above, below);
  return f.add(steps, kFirstSquare - 1);
}

CodedState segue::encodeState(Formula &f, StateCode code, Value state, int64_t block, Value step) {
  bool isSquare = code == StateCode::Square;
  double most = isSquare ? kSquareSteps : kSignedSteps;
  SmallVector<int64_t> shape = {Formula::typeOf(state).getNumElements() / block, block};
  Value x = reshape(f, isSquare ? f.sqrt(state) : state, shape);
  Value size = isSquare ? x : f.abs(x);
  Value scales = f.max(f.reduce(ReduceKind::Max, size, 1), kLeastScale);
  Value squares = f.mul(size, f.along(f.div(most * most, scales), 1, size));
  Value roots = f.sqrt(squares), ats = thresholds(f, step, shape);
  // The cast brings what lies beyond the ends, as zeros of Square do, to the nearest code.
  Value steps = isSquare ? roundSquare(f, roots, squares, ats) : roundSigned(f, roots, ats, x);
  return {f.to(steps, f.b.getI8Type()), scales};
}
