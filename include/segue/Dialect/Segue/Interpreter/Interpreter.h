//===- Interpreter.h - the reference interpreter ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Evaluates functions of the segue dialect, slowly and obviously: what an op
// means is what its few lines in lib/Dialect/Segue/Interpreter do. Folders,
// derivatives and lowerings are tested against it.
//
//   OpBuilder b(context);
//   auto type = RankedTensorType::get({4}, b.getF32Type());
//   FailureOr<SmallVector<HostTensor>> results =
//       interpret(function, {HostTensor::filled(type, 2.0)});
//
// Every element is computed in double (floats) or int64 (integers, truth
// values) and rounded to its element type after each op. What the dialect
// leaves open (the order of a sum) is taken in row-major order.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_INTERPRETER_INTERPRETER_H
#define SEGUE_DIALECT_SEGUE_INTERPRETER_INTERPRETER_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinAttributeInterfaces.h"
#include "mlir/IR/BuiltinTypes.h"
#include <functional>
#include <vector>

namespace segue {

/// A tensor in the memory of the compiler: a type and, in row-major order, its
/// elements. A float tensor uses `floats` alone, any other `ints` alone; i1
/// holds 0 or 1. An encoding of the type changes nothing.
struct HostTensor {
  mlir::RankedTensorType type;
  std::vector<double> floats;
  std::vector<int64_t> ints;

  /// All elements are `value`, rounded to the element type.
  static HostTensor filled(mlir::RankedTensorType type, double value = 0);
  /// The elements of a constant.
  static HostTensor fromAttr(mlir::ElementsAttr attr);
  /// Returns pseudo-random elements that depend on `seed` alone: floats uniform in [-1, 1),
  /// integers in [0, 4), truth values 0 or 1.
  static HostTensor random(mlir::RankedTensorType type, uint64_t seed);

  bool isFloat() const { return llvm::isa<mlir::FloatType>(type.getElementType()); }
  int64_t size() const { return type.getNumElements(); }
  /// Returns element `i` in row-major order as a double.
  double at(int64_t i) const { return isFloat() ? floats[i] : static_cast<double>(ints[i]); }
  /// Stores `value` at `i`, rounded to the element type.
  void set(int64_t i, double value);

  mlir::DenseElementsAttr toAttr() const;
  /// Returns a text such as `f32[2,2] 1 2 3 4`, with at most `limit` elements.
  std::string str(int64_t limit = 64) const;
};

/// Returns `value` rounded to what an element of `type` can hold; integers wrap.
double roundTo(mlir::Type type, double value);

struct InterpreterOptions {
  /// False keeps all floats in double: for finite differences, whose steps
  /// drown in the rounding of f32. Casts to a narrower float round nothing then.
  bool roundFloats = true;
  /// If it is not 0, every float that is computed, and not only moved, goes up or down by
  /// what rounding may do to it, as this seed says: half a unit of its type, four where a
  /// kernel may approximate, and for a sum of n terms max(sqrt(n), n / 16) halves of a unit
  /// of the sum of magnitudes, in any order of adding. The distance between such runs is
  /// how far rounding can carry a result.
  uint64_t disturb = 0;
  /// Called after every op of the body of a function, with its operands and its
  /// results; not for ops inside of a `segue.fused`. A failure ends the run.
  std::function<llvm::LogicalResult(mlir::Operation *op, llvm::ArrayRef<HostTensor> operands,
                                    llvm::ArrayRef<HostTensor> results)>
      observe;
};

/// Runs `function` on `arguments`, one per argument and of its type, and gives
/// its results. Follows `func.call` and looks into `segue.fused`. An op that it
/// does not know, an index outside of its table, a `check` that does not hold:
/// each is reported as an error at the op.
mlir::FailureOr<llvm::SmallVector<HostTensor>>
interpret(mlir::func::FuncOp function, llvm::ArrayRef<HostTensor> arguments, const InterpreterOptions &options = {});

/// The results of one op on `operands`.
mlir::FailureOr<llvm::SmallVector<HostTensor>>
interpretOp(mlir::Operation *op, llvm::ArrayRef<HostTensor> operands, const InterpreterOptions &options = {});

/// Returns true for the name of an op that has a value here.
bool isInterpreted(llvm::StringRef op);

/// The first element of `a` and `b` (of one shape) with |a - b| > atol + rtol
/// |b|, as a sentence that names index and values; empty if there is none.
/// NaN equals NaN, an infinity equals itself.
std::string findDifference(const HostTensor &a, const HostTensor &b, double atol, double rtol);

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_INTERPRETER_INTERPRETER_H
