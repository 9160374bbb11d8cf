//===- IndexSpace.cpp - linear indices of kernels -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Conversion/SegueToLoops/IndexSpace.h"
#include "llvm/Support/MathExtras.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

//===----------------------------------------------------------------------===//
// IndexExpr
//===----------------------------------------------------------------------===//

IndexExpr IndexExpr::constant(int64_t value) {
  IndexExpr index;
  index.offset = value;
  return index;
}

IndexExpr IndexExpr::variable(unsigned variable, int64_t coefficient) {
  IndexExpr index;
  index.add(variable, coefficient);
  return index;
}

void IndexExpr::add(unsigned variable, int64_t coefficient) {
  if (coefficient == 0)
    return;
  auto *at = llvm::find_if(terms, [&](const Term &term) { return term.variable >= variable; });
  if (at == terms.end() || at->variable != variable) {
    terms.insert(at, Term{variable, coefficient});
    return;
  }
  at->coefficient += coefficient;
  if (at->coefficient == 0)
    terms.erase(at);
}

void IndexExpr::add(const IndexExpr &other, int64_t factor) {
  offset += other.offset * factor;
  for (const Term &term : other.terms)
    add(term.variable, term.coefficient * factor);
}

//===----------------------------------------------------------------------===//
// IndexSpace
//===----------------------------------------------------------------------===//

unsigned IndexSpace::addVariable(int64_t extent, bool splittable) {
  variables.push_back(Variable{0, extent, extent, splittable, {}, 0, false});
  return variables.size() - 1;
}

void IndexSpace::restrict(unsigned variable, int64_t low, int64_t high) {
  variables[variable].low = low;
  variables[variable].high = high;
}

std::pair<int64_t, int64_t> IndexSpace::range(const IndexExpr &index) const {
  int64_t least = index.offset, greatest = index.offset;
  for (const IndexExpr::Term &term : index.terms) {
    const Variable &variable = variables[term.variable];
    int64_t low = variable.low, high = variable.high - 1;
    if (variable.divisor && !variable.remainder) {
      // The source may be restricted by now, or no more.
      std::tie(low, high) = range(variable.source);
      low = llvm::divideFloorSigned(low, variable.divisor);
      high = llvm::divideFloorSigned(high, variable.divisor);
    }
    int64_t first = term.coefficient * low, last = term.coefficient * high;
    least += std::min(first, last);
    greatest += std::max(first, last);
  }
  return {least, greatest};
}

IndexExpr IndexSpace::divided(const IndexExpr &index, int64_t divisor, bool remainder) {
  auto [entry, isNew] = fallbacks.try_emplace({index, divisor, remainder}, variables.size());
  if (isNew) {
    variables.push_back(Variable{0, divisor, divisor, false, index, divisor, remainder});
  }
  return IndexExpr::variable(entry->second);
}

std::optional<std::pair<IndexExpr, IndexExpr>> IndexSpace::separate(const IndexExpr &index, int64_t extent) const {
  // index = extent * quotient + part, each term where it divides.
  IndexExpr quotient, part;
  for (const IndexExpr::Term &term : index.terms) {
    quotient.add(term.variable, llvm::divideFloorSigned(term.coefficient, extent));
    part.add(term.variable, llvm::mod(term.coefficient, extent));
  }
  part.offset = index.offset;
  auto [least, greatest] = range(part);
  int64_t carry = llvm::divideFloorSigned(least, extent);
  if (llvm::divideFloorSigned(greatest, extent) != carry)
    return std::nullopt;
  quotient.offset = carry;
  part.offset -= carry * extent;
  return std::pair(quotient, part);
}

