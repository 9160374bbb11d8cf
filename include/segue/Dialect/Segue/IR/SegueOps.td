//===- SegueOps.td - ops of the segue dialect --------------*- tablegen -*-===//
//
// The reference manual of the dialect: docs/reference/Segue.md is generated
// from this file and SegueLibraryOps.td. Sections open with the rules that their ops share.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUEOPS_TD
#define SEGUE_DIALECT_SEGUE_IR_SEGUEOPS_TD

include "segue/Dialect/Segue/IR/SegueLibraryOps.td"
include "segue/Dialect/Segue/IR/SegueTypes.td"

//===----------------------------------------------------------------------===//
// Elementwise ops. Operands and result have one shape; element i of the result
// depends on element i of the operands alone. bf16 and f16 are computed in f32
// and rounded once, to nearest even; f64 is computed in f64. Integer arithmetic wraps.
//===----------------------------------------------------------------------===//

class Segue_Unary<string mnemonic, Type type, string what, string element = "f32">
    : Segue_Op<mnemonic, [Pure, SameOperandsAndResultType]> {
  let summary = what;
  let description = "Example: `%y = segue." # mnemonic # " %x : tensor<4x" # element # ">`";
  let arguments = (ins type:$input);
  let results = (outs type:$result);
  let assemblyFormat = "$input attr-dict `:` type($result)";
}

class Segue_Binary<string mnemonic, Type type, string what, list<Trait> traits = [], string element = "f32">
    : Segue_Op<mnemonic, !listconcat([Pure, SameOperandsAndResultType], traits)> {
  let summary = what;
  let description = "Example: `%y = segue." # mnemonic # " %a, %b : tensor<4x" # element # ">`";
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($result)";
}

def Segue_NegOp : Segue_Unary<"neg", Segue_NumberTensor, "negates"> { let hasFolder = 1; }
def Segue_AbsOp : Segue_Unary<"abs", Segue_NumberTensor, "takes the absolute value">;
def Segue_SignOp : Segue_Unary<"sign", Segue_NumberTensor, "gives -1, 0 or 1 by the sign, 0 for NaN">;
def Segue_FloorOp : Segue_Unary<"floor", Segue_FloatTensor, "takes the next whole number below">;
def Segue_CeilOp : Segue_Unary<"ceil", Segue_FloatTensor, "takes the next whole number above">;
def Segue_TruncOp : Segue_Unary<"trunc", Segue_FloatTensor, "drops what follows the decimal point">;
def Segue_RoundOp : Segue_Unary<"round", Segue_FloatTensor, "takes the nearest whole number, of two the even one">;
def Segue_ExpOp : Segue_Unary<"exp", Segue_FloatTensor, "takes e to the power of the input">;
def Segue_Expm1Op : Segue_Unary<"expm1", Segue_FloatTensor, "takes exp(x) - 1, exact near 0">;
def Segue_LogOp : Segue_Unary<"log", Segue_FloatTensor, "takes the natural logarithm">;
def Segue_Log1pOp : Segue_Unary<"log1p", Segue_FloatTensor, "takes log(1 + x), exact near 0">;
def Segue_SqrtOp : Segue_Unary<"sqrt", Segue_FloatTensor, "takes the square root">;
def Segue_RsqrtOp : Segue_Unary<"rsqrt", Segue_FloatTensor, "takes 1 / sqrt(x)">;
def Segue_SinOp : Segue_Unary<"sin", Segue_FloatTensor, "takes the sine, input in radians">;
def Segue_CosOp : Segue_Unary<"cos", Segue_FloatTensor, "takes the cosine, input in radians">;
def Segue_TanhOp : Segue_Unary<"tanh", Segue_FloatTensor, "takes the hyperbolic tangent">;
def Segue_ErfOp : Segue_Unary<"erf", Segue_FloatTensor, "takes the error function">;
def Segue_NotOp : Segue_Unary<"not", Segue_BoolTensor, "inverts a truth value", "i1"> { let hasFolder = 1; }

// Composite: expanded by `segue-expand`.
def Segue_SigmoidOp : Segue_Unary<"sigmoid", Segue_FloatTensor, "takes 1 / (1 + exp(-x))">;
def Segue_SiluOp : Segue_Unary<"silu", Segue_FloatTensor, "takes x * sigmoid(x)">;
def Segue_ReluOp : Segue_Unary<"relu", Segue_FloatTensor, "takes max(x, 0)">;

