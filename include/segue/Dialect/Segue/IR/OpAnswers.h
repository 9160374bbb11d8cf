//===- OpAnswers.h - what ops tell the passes -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The words of CostOpInterface and KernelOpInterface. A pass that wants to know
// what an op costs, or how it takes part in a kernel, asks the op and names none.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_OPANSWERS_H
#define SEGUE_DIALECT_SEGUE_IR_OPANSWERS_H

#include <cstdint>

namespace mlir {
class Operation;
}

namespace segue {

/// Says when a value is computed again instead of kept.
enum class Remake {
  /// The op looks at its operand in another way or makes a value from nothing:
  /// its result is never kept.
  Always,
  /// The op fuses into the kernel of whoever reads it: what is cheaper is done.
  IfCheaper,
  /// The op takes a command of its own: it runs again only if bytes are all that
  /// counts.
  OnDemand,
};

/// Says how an op takes part in kernels.
enum class KernelRole {
  /// Exactly one kernel computes the op.
  Member,
  /// The op moves elements and computes nothing: it is part of whoever reads it.
  View,
  /// The op makes its elements from nothing: each reader computes them.
  Source,
  /// The op is not part of a kernel: a library command, a structure, or a composite
  /// that is written in primitives before kernels are formed.
  Outside,
};

/// Says where an op of a kernel reads an operand.
enum class OperandAccess {
  /// The op reads at the index that `getKernelReads` gives or, if it has loops of its own,
  /// at the element that these loops are at.
  Element,
  /// The op reads at the row that its loops are at.
  Row,
  /// The op reads at an index that is found in memory.
  Found,
  /// The op reads in a part of the result: each element is read once at most.
  Part,
};

/// Says how near the elements of an elementwise op are to what its operands give exactly: what a comparison of kernels
/// with the interpreter has to allow.
enum class Accuracy {
  /// The result is exact, or one of the operands.
  Exact,
  /// The result is rounded once, to nearest.
  Rounded,
  /// The result is an approximation, some units off; near its zeros, some units of 1.
  Approximated,
  /// The result is an approximation, some units off, however small it is.
  ApproximatedEverywhere,
};

/// The shape of a kernel's loops.
struct KernelShape {
  enum class Kind {
    /// Elementwise over `cols` elements, any of which may be a task.
    Map,
    /// Rows of `cols` elements: reductions along a row, and with `chunks` also
    /// sums over the rows of each chunk.
    Rows,
    /// Reductions of [rows, cols] over the rows; columns are the tasks.
    Columns,
    /// Loops over [rows, cols] that the op writes itself; rows are the tasks.
    OwnByRows,
    /// Loops over [rows, cols] that the op writes itself; columns are the tasks.
    OwnByColumns,
  };
  Kind kind = Kind::Map;
  int64_t rows = 1, cols = 1;
  /// The number of chunks: 0, or a divisor of `rows`.
  int64_t chunks = 0;
  /// The distance of two elements of a row, a divisor of `rows`: what the loops
  /// read is [rows / inner, cols, inner].
  int64_t inner = 1;

  int64_t elements() const { return rows * cols; }
  bool isOwn() const { return kind == Kind::OwnByRows || kind == Kind::OwnByColumns; }
};

/// The cost of one element of a value that is worth keeping for its readers: a
/// division. What costs less is computed again for each.
inline constexpr int64_t kCostWorthKeeping = 4;

// The answers of any op; those of other dialects and without an interface are
// the careful ones: no part of a kernel, never computed again.
KernelRole kernelRoleOf(mlir::Operation *op);
Remake remakeOf(mlir::Operation *op);
/// Returns about the number of instructions for one element, operands not included.
int64_t elementCostOf(mlir::Operation *op);
/// Returns the flops of the whole op.
int64_t flopsOf(mlir::Operation *op);
/// Returns true for reductions, and for ops that write loops themselves: the roots of a kernel.
bool hasLoops(mlir::Operation *op);

inline bool isView(mlir::Operation *op) { return op && kernelRoleOf(op) == KernelRole::View; }

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_IR_OPANSWERS_H
