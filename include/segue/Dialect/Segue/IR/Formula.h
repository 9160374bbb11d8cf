//===- Formula.h - primitives as one writes formulas ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
//   Formula f(builder, op->getLoc());
//   Value decayed = f.mul(p, f.sub(1.0, f.mul(rate, 0.1)));
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_FORMULA_H
#define SEGUE_DIALECT_SEGUE_IR_FORMULA_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue {

/// Writes primitives at one location as one writes formulas. Where one operand of two is
/// a scalar, it is repeated over the other; a number is a constant of the other's type.
class Formula {
public:
  using Value = mlir::Value;
  using Type = mlir::Type;

  Formula(mlir::OpBuilder &builder, mlir::Location loc) : b(builder), loc(loc) {}

  static mlir::RankedTensorType typeOf(Value value) { return mlir::cast<mlir::RankedTensorType>(value.getType()); }

  Value to(Value value, Type element) {
    return typeOf(value).getElementType() == element ? value : CastOp::create(b, loc, value, element).getResult();
  }
  Value f32(Value value) { return to(value, b.getF32Type()); }
  /// Bring bf16 and f16 to f32; f64 stays.
  Value up(Value value) { return to(value, computeType(typeOf(value).getElementType())); }
  Value splat(Value like, double value) { return ConstantOp::create(b, loc, typeOf(like), value); }

  Value add(Value l, Value r) { return both<AddOp>(l, r); }
  Value sub(Value l, Value r) { return both<SubOp>(l, r); }
  Value mul(Value l, Value r) { return both<MulOp>(l, r); }
  Value div(Value l, Value r) { return both<DivOp>(l, r); }
  Value max(Value l, Value r) { return both<MaxOp>(l, r); }
  Value min(Value l, Value r) { return both<MinOp>(l, r); }
  Value add(Value l, double r) { return add(l, splat(l, r)); }
  Value sub(double l, Value r) { return sub(splat(r, l), r); }
  Value mul(Value l, double r) { return mul(l, splat(l, r)); }
  Value div(double l, Value r) { return div(splat(r, l), r); }
  Value max(Value l, double r) { return max(l, splat(l, r)); }
  Value min(Value l, double r) { return min(l, splat(l, r)); }
  Value exp(Value x) { return ExpOp::create(b, loc, x); }
  Value expm1(Value x) { return Expm1Op::create(b, loc, x); }
  Value log(Value x) { return LogOp::create(b, loc, x); }
  Value erf(Value x) { return ErfOp::create(b, loc, x); }
  Value neg(Value x) { return NegOp::create(b, loc, x); }
  Value abs(Value x) { return AbsOp::create(b, loc, x); }
  Value floor(Value x) { return FloorOp::create(b, loc, x); }
  Value sign(Value x) { return SignOp::create(b, loc, x); }
  Value sqrt(Value x) { return SqrtOp::create(b, loc, x); }
  Value rsqrt(Value x) { return RsqrtOp::create(b, loc, x); }
  Value select(Value condition, Value onTrue, Value onFalse) {
    return SelectOp::create(b, loc, condition, onTrue, onFalse);
  }
  Value compare(Predicate predicate, Value l, Value r) { return CompareOp::create(b, loc, predicate, l, r); }

  Value reduce(ReduceKind kind, Value x, int64_t dim) { return ReduceOp::create(b, loc, kind, x, dim); }
  /// Repeats a value along dimension `dim` of `like`, which it lacks.
  Value along(Value value, int64_t dim, Value like) {
    llvm::SmallVector<int64_t> dims;
    for (int64_t k = 0; k < typeOf(like).getRank(); ++k)
      if (k != dim)
        dims.push_back(k);
    return BroadcastOp::create(b, loc, value, dims, typeOf(like).getShape());
  }
  /// Repeats a vector or scalar over the leading dimensions of `like`.
  Value over(Value value, Value like) {
    if (typeOf(value).getShape() == typeOf(like).getShape())
      return value;
    llvm::SmallVector<int64_t> dims;
    for (int64_t k = typeOf(like).getRank() - typeOf(value).getRank(); k < typeOf(like).getRank(); ++k)
      dims.push_back(k);
    return BroadcastOp::create(b, loc, value, dims, typeOf(like).getShape());
  }
  Value iota(llvm::ArrayRef<int64_t> shape, int64_t dim, Type element) {
    return IotaOp::create(b, loc, mlir::RankedTensorType::get(shape, element), dim);
  }
  Value gather(Value table, Value indices) { return GatherOp::create(b, loc, table, indices); }

  mlir::OpBuilder &b;
  mlir::Location loc;

private:
  template <typename OpTy> Value both(Value l, Value r) {
    return typeOf(l).getRank() ? Value(OpTy::create(b, loc, l, over(r, l))) : Value(OpTy::create(b, loc, over(l, r), r));
  }
};

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_IR_FORMULA_H
