//===- IndexSpace.h - linear indices of kernels -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kernel reads every value at a flat, row-major index. An IndexExpr is such
// an index as a linear form over loop variables; an IndexSpace knows the range
// of each variable and pushes an index through shape ops: from the index of a
// result to the index of the operand. A reshape costs nothing. Where an index
// must be taken apart into dimensions and a variable straddles two of them,
// the space asks for that variable to be split in two loops; if that cannot be
// done, it falls back on division and remainder.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_CONVERSION_SEGUETOLOOPS_INDEXSPACE_H
#define SEGUE_CONVERSION_SEGUETOLOOPS_INDEXSPACE_H

#include "mlir/IR/Value.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

namespace segue {

/// The index offset + sum of coefficient * variable, the variables in ascending order and
/// no coefficient zero.
struct IndexExpr {
  struct Term {
    unsigned variable;
    int64_t coefficient;
    auto operator<=>(const Term &) const = default;
  };
  llvm::SmallVector<Term, 4> terms;
  int64_t offset = 0;

  static IndexExpr constant(int64_t value);
  static IndexExpr variable(unsigned variable, int64_t coefficient = 1);
  void add(unsigned variable, int64_t coefficient);
  void add(const IndexExpr &other, int64_t factor = 1);

  bool operator==(const IndexExpr &other) const { return offset == other.offset && terms == other.terms; }
  bool operator<(const IndexExpr &other) const {
    return std::tie(offset, terms) < std::tie(other.offset, other.terms);
  }
};

class IndexSpace {
public:
  struct Variable {
    /// The range of values, [low, high): a segment of the loop's [0, extent) while that is made.
    int64_t low, high;
    int64_t extent;
    /// True if it may be replaced by two loops.
    bool splittable;
    /// A fallback's variable is `source` divided by `divisor`, or the remainder of
    /// that. Divisor 0 means an ordinary variable.
    IndexExpr source;
    int64_t divisor = 0;
    bool remainder = false;
  };
  struct Split {
    unsigned variable;
    int64_t factor;
  };

  unsigned addVariable(int64_t extent, bool splittable);
  /// Changes the range of a variable while one segment of its loop is made.
  void restrict(unsigned variable, int64_t low, int64_t high);
  const Variable &operator[](unsigned variable) const { return variables[variable]; }
  unsigned size() const { return variables.size(); }

  /// Returns the least and the greatest value.
  std::pair<int64_t, int64_t> range(const IndexExpr &index) const;

  /// Returns `index` as extent * first + second, where second is at least 0 and less than `extent`. Nothing where no such
  /// sums of variables are known.
  std::optional<std::pair<IndexExpr, IndexExpr>> separate(const IndexExpr &index, int64_t extent) const;

  /// Takes a flat index of a value of `shape` apart into one index per
  /// dimension. Nothing if a split is wanted: see `wantedSplit`.
  std::optional<llvm::SmallVector<IndexExpr>> delinearize(const IndexExpr &index, llvm::ArrayRef<int64_t> shape);

  /// The flat index of the operand of a reshape, transpose, broadcast or
  /// slice, from that of its result.
  std::optional<IndexExpr> throughView(mlir::Operation *view, const IndexExpr &index);

  /// Returns `index` divided by `divisor`, as a variable of its own.
  IndexExpr quotient(const IndexExpr &index, int64_t divisor) { return divided(index, divisor, false); }

  std::optional<Split> wantedSplit;

private:
  /// The variable that is `index` divided by `divisor`, or its remainder.
  IndexExpr divided(const IndexExpr &index, int64_t divisor, bool remainder);

  llvm::SmallVector<Variable> variables;
  std::map<std::tuple<IndexExpr, int64_t, bool>, unsigned> fallbacks;
};

/// The region of a result that an op takes from one of its operands: low <= index < high
/// and (index - low) divisible by `step`.
struct Guard {
  IndexExpr index;
  int64_t low, high, step;
};

/// A read of an operand for one element of an op's result: the place, in the region that
/// all `guards` leave.
struct KernelRead {
  mlir::Value value;
  IndexExpr index;
  llvm::SmallVector<Guard> guards;
};

enum class Truth { No, Yes, Runtime };

/// The answer that the ranges of the variables give for a guard.
Truth decide(const IndexSpace &space, const Guard &guard);
Truth decide(const IndexSpace &space, llvm::ArrayRef<Guard> guards);

} // namespace segue

#endif // SEGUE_CONVERSION_SEGUETOLOOPS_INDEXSPACE_H
