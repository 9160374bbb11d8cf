//===- SegueInterfaces.td - what ops of the dialect can do -*- tablegen -*-===//
//
// The three interfaces are attached as external models, each from one library,
// so that the dialect itself stays small: derivatives from
// lib/Dialect/Segue/Derivatives, expansions and scalar bodies from
// lib/Dialect/Segue/Lowerings. "How to add an op" in docs/ lists the places.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUEINTERFACES_TD
#define SEGUE_DIALECT_SEGUE_IR_SEGUEINTERFACES_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/Interfaces.td"

def Segue_DifferentiableOpInterface
    : OpInterface<"DifferentiableOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    Gives the derivative of an op for reverse mode. Called by
    `segue-autodiff`. A wrong answer breaks training silently: every
    implementation is checked against finite differences by
    test/unit/DerivativeTest.cpp.
  }];
  let methods = [
    InterfaceMethod<[{
      Builds, at the insertion point of `builder`, the gradients of the
      operands from those of the results: the vector-Jacobian product.

      `resultGradients` holds one value per result; null means zero.
      `wanted` tells which operands need a gradient. The answer holds one
      value per operand, of the type of that operand; null means zero, or not
      wanted. Operands and results of the op itself may be used freely: the
      pass saves or recomputes what is used.
    }],
    "::mlir::FailureOr<::llvm::SmallVector<::mlir::Value>>", "buildGradients",
    (ins "::mlir::OpBuilder &":$builder,
         "::mlir::ValueRange":$resultGradients,
         "::llvm::ArrayRef<bool>":$wanted)>
  ];
}

def Segue_ExpandableOpInterface : OpInterface<"ExpandableOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    Writes a composite op (`layer_norm`, `gelu`, `adamw`, ...) in terms of
    primitive ones. Called by `segue-expand`, after derivatives were taken and
    before kernels are formed.
  }];
  let methods = [
    InterfaceMethod<[{
      Builds the primitives at the insertion point of `builder` and returns
      one value per result, of the same types.
    }],
    "::llvm::SmallVector<::mlir::Value>", "expand",
    (ins "::mlir::OpBuilder &":$builder)>
  ];
}

def Segue_ScalarOpInterface : OpInterface<"ScalarOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    An elementwise primitive: element i of the result depends on element i of
    the operands alone. Called when kernel bodies are built.
  }];
  let methods = [
    InterfaceMethod<[{
      Builds the computation of one element with `arith` and `math` ops.
      `operands` holds one scalar per operand, of its element type, except
      that bf16 and f16 arrive as f32; the answer is of the element type of
      the result with the same exception.
    }],
    "::mlir::Value", "buildScalar",
    (ins "::mlir::OpBuilder &":$builder, "::mlir::ValueRange":$operands)>
  ];
}

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUEINTERFACES_TD