std::optional<SmallVector<IndexExpr>> IndexSpace::delinearize(const IndexExpr &index, ArrayRef<int64_t> shape) {
  SmallVector<IndexExpr> indices(shape.size());
  IndexExpr rest = index;
  for (int64_t dim = shape.size() - 1; dim >= 0; --dim) {
    int64_t extent = shape[dim];
    // All that is left belongs to the outermost dimension that is not 1.
    if (llvm::all_of(shape.take_front(dim), [](int64_t outer) { return outer == 1; })) {
      indices[dim] = rest;
      return indices;
    }
    if (auto separated = separate(rest, extent)) {
      std::tie(rest, indices[dim]) = *separated;
      continue;
    }
    for (IndexExpr::Term term : rest.terms) {
      term.coefficient = llvm::mod(term.coefficient, extent);
      if (term.coefficient == 0)
        continue;
      const Variable &variable = variables[term.variable];
      // All of the loop is split, whichever segment of it is walked.
      int64_t factor = extent / term.coefficient;
      if (variable.splittable && variable.low == 0 && extent % term.coefficient == 0 && factor < variable.extent &&
          variable.extent % factor == 0) {
        wantedSplit = Split{term.variable, factor};
        return std::nullopt;
      }
    }
    indices[dim] = divided(rest, extent, /*remainder=*/true);
    rest = divided(rest, extent, /*remainder=*/false);
  }
  return indices;
}

namespace {
/// A run of dimensions of a view's result that is walked as one:
/// operand index = sum over runs of (start + index * step) * stride.
struct Run {
  int64_t extent;
  /// The stride in the operand; 0 if the run repeats it.
  int64_t stride;
  int64_t start = 0, step = 1;
};
} // namespace

static SmallVector<int64_t> stridesOf(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size(), 1);
  for (int64_t dim = static_cast<int64_t>(shape.size()) - 2; dim >= 0; --dim)
    strides[dim] = strides[dim + 1] * shape[dim + 1];
  return strides;
}

/// The longest runs: an index that need not come apart costs nothing.
static SmallVector<Run> runsOf(Operation *view) {
  auto shape = cast<RankedTensorType>(view->getResult(0).getType()).getShape();
  auto operandShape = cast<RankedTensorType>(view->getOperand(0).getType()).getShape();
  SmallVector<int64_t> strides = stridesOf(operandShape);
  SmallVector<Run> runs;
  for (auto [dim, extent] : llvm::enumerate(shape)) {
    Run run{extent, 0};
    if (auto transpose = dyn_cast<TransposeOp>(view)) {
      run.stride = strides[transpose.getPermutation()[dim]];
    } else if (auto broadcast = dyn_cast<BroadcastOp>(view)) {
      const int64_t *at = llvm::find(broadcast.getDims(), static_cast<int64_t>(dim));
      size_t from = at - broadcast.getDims().begin();
      if (at != broadcast.getDims().end() && operandShape[from] != 1)
        run.stride = strides[from];
    } else {
      auto slice = cast<SliceOp>(view);
      run = {extent, strides[dim], slice.getStarts()[dim], slice.getSteps()[dim]};
    }
    if (extent == 1 && run.start == 0)
      continue;
    // An index i of the run before and j of this one: i * extent + j.
    if (!runs.empty() && run.start == 0 && run.step == 1 && runs.back().step == 1 &&
        runs.back().stride == run.stride * extent) {
      runs.back() = {runs.back().extent * extent, run.stride, runs.back().start * extent, 1};
      continue;
    }
    runs.push_back(run);
  }
  return runs;
}

std::optional<IndexExpr> IndexSpace::throughView(Operation *view, const IndexExpr &index) {
  if (isa<ReshapeOp>(view))
    return index;
  SmallVector<Run> runs = runsOf(view);
  SmallVector<int64_t> extents;
  for (const Run &run : runs)
    extents.push_back(run.extent);
  auto indices = delinearize(index, extents);
  if (!indices)
    return std::nullopt;
  IndexExpr operand;
  for (auto [run, at] : llvm::zip_equal(runs, *indices)) {
    operand.offset += run.start * run.stride;
    operand.add(at, run.step * run.stride);
  }
  return operand;
}

//===----------------------------------------------------------------------===//
// Guards
//===----------------------------------------------------------------------===//

Truth segue::decide(const IndexSpace &space, const Guard &guard) {
  auto [least, greatest] = space.range(guard.index);
  if (greatest < guard.low || least >= guard.high)
    return Truth::No;
  if (least >= guard.low && greatest < guard.high && guard.step == 1)
    return Truth::Yes;
  return Truth::Runtime;
}

Truth segue::decide(const IndexSpace &space, ArrayRef<Guard> guards) {
  Truth all = Truth::Yes;
  for (const Guard &guard : guards) {
    Truth one = decide(space, guard);
    if (one == Truth::No)
      return one;
    if (one == Truth::Runtime)
      all = one;
  }
  return all;
}
