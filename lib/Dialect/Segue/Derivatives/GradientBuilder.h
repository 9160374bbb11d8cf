//===- GradientBuilder.h - writes the ops of one derivative -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Derivatives read like their formulas: a GradientBuilder makes the ops at one
// place and location. `up` brings bf16 and f16 to f32 and `down` back to the
// type of the operand, so that a formula is rounded once, at its end; both are
// nothing for f32 and f64.
//
// A derivative is a function `(op, builder, result gradients, wanted)` that
// answers as DifferentiableOpInterface::buildGradients; `DerivativeModel` turns
// it into an external model.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_DERIVATIVES_GRADIENTBUILDER_H
#define SEGUE_LIB_DIALECT_SEGUE_DERIVATIVES_GRADIENTBUILDER_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue {

using Gradients = mlir::FailureOr<mlir::SmallVector<mlir::Value>>;

class GradientBuilder {
public:
  GradientBuilder(mlir::OpBuilder &builder, mlir::Location loc) : builder(builder), loc(loc) {}

  template <typename OpTy, typename... Args> OpTy create(Args &&...args) {
    return OpTy::create(builder, loc, std::forward<Args>(args)...);
  }

  mlir::Value neg(mlir::Value x) { return create<NegOp>(x); }
  mlir::Value exp(mlir::Value x) { return create<ExpOp>(x); }
  mlir::Value add(mlir::Value a, mlir::Value b) { return create<AddOp>(a, b); }
  mlir::Value sub(mlir::Value a, mlir::Value b) { return create<SubOp>(a, b); }
  mlir::Value mul(mlir::Value a, mlir::Value b) { return create<MulOp>(a, b); }
  mlir::Value div(mlir::Value a, mlir::Value b) { return create<DivOp>(a, b); }
  mlir::Value add(mlir::Value a, double b) { return add(a, splat(a, b)); }
  mlir::Value sub(double a, mlir::Value b) { return sub(splat(b, a), b); }
  mlir::Value mul(mlir::Value a, double b) { return mul(a, splat(a, b)); }
  mlir::Value compare(Predicate predicate, mlir::Value a, mlir::Value b) { return create<CompareOp>(predicate, a, b); }
  mlir::Value compare(Predicate predicate, mlir::Value a, double b) { return compare(predicate, a, splat(a, b)); }
  mlir::Value select(mlir::Value condition, mlir::Value a, mlir::Value b) {
    return create<SelectOp>(a.getType(), condition, a, b);
  }
  /// The sum of two contributions, either of which may be null.
  mlir::Value accumulate(mlir::Value a, mlir::Value b) { return !a ? b : !b ? a : add(a, b); }

  /// Returns `value` everywhere, of the type of `like`.
  mlir::Value splat(mlir::Value like, double value);

  /// Returns `x` with elements of `element`; `x` itself if it has them.
  mlir::Value cast(mlir::Value x, mlir::Type element);
  mlir::Value up(mlir::Value x) { return cast(x, computeType(mlir::cast<mlir::RankedTensorType>(x.getType()).getElementType())); }
  mlir::Value down(mlir::Value x, mlir::Value like) {
    return cast(x, mlir::cast<mlir::RankedTensorType>(like.getType()).getElementType());
  }

  mlir::Value reshape(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  /// Returns `x` transposed; `x` itself if `permutation` is the identity.
  mlir::Value transpose(mlir::Value x, llvm::ArrayRef<int64_t> permutation);
  mlir::Value broadcast(mlir::Value x, llvm::ArrayRef<int64_t> dims, llvm::ArrayRef<int64_t> shape);
  mlir::Value reduce(ReduceKind kind, mlir::Value x, llvm::ArrayRef<int64_t> dims);
  mlir::Value sum(mlir::Value x, llvm::ArrayRef<int64_t> dims) { return reduce(ReduceKind::Sum, x, dims); }

  /// Undoes a reduction over `dims`: `x` is repeated along them to `shape`.
  mlir::Value spread(mlir::Value x, llvm::ArrayRef<int64_t> dims, llvm::ArrayRef<int64_t> shape);
  /// One number per row, repeated along the last dimension of `like`.
  mlir::Value rows(mlir::Value perRow, mlir::Value like);
  /// One number per column, repeated along all but the last dimension.
  mlir::Value columns(mlir::Value perColumn, mlir::Value like);
  /// Sums along all dimensions but the last.
  mlir::Value sumRows(mlir::Value x);

  mlir::OpBuilder &builder;
  mlir::Location loc;
};

inline mlir::RankedTensorType typeOf(mlir::Value value) { return mlir::cast<mlir::RankedTensorType>(value.getType()); }
inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) { return typeOf(value).getShape(); }

template <typename OpTy, auto derivative>
struct DerivativeModel : DifferentiableOpInterface::ExternalModel<DerivativeModel<OpTy, derivative>, OpTy> {
  Gradients buildGradients(mlir::Operation *op, mlir::OpBuilder &builder, mlir::ValueRange resultGradients,
                           llvm::ArrayRef<bool> wanted) const {
    GradientBuilder b(builder, op->getLoc());
    return derivative(mlir::cast<OpTy>(op), b, resultGradients, wanted);
  }
};

template <typename OpTy, auto derivative> void attachDerivative(mlir::MLIRContext *context) {
  OpTy::template attachInterface<DerivativeModel<OpTy, derivative>>(*context);
}

// One per file of this folder.
void attachContractionDerivatives(mlir::MLIRContext *context);
void attachElementwiseDerivatives(mlir::MLIRContext *context);
void attachIndexingDerivatives(mlir::MLIRContext *context);
void attachNormalizationDerivatives(mlir::MLIRContext *context);
void attachShapeDerivatives(mlir::MLIRContext *context);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_DERIVATIVES_GRADIENTBUILDER_H
