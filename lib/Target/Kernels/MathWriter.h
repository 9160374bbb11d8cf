//===- MathWriter.h - arithmetic for expanded functions ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_KERNELS_MATHWRITER_H
#define SEGUE_LIB_TARGET_KERNELS_MATHWRITER_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Builders.h"

namespace segue {

/// Writes arithmetic at one place, whatever the width; who derives from it knows constants
/// and bits.
class MathWriter {
public:
  using Value = mlir::Value;

  MathWriter(mlir::OpBuilder &b, mlir::Location loc) : b(b), loc(loc) {}

  Value add(Value l, Value r) { return mlir::arith::AddFOp::create(b, loc, l, r); }
  Value sub(Value l, Value r) { return mlir::arith::SubFOp::create(b, loc, l, r); }
  Value mul(Value l, Value r) { return mlir::arith::MulFOp::create(b, loc, l, r); }
  Value div(Value l, Value r) { return mlir::arith::DivFOp::create(b, loc, l, r); }
  Value fma(Value x, Value y, Value z) { return mlir::math::FmaOp::create(b, loc, x, y, z); }
  Value abs(Value x) { return mlir::math::AbsFOp::create(b, loc, x); }
  Value neg(Value x) { return mlir::arith::NegFOp::create(b, loc, x); }
  Value round(Value x) { return mlir::math::RoundEvenOp::create(b, loc, x); }
  Value copySign(Value magnitude, Value sign) { return mlir::math::CopySignOp::create(b, loc, magnitude, sign); }
  Value is(mlir::arith::CmpFPredicate predicate, Value l, Value r) {
    return mlir::arith::CmpFOp::create(b, loc, predicate, l, r);
  }
  Value less(Value l, Value r) { return is(mlir::arith::CmpFPredicate::OLT, l, r); }
  Value more(Value l, Value r) { return is(mlir::arith::CmpFPredicate::OGT, l, r); }
  Value isNaN(Value x) { return is(mlir::arith::CmpFPredicate::UNO, x, x); }
  Value select(Value c, Value l, Value r) { return mlir::arith::SelectOp::create(b, loc, c, l, r); }
  /// One instruction each on x86; a NaN in `x` gives `bound`.
  Value atLeast(Value x, Value bound) { return select(more(x, bound), x, bound); }
  Value atMost(Value x, Value bound) { return select(less(x, bound), x, bound); }
  Value addInt(Value l, Value r) { return mlir::arith::AddIOp::create(b, loc, l, r); }
  Value subInt(Value l, Value r) { return mlir::arith::SubIOp::create(b, loc, l, r); }
  Value andInt(Value l, Value r) { return mlir::arith::AndIOp::create(b, loc, l, r); }
  Value minInt(Value l, Value r) { return mlir::arith::MinSIOp::create(b, loc, l, r); }

  mlir::OpBuilder &b;
  mlir::Location loc;
};

} // namespace segue

#endif // SEGUE_LIB_TARGET_KERNELS_MATHWRITER_H
