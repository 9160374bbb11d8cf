//===- SegueTypes.td - types and base of segue ops ---------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUETYPES_TD
#define SEGUE_DIALECT_SEGUE_IR_SEGUETYPES_TD

include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/CommonTypeConstraints.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "segue/Dialect/Segue/IR/SegueAttrs.td"
include "segue/Dialect/Segue/IR/SegueDialect.td"

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

def Segue_FloatElement : AnyTypeOf<[F64, F32, BF16, F16], "f64, f32, bf16 or f16">;
// Elements of library calls other than products, and of remainders: neither is there for f64.
def Segue_LibraryElement : AnyTypeOf<[F32, BF16, F16], "f32, bf16 or f16">;
def Segue_IndexElement : AnyTypeOf<[I32, I64], "i32 or i64">;
def Segue_NumberElement
    : AnyTypeOf<[F64, F32, BF16, F16, I64, I32, I8], "a float or integer">;
def Segue_BitsElement : AnyTypeOf<[I64, I32, I8, I1], "i64, i32, i8 or i1">;
def Segue_Element
    : AnyTypeOf<[F64, F32, BF16, F16, I64, I32, I8, I1], "f64, f32, bf16, f16, i64, i32, i8 or i1">;

def Segue_Tensor : StaticShapeTensorOf<[Segue_Element]>;
def Segue_FloatTensor : StaticShapeTensorOf<[Segue_FloatElement]>;
def Segue_LibraryTensor : StaticShapeTensorOf<[Segue_LibraryElement]>;
def Segue_NumberTensor : StaticShapeTensorOf<[Segue_NumberElement]>;
def Segue_IndexTensor : StaticShapeTensorOf<[Segue_IndexElement]>;
def Segue_BoolTensor : StaticShapeTensorOf<[I1]>;
def Segue_BitsTensor : StaticShapeTensorOf<[Segue_BitsElement]>;
def Segue_F32Tensor : StaticShapeTensorOf<[F32]>;
// Statistics of rows: as they are computed.
def Segue_StatisticsTensor : StaticShapeTensorOf<[F32, F64]>;

def Segue_F32Scalar : 0DTensorOf<[F32]>,
    BuildableType<"::mlir::RankedTensorType::get({}, $_builder.getF32Type())">;
def Segue_I64Scalar : 0DTensorOf<[I64]>,
    BuildableType<"::mlir::RankedTensorType::get({}, $_builder.getI64Type())">;

// Sizes and counts of elements are computed without a look at overflow behind this: see StorableTypes.h.
def Segue_StorableTypes : NativeOpTrait<"StorableTypes"> { let cppNamespace = "::segue"; }

class Segue_Op<string mnemonic, list<Trait> traits = []>
    : Op<Segue_Dialect, mnemonic, !listconcat([Segue_StorableTypes], traits)>;

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUETYPES_TD
