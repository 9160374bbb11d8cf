//===- CheckDialect.td - the check dialect -----------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_CHECK_IR_CHECKDIALECT_TD
#define SEGUE_DIALECT_CHECK_IR_CHECKDIALECT_TD

include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/CommonTypeConstraints.td"
include "mlir/IR/OpBase.td"

def Check_Dialect : Dialect {
  let name = "check";
  let cppNamespace = "::segue::check";
  let summary = "statements about values, for tests";
  let description = [{
    A test computes something and says what must come out. The statements hold
    or fail when the function is interpreted (`--segue-interpret`); nothing
    else lowers them.
  }];
}

def Check_Tensor : StaticShapeTensorOf<[F64, F32, BF16, F16, I64, I32, I8, I1]>;

class Check_Op<string mnemonic, list<Trait> traits = []> : Op<Check_Dialect, mnemonic, traits>;

def Check_ExpectEqOp : Check_Op<"expect_eq", [SameTypeOperands]> {
  let summary = "fails unless two values are equal";
  let description = [{
    NaN equals NaN, and 0 equals -0. The error names the first index that
    differs, in row-major order, and both values.

    Example: `check.expect_eq %a, %b : tensor<4xi32>`
  }];
  let arguments = (ins Check_Tensor:$actual, Check_Tensor:$expected);
  let assemblyFormat = "$actual `,` $expected attr-dict `:` type($actual)";
}

def Check_ExpectCloseOp : Check_Op<"expect_close", [SameTypeOperands]> {
  let summary = "fails unless two values are nearly equal";
  let description = [{
    Holds where `|actual - expected| <= atol + rtol * |expected|`; NaN equals
    NaN and an infinity equals itself alone.

    Example: `check.expect_close %a, %b {rtol = 1.0e-4} : tensor<4xf32>`
  }];
  let arguments = (ins Check_Tensor:$actual, Check_Tensor:$expected,
                       DefaultValuedAttr<F64Attr, "1.0e-6">:$atol, DefaultValuedAttr<F64Attr, "1.0e-5">:$rtol);
  let assemblyFormat = "$actual `,` $expected attr-dict `:` type($actual)";
}

def Check_ExpectCloseConstOp : Check_Op<"expect_close_const", [AllTypesMatch<["actual", "expected"]>]> {
  let summary = "fails unless a value is nearly equal to a constant";
  let description = [{
    As `check.expect_close`.

    Example: `check.expect_close_const %a, dense<[1.0, 2.0]> : tensor<2xf32>`
  }];
  let arguments = (ins Check_Tensor:$actual, ElementsAttr:$expected,
                       DefaultValuedAttr<F64Attr, "1.0e-6">:$atol, DefaultValuedAttr<F64Attr, "1.0e-5">:$rtol);
  let assemblyFormat = "$actual `,` $expected attr-dict";
}

#endif // SEGUE_DIALECT_CHECK_IR_CHECKDIALECT_TD