def Segue_GeluOp : Segue_Op<"gelu", [Pure, SameOperandsAndResultType]> {
  let summary = "takes the Gaussian error linear unit";
  let description = [{
    `erf`: `x / 2 * (1 + erf(x / sqrt(2)))`. `tanh`:
    `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))` (Hendrycks and
    Gimpel, arXiv:1606.08415).

    Example: `%y = segue.gelu tanh %x : tensor<4x8xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$input, Segue_GeluKindAttr:$kind);
  let results = (outs Segue_FloatTensor:$result);
  let assemblyFormat = "$kind $input attr-dict `:` type($result)";
}

def Segue_AddOp : Segue_Binary<"add", Segue_NumberTensor, "adds", [Commutative]> {
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}
def Segue_SubOp : Segue_Binary<"sub", Segue_NumberTensor, "subtracts"> { let hasFolder = 1; }
def Segue_MulOp : Segue_Binary<"mul", Segue_NumberTensor, "multiplies", [Commutative]> { let hasFolder = 1; }
def Segue_DivOp : Segue_Binary<"div", Segue_FloatTensor, "divides"> { let hasFolder = 1; }
def Segue_RemOp : Segue_Op<"rem", [Pure, SameOperandsAndResultType]> {
  let summary = "gives what lhs has over whole multiples of rhs, with the sign of lhs";
  let description = [{
    C's `fmod`: `lhs - trunc(lhs / rhs) * rhs` without rounding, however large
    the quotient. NaN where `rhs` is 0 or `lhs` is infinite; `lhs` where `rhs` is
    infinite.

    Example: `%y = segue.rem %a, %b : tensor<4xf32>`
  }];
  let arguments = (ins Segue_LibraryTensor:$lhs, Segue_LibraryTensor:$rhs);
  let results = (outs Segue_LibraryTensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($result)";
}
def Segue_MaxOp : Segue_Binary<"max", Segue_NumberTensor, "takes the larger; NaN if either is NaN", [Commutative]> { let hasFolder = 1; }
def Segue_MinOp : Segue_Binary<"min", Segue_NumberTensor, "takes the smaller; NaN if either is NaN", [Commutative]> { let hasFolder = 1; }
def Segue_PowOp : Segue_Binary<"pow", Segue_FloatTensor, "takes lhs to the power of rhs"> { let hasFolder = 1; }
def Segue_AndOp : Segue_Binary<"and", Segue_BitsTensor, "is true where both are; of integers, bit by bit", [Commutative], "i1"> {
  let hasFolder = 1;
}
def Segue_OrOp : Segue_Binary<"or", Segue_BitsTensor, "is true where either is; of integers, bit by bit", [Commutative], "i1"> {
  let hasFolder = 1;
}

def Segue_DetachOp : Segue_Op<"detach", [Pure, SameOperandsAndResultType]> {
  let summary = "gives its operand, and no gradient to it";
  let description = [{
    Where a model says that a value counts as a constant. `segue-expand` leaves
    the operand in its place.

    Example: `%y = segue.detach %x : tensor<4xf32>`
  }];
  let arguments = (ins Segue_Tensor:$input);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` type($result)";
}

def Segue_CompareOp : Segue_Op<"compare", [Pure, SameTypeOperands, SameOperandsAndResultShape]> {
  let summary = "compares elements";
  let description = [{
    Float comparisons are ordered, except `ne`: with a NaN all are false but
    `ne`. Integers compare signed; of truth values, false is the smaller.

    Example: `%m = segue.compare lt %a, %b : tensor<4xf32> -> tensor<4xi1>`
  }];
  let arguments = (ins Segue_PredicateAttr:$predicate, Segue_Tensor:$lhs, Segue_Tensor:$rhs);
  let results = (outs Segue_BoolTensor:$result);
  let assemblyFormat = "$predicate $lhs `,` $rhs attr-dict `:` type($lhs) `->` type($result)";
  let builders = [OpBuilder<(ins "::segue::Predicate":$predicate, "::mlir::Value":$lhs, "::mlir::Value":$rhs)>];
  let hasFolder = 1;
}

def Segue_SelectOp : Segue_Op<"select", [Pure, AllTypesMatch<["onTrue", "onFalse", "result"]>,
                                         AllShapesMatch<["condition", "result"]>]> {
  let summary = "picks from one of two values by a condition";
  let description = [{
    Example: `%y = segue.select %c, %a, %b : tensor<4xi1>, tensor<4xf32>`
  }];
  let arguments = (ins Segue_BoolTensor:$condition, Segue_Tensor:$onTrue, Segue_Tensor:$onFalse);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$condition `,` $onTrue `,` $onFalse attr-dict `:` type($condition) `,` type($result)";
  let hasFolder = 1;
}

def Segue_CastOp : Segue_Op<"cast", [Pure, SameOperandsAndResultShape]> {
  let summary = "converts the element type";
  let description = [{
    Float to narrower float rounds to nearest even. Float to integer rounds
    toward zero and saturates; NaN gives 0. To i1: true where not zero.
    From i1: 0 or 1.

    Example: `%y = segue.cast %x : tensor<4xf32> -> tensor<4xbf16>`
  }];
  let arguments = (ins Segue_Tensor:$input);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` type($input) `->` type($result)";
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::mlir::Type":$elementType)>];
  let hasFolder = 1;
}

//===----------------------------------------------------------------------===//
// Values from nothing.
//===----------------------------------------------------------------------===//

def Segue_ConstantOp : Segue_Op<"constant", [Pure, ConstantLike, AllTypesMatch<["value", "result"]>]> {
  let summary = "is a value known when compiling";
  let description = [{
    (C1) a resource has the bytes of all elements, one for each i1, or none at
    all, as in text that leaves them out to be read.

    Example: `%c = segue.constant dense<1.0> : tensor<4xf32>`
  }];
  let arguments = (ins ElementsAttr:$value);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "attr-dict $value";
  let extraClassDeclaration = [{
    /// Returns the element that all others equal, or null where that is not known, as of a resource.
    ::mlir::Attribute getSplat();
  }];
  let hasVerifier = 1;
  let builders = [
    // A splat of `value`, converted to the element type of `type`.
    OpBuilder<(ins "::mlir::RankedTensorType":$type, "double":$value)>];
  let hasFolder = 1;
}

def Segue_IotaOp : Segue_Op<"iota", [Pure]> {
  let summary = "counts along a dimension";
  let description = [{
    `result[i0, ..., in] = i<dim>`. (C1) `dim` is a dimension of the result.

    Example: `%i = segue.iota dim 1 : tensor<4x8xi32>`
  }];
  let arguments = (ins I64Attr:$dim);
  let results = (outs Segue_NumberTensor:$result);
  let assemblyFormat = "`dim` $dim attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Segue_RandomOp : Segue_Op<"random", [Pure]> {
  let summary = "draws uniform numbers from [0, 1), by counter";
  let description = [{
    Philox4x32-10 (Salmon et al., SC 2011): the key is `seed`, the counter is
    (element index / 4, `step`, `id`), so that an element depends on nothing
    but (seed, step, id, its index). Recomputing, reordering and CSE never
    change a value, and no mask needs to be saved. `id` is fixed when the
    graph is made, once per op of the source.

    The counter words are (low 32 bits of index/4, high 32 bits of index/4 xor
    id, low 32 bits of step, high 32 bits of step); the key words are the low
    and high 32 bits of seed. Element i takes word i % 4, shifted right by 8,
    times 2^-24.

    Example: `%u = segue.random %seed, %step id 3 : tensor<4x8xf32>`
  }];
  let arguments = (ins Segue_I64Scalar:$seed, Segue_I64Scalar:$step, I64Attr:$id);
  let results = (outs Segue_F32Tensor:$result);
  let assemblyFormat = "$seed `,` $step `id` $id attr-dict `:` type($result)";
}

//===----------------------------------------------------------------------===//
// Shape ops move elements and compute nothing. They become views or are fused
// into kernels.
//===----------------------------------------------------------------------===//

def Segue_ReshapeOp : Segue_Op<"reshape", [Pure]> {
  let summary = "gives the same elements, in row-major order, another shape";
  let description = [{
    (C1) operand and result have as many elements. (C2) and one element type.

    Example: `%y = segue.reshape %x : tensor<4x6xf32> -> tensor<2x12xf32>`
  }];
  let arguments = (ins Segue_Tensor:$input);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` type($input) `->` type($result)";
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::llvm::ArrayRef<int64_t>":$shape)>];
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Segue_TransposeOp : Segue_Op<"transpose", [Pure]> {
  let summary = "permutes dimensions";
  let description = [{
    Dimension k of the result is dimension `permutation[k]` of the operand.
    (C1) `permutation` is one of all dimensions. (C2) the result has the
    permuted shape and the element type of the operand.

    Example: `%y = segue.transpose %x [1, 0] : tensor<4x6xf32> -> tensor<6x4xf32>`
  }];
  let arguments = (ins Segue_Tensor:$input, DenseI64ArrayAttr:$permutation);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$input $permutation attr-dict `:` type($input) `->` type($result)";
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::llvm::ArrayRef<int64_t>":$permutation)>];
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Segue_BroadcastOp : Segue_Op<"broadcast", [Pure]> {
  let summary = "repeats a value along new or unit dimensions";
  let description = [{
    Dimension k of the operand becomes dimension `dims[k]` of the result; the
    result is constant along all others. (C1) `dims` has one entry per
    dimension of the operand, strictly increasing, inside the result.
    (C2) an operand dimension equals its result dimension or is 1. (C3) one
    element type.

    Example: `%y = segue.broadcast %b dims [2] : tensor<8xf32> -> tensor<2x4x8xf32>`
  }];
  let arguments = (ins Segue_Tensor:$input, DenseI64ArrayAttr:$dims);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$input `dims` $dims attr-dict `:` type($input) `->` type($result)";
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::llvm::ArrayRef<int64_t>":$dims,
                                 "::llvm::ArrayRef<int64_t>":$shape)>];
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Segue_SliceOp : Segue_Op<"slice", [Pure]> {
  let summary = "cuts a box out of a tensor";
  let description = [{
    `result[i...] = input[starts + i * steps...]`. (C1) `starts`, `limits` and
    `steps` have one entry per dimension. (C2) `0 <= start <= limit <= extent`
    and `step >= 1`. (C3) the result has extent
    `ceil((limit - start) / step)` and the element type of the operand.

    Example: `%y = segue.slice %x [0, 2] to [4, 6] by [1, 2] : tensor<4x6xf32> -> tensor<4x2xf32>`
  }];
  let arguments = (ins Segue_Tensor:$input, DenseI64ArrayAttr:$starts, DenseI64ArrayAttr:$limits,
                       DenseI64ArrayAttr:$steps);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$input $starts `to` $limits `by` $steps attr-dict `:` type($input) `->` type($result)";
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::llvm::ArrayRef<int64_t>":$starts,
                                 "::llvm::ArrayRef<int64_t>":$limits, "::llvm::ArrayRef<int64_t>":$steps)>];
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Segue_PadOp : Segue_Op<"pad", [Pure]> {
  let summary = "surrounds and spreads a tensor with a value";
  let description = [{
    `low` and `high` elements of `value` are put before and after each
    dimension and `interior` between its elements: the derivative of `slice`.
    (C1) one entry per dimension each, none negative. (C2) the result has
    extent `low + extent + (extent - 1) * interior + high`. (C3) `value` has
    the element type of the operand.

    Example: `%y = segue.pad %x low [0, 1] high [0, 2] interior [0, 0] value 0.0 : f32 : tensor<4x6xf32> -> tensor<4x9xf32>`
  }];
  let arguments = (ins Segue_Tensor:$input, DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high,
                       DenseI64ArrayAttr:$interior, TypedAttrInterface:$value);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = [{
    $input `low` $low `high` $high `interior` $interior `value` $value attr-dict
    `:` type($input) `->` type($result)
  }];
  // The value is zero.
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::llvm::ArrayRef<int64_t>":$low,
                                 "::llvm::ArrayRef<int64_t>":$high, "::llvm::ArrayRef<int64_t>":$interior)>];
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Segue_ConcatOp : Segue_Op<"concat", [Pure]> {
  let summary = "puts tensors one after another along a dimension";
  let description = [{
    (C1) at least one operand. (C2) `dim` is a dimension. (C3) all shapes agree
    elsewhere, and the result's extent there is the sum. (C4) one element type.

    Example: `%y = segue.concat %a, %b dim 1 : tensor<4x2xf32>, tensor<4x3xf32> -> tensor<4x5xf32>`
  }];
  let arguments = (ins Variadic<Segue_Tensor>:$inputs, I64Attr:$dim);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$inputs `dim` $dim attr-dict `:` type($inputs) `->` type($result)";
  let builders = [OpBuilder<(ins "::mlir::ValueRange":$inputs, "int64_t":$dim)>];
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

//===----------------------------------------------------------------------===//
// Reductions and contractions. Sums of bf16 and f16 accumulate in f32, of f64 in f64.
//===----------------------------------------------------------------------===//

def Segue_ReduceOp : Segue_Op<"reduce", [Pure]> {
  let summary = "combines all elements along some dimensions";
  let description = [{
    The reduced dimensions are gone from the result. `max` and `min` give NaN
    if there is one. (C1) `dims` is strictly increasing, inside the operand.
    (C2) the result has the remaining shape and the element type of the
    operand. (C3) `mean` needs a float.

    Example: `%s = segue.reduce sum %x dims [0, 2] : tensor<2x4x8xf32> -> tensor<4xf32>`
  }];
  let arguments = (ins Segue_ReduceKindAttr:$kind, Segue_NumberTensor:$input,
                       DenseI64ArrayAttr:$dims);
  let results = (outs Segue_NumberTensor:$result);
  let assemblyFormat = "$kind $input `dims` $dims attr-dict `:` type($input) `->` type($result)";
  let builders = [OpBuilder<(ins "::segue::ReduceKind":$kind, "::mlir::Value":$input,
                                 "::llvm::ArrayRef<int64_t>":$dims)>];
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Segue_CumsumOp : Segue_Op<"cumsum", [Pure, SameOperandsAndResultType]> {
  let summary = "sums all elements up to each along a dimension";
  let description = [{
    `result[..., i, ...] = sum over k <= i of x[..., k, ...]` or, with `reverse`,
    over k >= i, in the order of the dimension. Floats accumulate in f64 and are
    rounded once. (C1) `dim` is a dimension.

    Example: `%y = segue.cumsum %x dim 1 reverse : tensor<4x8xf32>`
  }];
  let arguments = (ins Segue_NumberTensor:$input, I64Attr:$dim, UnitAttr:$reverse);
  let results = (outs Segue_NumberTensor:$result);
  let assemblyFormat = "$input `dim` $dim (`reverse` $reverse^)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Segue_CummaxOp : Segue_Op<"cummax", [Pure, SameOperandsAndResultType]> {
  let summary = "takes the largest of all elements up to each along a dimension";
  let description = [{
    `result[..., i, ...] = max over k <= i of x[..., k, ...]`; NaN from the first
    NaN on. The gradient of an element goes to the last of those that are the
    largest. (C1) `dim` is a dimension.

    Example: `%y = segue.cummax %x dim 1 : tensor<4x8xf32>`
  }];
  let arguments = (ins Segue_NumberTensor:$input, I64Attr:$dim);
  let results = (outs Segue_NumberTensor:$result);
  let assemblyFormat = "$input `dim` $dim attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Segue_RecurrenceOp : Segue_Op<"recurrence", [Pure, SameOperandsAndResultType]> {
  let summary = "adds to each element a multiple of the result before it, along a dimension";
  let description = [{
    `result[..., i, ...] = factors[..., i, ...] * result[..., i - 1, ...] + x[..., i, ...]`
    or, with `reverse`, of `i + 1`, in the order of the dimension. The first
    element is that of `x`, whatever its factor. Between the elements the value is
    f64, and each is rounded once. (C1) `dim` is a dimension.

    Example: `%y = segue.recurrence %a, %x dim 1 reverse : tensor<4x8xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$factors, Segue_FloatTensor:$input, I64Attr:$dim, UnitAttr:$reverse);
  let results = (outs Segue_FloatTensor:$result);
  let assemblyFormat = "$factors `,` $input `dim` $dim (`reverse` $reverse^)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Segue_DotGeneralOp : Segue_Op<"dot_general", [Pure]> {
  let summary = "multiplies and sums over shared dimensions: any batched matmul";
  let description = [{
    The result has the batch dimensions (in the order of `lhs_batch`), then
    the remaining dimensions of `lhs`, then those of `rhs`; it sums over pairs
    of contracting dimensions. `bias`, where there is one, is added to every
    row: it is put there by `segue-form-kernels`, after derivatives were taken.

    Constraints: (C1) dimension lists hold distinct dimensions of their
    operand. (C2) `lhs_batch` and `rhs_batch`, `lhs_contract` and
    `rhs_contract` are as long as each other and pair equal extents. (C3) one
    float element type. (C4) the result has the shape above; its element type
    is that of the operands, or f32, but f64 of f64. (C5) `bias` has the extent of the last
    dimension of the result, and its element type or f32, likewise.

    Example: `%c = segue.dot_general %a, %b batch [0] x [0] contract [2] x [1] : tensor<2x4x8xf32>, tensor<2x8x3xf32> -> tensor<2x4x3xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$lhs, Segue_FloatTensor:$rhs, Optional<Segue_FloatTensor>:$bias,
                       DenseI64ArrayAttr:$lhsBatch, DenseI64ArrayAttr:$rhsBatch,
                       DenseI64ArrayAttr:$lhsContract, DenseI64ArrayAttr:$rhsContract);
  let results = (outs Segue_FloatTensor:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs (`bias` $bias^ `:` type($bias))? `batch` $lhsBatch `x` $rhsBatch `contract` $lhsContract `x` $rhsContract
    attr-dict `:` type($lhs) `,` type($rhs) `->` type($result)
  }];
  let builders = [OpBuilder<(ins "::mlir::Value":$lhs, "::mlir::Value":$rhs,
                                 "::llvm::ArrayRef<int64_t>":$lhsBatch, "::llvm::ArrayRef<int64_t>":$rhsBatch,
                                 "::llvm::ArrayRef<int64_t>":$lhsContract,
                                 "::llvm::ArrayRef<int64_t>":$rhsContract)>];
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
  let extraClassDeclaration = [{
    /// Dimensions of an operand that are neither batch nor contracted, in order.
    ::llvm::SmallVector<int64_t> getLhsFree();
    ::llvm::SmallVector<int64_t> getRhsFree();
  }];
}

def Segue_AttentionOp : Segue_Op<"attention", [Pure, AttrSizedOperandSegments, AllTypesMatch<["q", "result"]>,
                                               AllTypesMatch<["k", "v"]>]> {
  let summary = "computes scaled dot product attention";
  let description = [{
    `result = softmax(scale * q @ k^T + mask) @ v` per batch and head, kept
    whole so that targets can use a flash kernel. With `causal`, row i sees
    keys 0 to i. `lse` is the logarithm of the sum of exponentials of a row of
    scaled, masked scores: what the derivative needs. A row that sees no key
    gives zeros, and minus infinity in `lse`.

    With `dropout`, each weight of the softmax is 0 with that probability, and
    is divided by 1 less it otherwise: weight i, in row-major order of [batch,
    heads, rows, keys], is 0 where element i of `segue.random` of `seed`, `step` and `id` is
    less than `dropout`, as f32. No mask is ever whole.

    Constraints: (C1) `q` is [batch, heads, rows, dim], `k` and `v` are
    [batch, heads, keys, dim]; batch, heads and dim agree. (C2) `mask` has
    rank 4 and dimensions that equal [batch, heads, rows, keys] or are 1; i1 keeps where
    true, a float is added to the scores. (C3) one float element type for q, k, v and
    the result, which has the shape of `q`. (C4) `lse` is f32 [batch, heads,
    rows]. (C5) `dropout` is at least 0 and less than 1, as f32, and comes with `seed`, `step` and `id`.

    Example: `%o, %l = segue.attention %q, %k, %v causal scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>`
  }];
  let arguments = (ins Segue_LibraryTensor:$q, Segue_LibraryTensor:$k, Segue_LibraryTensor:$v,
                       Optional<Segue_Tensor>:$mask, Optional<Segue_I64Scalar>:$seed,
                       Optional<Segue_I64Scalar>:$step, OptionalAttr<F64Attr>:$dropout, OptionalAttr<I64Attr>:$id,
                       UnitAttr:$causal, F64Attr:$scale);
  let results = (outs Segue_LibraryTensor:$result, Segue_F32Tensor:$lse);
  let assemblyFormat = [{
    $q `,` $k `,` $v (`mask` $mask^ `:` type($mask))? (`dropout` $dropout^ `by` $seed `,` $step `id` $id)?
    (`causal` $causal^)? `scale` $scale
    attr-dict `:` type($q) `,` type($k) `->` type($lse)
  }];
  let builders = [OpBuilder<(ins "::mlir::Value":$q, "::mlir::Value":$k, "::mlir::Value":$v,
                                 "::mlir::Value":$mask, "bool":$causal, "double":$scale)>];
  let hasVerifier = 1;
}

// Result types are inferred from operands in front of the optional one.
def Segue_AttentionGradOp : Segue_Op<"attention_grad", [Pure, AttrSizedOperandSegments, AllTypesMatch<["q", "gradQ"]>,
                                                 AllTypesMatch<["k", "v", "gradK", "gradV"]>,
                                                 TypesMatchWith<"`out` has the type of `q`", "q", "out", "$_self">,
                                                 TypesMatchWith<"`grad` has the type of `q`", "q", "grad", "$_self">]> {
  let summary = "gives the gradients of attention for q, k and v";
  let description = [{
    From the operands and results of `segue.attention` and the gradient of its
    result (Dao et al., arXiv:2205.14135, algorithm 4). Shapes are those of
    the forward op; no gradient is given for a mask.
    (C1) `out` and `grad` have the type of `q`, `lse` is f32 [batch, heads,
    rows]. (C2) the results have the types of q, k and v. (C3) q, k, v,
    `mask` and `dropout` satisfy the constraints of `segue.attention`.

    Example: `%dq, %dk, %dv = segue.attention_grad %q, %k, %v out %o lse %l grad %g causal scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>`
  }];
  let arguments = (ins Segue_LibraryTensor:$q, Segue_LibraryTensor:$k, Segue_LibraryTensor:$v,
                       Optional<Segue_Tensor>:$mask, Optional<Segue_I64Scalar>:$seed,
                       Optional<Segue_I64Scalar>:$step, Segue_LibraryTensor:$out, Segue_F32Tensor:$lse,
                       Segue_LibraryTensor:$grad, OptionalAttr<F64Attr>:$dropout, OptionalAttr<I64Attr>:$id,
                       UnitAttr:$causal, F64Attr:$scale);
  let results = (outs Segue_LibraryTensor:$gradQ, Segue_LibraryTensor:$gradK, Segue_LibraryTensor:$gradV);
  let assemblyFormat = [{
    $q `,` $k `,` $v (`mask` $mask^ `:` type($mask))? `out` $out `lse` $lse `grad` $grad
    (`dropout` $dropout^ `by` $seed `,` $step `id` $id)? (`causal` $causal^)? `scale` $scale
    attr-dict `:` type($q) `,` type($k) `,` type($lse)
  }];
  let builders = [OpBuilder<(ins "::segue::AttentionOp":$forward, "::mlir::Value":$grad)>];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Normalisation and losses: composite, over the last dimension unless said.
// Statistics are f32, of f64 they are f64.
//===----------------------------------------------------------------------===//

def Segue_LayerNormOp : Segue_Op<"layer_norm", [Pure, AttrSizedOperandSegments, AllTypesMatch<["input", "result"]>,
                                             AllTypesMatch<["mean", "rstd"]>]> {
  let summary = "normalises rows to mean 0 and variance 1, then scales and shifts";
  let description = [{
    `result = (x - mean) * rstd * gamma + beta` with `rstd = 1 / sqrt(var +
    eps)`, the variance over n (not n - 1) elements. (C1) `gamma` and `beta`
    have the extent of the last dimension. (C2) `mean` and `rstd` are f32 of
    the shape without the last dimension, or f64 where `input` is f64, as then
    `gamma` and `beta` are.

    Example: `%y, %m, %r = segue.layer_norm %x gamma %g : tensor<8xf32> beta %b : tensor<8xf32> eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$input, Optional<Segue_FloatTensor>:$gamma,
                       Optional<Segue_FloatTensor>:$beta, F64Attr:$eps);
  let results = (outs Segue_FloatTensor:$result, Segue_StatisticsTensor:$mean, Segue_StatisticsTensor:$rstd);
  let assemblyFormat = [{
    $input (`gamma` $gamma^ `:` type($gamma))? (`beta` $beta^ `:` type($beta))? `eps` $eps attr-dict
    `:` type($input) `->` type($mean)
  }];
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::mlir::Value":$gamma, "::mlir::Value":$beta,
                                 "double":$eps)>];
  let hasVerifier = 1;
}

def Segue_RmsNormOp : Segue_Op<"rms_norm", [Pure, AllTypesMatch<["input", "result"]>]> {
  let summary = "scales rows to root mean square 1";
  let description = [{
    `result = x * rstd * gamma` with `rstd = 1 / sqrt(mean(x^2) + eps)` (Zhang
    and Sennrich, arXiv:1910.07467). (C1) `gamma` has the extent of the last
    dimension. (C2) `rstd` is f32 of the shape without the last dimension, or f64 where
    `input` is f64, as then `gamma` is.

    Example: `%y, %r = segue.rms_norm %x gamma %g : tensor<8xf32> eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$input, Optional<Segue_FloatTensor>:$gamma, F64Attr:$eps);
  let results = (outs Segue_FloatTensor:$result, Segue_StatisticsTensor:$rstd);
  let assemblyFormat = [{
    $input (`gamma` $gamma^ `:` type($gamma))? `eps` $eps attr-dict
    `:` type($input) `->` type($rstd)
  }];
  let builders = [OpBuilder<(ins "::mlir::Value":$input, "::mlir::Value":$gamma, "double":$eps)>];
  let hasVerifier = 1;
}

class Segue_Softmax<string mnemonic, string what> : Segue_Op<mnemonic, [Pure, SameOperandsAndResultType]> {
  let summary = what;
  let arguments = (ins Segue_FloatTensor:$input, I64Attr:$dim);
  let results = (outs Segue_FloatTensor:$result);
  let assemblyFormat = "$input `dim` $dim attr-dict `:` type($result)";
  let hasVerifier = 1;
}
def Segue_SoftmaxOp : Segue_Softmax<"softmax", "takes exp(x) / sum(exp(x)) along a dimension"> {
  let description = [{
    The maximum along `dim` is subtracted first. (C1) `dim` is a dimension.

    Example: `%y = segue.softmax %x dim 1 : tensor<4x8xf32>`
  }];
}
def Segue_LogSoftmaxOp : Segue_Softmax<"log_softmax", "takes x - log(sum(exp(x))) along a dimension"> {
  let description = [{
    The maximum along `dim` is subtracted first. (C1) `dim` is a dimension.

    Example: `%y = segue.log_softmax %x dim 1 : tensor<4x8xf32>`
  }];
}

def Segue_CrossEntropyOp : Segue_Op<"cross_entropy", [Pure, AllTypesMatch<["loss", "lse"]>]> {
  let summary = "takes the negative log likelihood of a target per row";
  let description = [{
    `loss[i] = lse[i] - logits[i, targets[i]]` with `lse[i] =
    log(sum_j(exp(logits[i, j])))`; a row whose target is `ignore_index` has
    loss 0. Any other target outside of `[0, classes)` is an error at run time.
    (C1) `logits` is [rows, classes], `targets` is [rows]. (C2) `loss` and
    `lse` are f32 [rows], or f64 where `logits` is f64.

    Example: `%l, %s = segue.cross_entropy %x, %t ignore_index -100 : tensor<4x8xf32>, tensor<4xi64> -> tensor<4xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$logits, Segue_IndexTensor:$targets, I64Attr:$ignoreIndex);
  let results = (outs Segue_StatisticsTensor:$loss, Segue_StatisticsTensor:$lse);
  let assemblyFormat = [{
    $logits `,` $targets `ignore_index` $ignoreIndex attr-dict
    `:` type($logits) `,` type($targets) `->` type($loss)
  }];
  let builders = [OpBuilder<(ins "::mlir::Value":$logits, "::mlir::Value":$targets, "int64_t":$ignoreIndex)>];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Indexing. An index outside of its table is an error at run time, never an
// access outside of the buffer.
//===----------------------------------------------------------------------===//

def Segue_GatherOp : Segue_Op<"gather", [Pure]> {
  let summary = "picks rows of a table by index";
  let description = [{
    `result[i..., j...] = table[indices[i...], j...]`. The derivative for
    `table` is a `segue.scatter_add`. (C1) `table` has a dimension. (C2)
    `result` has the shape of `indices` followed by the trailing dimensions of
    `table`, and its element type.

    Example: `%e = segue.gather %wte[%ids] : tensor<16x8xf32>, tensor<2x4xi64> -> tensor<2x4x8xf32>`
  }];
  let arguments = (ins Segue_Tensor:$table, Segue_IndexTensor:$indices);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$table `[` $indices `]` attr-dict `:` type($table) `,` type($indices) `->` type($result)";
  let builders = [OpBuilder<(ins "::mlir::Value":$table, "::mlir::Value":$indices)>];
  let hasVerifier = 1;
}

def Segue_ScatterAddOp : Segue_Op<"scatter_add", [Pure,
    OptionalTypesMatchWith<"`base` has the type of the result", "result", "base", "$_self">]> {
  let summary = "adds rows into a table by index";
  let description = [{
    `result[indices[i...], j...] += updates[i..., j...]`, from `base` or, without
    it, from zero, in ascending order of i: the sum is deterministic. (C1)
    `result` has a dimension. (C2) `updates` has the shape of `indices` followed
    by the trailing dimensions of `result`, and its element type.

    Example: `%t = segue.scatter_add %u[%ids] : tensor<2x4x8xf32>, tensor<2x4xi64> -> tensor<16x8xf32>`
  }];
  let arguments = (ins Segue_NumberTensor:$updates, Segue_IndexTensor:$indices, Optional<Segue_NumberTensor>:$base);
  let results = (outs Segue_NumberTensor:$result);
  let assemblyFormat = [{
    $updates `[` $indices `]` (`into` $base^)? attr-dict `:` type($updates) `,` type($indices) `->` type($result)
  }];
  let builders = [OpBuilder<(ins "::mlir::Type":$result, "::mlir::Value":$updates, "::mlir::Value":$indices)>];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Layout and structure.
//===----------------------------------------------------------------------===//

def Segue_ToLayoutOp : Segue_Op<"to_layout", [Pure, SameOperandsAndResultShape]> {
  let summary = "brings a tensor to the layout of the result type";
  let description = [{
    The value stays the same; the bytes move, are re-laid or stored in another
    way as the encodings of the types say. (C1) one element type.

    Example: `%y = segue.to_layout %x : tensor<4x8xf32> -> tensor<4x8xf32, #segue.layout<strides = [1, 4]>>`
  }];
  let arguments = (ins Segue_Tensor:$input);
  let results = (outs Segue_Tensor:$result);
  let assemblyFormat = "$input attr-dict `:` type($input) `->` type($result)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Segue_FusedOp : Segue_Op<"fused", [Pure, IsolatedFromAbove, SingleBlockImplicitTerminator<"::segue::YieldOp">]> {
  let summary = "is computed by one kernel";
  let description = [{
    The body holds primitives alone; made by `segue-form-kernels`.
    (C1) the block has one argument per operand, of its type. (C2) the body
    yields one value per result, of its type.

    Example: `%y = segue.fused(%in = %x : tensor<4xf32>) -> tensor<4xf32> { %e = segue.exp %in : tensor<4xf32> segue.yield %e : tensor<4xf32> }`
  }];
  let arguments = (ins Variadic<Segue_Tensor>:$inputs);
  let results = (outs Variadic<Segue_Tensor>:$results);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def Segue_YieldOp : Segue_Op<"yield", [Pure, ReturnLike, Terminator, HasParent<"::segue::FusedOp">]> {
  let summary = "ends the body of `segue.fused`";
  let description = [{
    Example: `segue.yield %e : tensor<4xf32>`
  }];
  let arguments = (ins Variadic<Segue_Tensor>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
  let builders = [OpBuilder<(ins), [{ build($_builder, $_state, ::mlir::ValueRange()); }]>];
}

def Segue_LaunchOp : Segue_Op<"launch", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "calls a kernel that writes its results whole";
  let description = [{
    `kernel` names a `func.func` in the nested module `@kernels`. It takes one
    dense row-major buffer per operand, then one per result, then a range
    [begin, end); the runtime splits [0, `range`) at multiples of `grain`.
    `inPlace` lists pairs (operand, result) that may share one buffer. Made by
    `segue-outline-kernels`.

    Constraints: (C1) the symbol exists, and the function takes two arguments
    more than there are operands and results. (C2) `inPlace` holds pairs of an
    operand and a result with one element type and as many elements. (C3) `range` and `grain` are at least 1.
    (C4) each buffer has the element type of its operand or result (`i8` for `i1`) and, where its size is static, as
    many elements; begin and end are `index`, and the kernel returns an `i64`.

    Example: `%y = segue.launch @k(%x) range 4 grain 1 : (tensor<4xf32>) -> tensor<4xf32>`
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel, Variadic<Segue_Tensor>:$inputs, I64Attr:$range, I64Attr:$grain,
                       DefaultValuedAttr<DenseI64ArrayAttr, "{}">:$inPlace);
  let results = (outs Variadic<Segue_Tensor>:$results);
  let assemblyFormat = [{
    $kernel `(` $inputs `)` `range` $range `grain` $grain attr-dict `:` functional-type($inputs, $results)
  }];
  let hasVerifier = 1;
}

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUEOPS_TD
