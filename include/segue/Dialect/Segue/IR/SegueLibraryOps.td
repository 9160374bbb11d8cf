//===- SegueLibraryOps.td - ops that a library computes ----*- tablegen -*-===//
//
// Ops on dense tensors that become calls of the device's library
// (prog.library_call). SegueOps.td includes them.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUELIBRARYOPS_TD
#define SEGUE_DIALECT_SEGUE_IR_SEGUELIBRARYOPS_TD

include "segue/Dialect/Segue/IR/SegueTypes.td"

//===----------------------------------------------------------------------===//
// Convolutions: calls of the library (prog.library_call).
//===----------------------------------------------------------------------===//

/// Convolutions over `dims` dimensions and their gradients: the same products of elements
/// of an image, a weight and an output, summed over two of the three.
class Segue_Convolution<string mnemonic, int dims, string what, dag operands, string result, string head, string types>
    : Segue_Op<mnemonic, [Pure]> {
  let summary = what;
  let arguments = !con(operands, (ins DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high,
                                      DenseI64ArrayAttr:$dilations, I64Attr:$groups));
  let results = (outs Segue_LibraryTensor:$result);
  let assemblyFormat = head # " `strides` $strides `low` $low `high` $high `dilations` $dilations `groups` $groups "
                       "attr-dict `:` " # types # " `->` type($result)";
  let hasVerifier = 1;
  let extraClassDeclaration = "/// Dimensions of the places of an image.\nstatic constexpr int64_t kDims = " # !cast<string>(dims) # [{;
    /// Numbers that a library call gets besides the tensors.
    ::llvm::SmallVector<int64_t> getLibraryNumbers() {
      ::llvm::SmallVector<int64_t> numbers;
      for (::llvm::ArrayRef<int64_t> perDim : {getStrides(), getLow(), getHigh(), getDilations()})
        numbers.append(perDim.begin(), perDim.end());
      numbers.push_back(getGroups());
      return numbers;
    }
    int64_t getLibraryFlops() {
      auto weight = ::llvm::cast<::mlir::RankedTensorType>(}] # !if(!eq(result, "weight"), "getResult()", "getWeight()") # [{.getType());
      auto output = ::llvm::cast<::mlir::RankedTensorType>(}] # !if(!eq(result, "output"), "getResult()", "getGradient()") # [{.getType());
      return 2 * output.getNumElements() * (weight.getNumElements() / weight.getDimSize(0));
    }
  }];
}

def Segue_Conv2dOp
    : Segue_Convolution<"conv2d", 2, "slides a weight over images",
                        (ins Segue_LibraryTensor:$input, Segue_LibraryTensor:$weight, Optional<Segue_LibraryTensor>:$bias),
                        "output", "$input `,` $weight (`bias` $bias^ `:` type($bias))?",
                        "type($input) `,` type($weight)"> {
  let description = [{
    `result[n, o, i, j] = bias[o] + sum over c, y, x of weight[o, c, y, x] *
    input[n, first + c, i * strides[0] + y * dilations[0] - low[0],
    j * strides[1] + x * dilations[1] - low[1]]`, where `first` is the first
    channel of the group of o and elements outside of the image count as zero.
    Sums are f32.

    Constraints: (C1) `input` is [batch, channels, height, width], `weight` is
    [outputs, channels / groups, rows, columns], both and the result have 4
    dimensions. (C2) `strides`, `low`, `high` and `dilations` have 2 entries
    below 2^31; strides, dilations and `groups` are positive, `low` and `high`
    not negative. (C3) `groups` divides channels and outputs, and `weight` has
    its share of the channels. (C4) the spread weight fits into the padded
    image, and the result is [batch, outputs, heights, widths], where it fits
    `(height + low + high - (rows - 1) * dilation - 1) / stride + 1` times. (C5)
    one element type, and no extent of `weight` is 0. (C6) `bias` is [outputs].

    Example: `%y = segue.conv2d %x, %w bias %b : tensor<6xf32> strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>`
  }];
}

def Segue_Conv2dInputGradOp
    : Segue_Convolution<"conv2d_input_grad", 2, "gives the gradient of conv2d for its input",
                        (ins Segue_LibraryTensor:$gradient, Segue_LibraryTensor:$weight), "input",
                        "$gradient `,` $weight", "type($gradient) `,` type($weight)"> {
  let description = [{
    Spreads the gradient of the result of `segue.conv2d` over what each element
    was computed from: a transposed convolution. Constraints are those of
    `segue.conv2d`, whose input has the type of the result.

    Example: `%dx = segue.conv2d_input_grad %g, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x6x5x6xf32>, tensor<6x2x3x3xf32> -> tensor<2x4x9x8xf32>`
  }];
}

def Segue_Conv2dWeightGradOp
    : Segue_Convolution<"conv2d_weight_grad", 2, "gives the gradient of conv2d for its weight",
                        (ins Segue_LibraryTensor:$gradient, Segue_LibraryTensor:$input), "weight",
                        "$gradient `,` $input", "type($gradient) `,` type($input)"> {
  let description = [{
    Sums products of the input of `segue.conv2d` and the gradient of its result
    over images and places. Constraints are those of `segue.conv2d`, whose
    weight has the type of the result.

    Example: `%dw = segue.conv2d_weight_grad %g, %x strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x6x5x6xf32>, tensor<2x4x9x8xf32> -> tensor<6x2x3x3xf32>`
  }];
}

def Segue_Conv3dOp
    : Segue_Convolution<"conv3d", 3, "slides a weight over volumes",
                        (ins Segue_LibraryTensor:$input, Segue_LibraryTensor:$weight, Optional<Segue_LibraryTensor>:$bias),
                        "output", "$input `,` $weight (`bias` $bias^ `:` type($bias))?",
                        "type($input) `,` type($weight)"> {
  let description = [{
    As `segue.conv2d`, with three dimensions of places: tensors have 5 dimensions
    and the lists have 3 entries. Constraints are the same.

    Example: `%y = segue.conv3d %x, %w bias %b : tensor<6xf32> strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x4x5x6x7xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x6x3x4x7xf32>`
  }];
}

def Segue_Conv3dInputGradOp
    : Segue_Convolution<"conv3d_input_grad", 3, "gives the gradient of conv3d for its input",
                        (ins Segue_LibraryTensor:$gradient, Segue_LibraryTensor:$weight), "input",
                        "$gradient `,` $weight", "type($gradient) `,` type($weight)"> {
  let description = [{
    As `segue.conv2d_input_grad`, of `segue.conv3d`.

    Example: `%dx = segue.conv3d_input_grad %g, %w strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x6x3x4x7xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x4x5x6x7xf32>`
  }];
}

def Segue_Conv3dWeightGradOp
    : Segue_Convolution<"conv3d_weight_grad", 3, "gives the gradient of conv3d for its weight",
                        (ins Segue_LibraryTensor:$gradient, Segue_LibraryTensor:$input), "weight",
                        "$gradient `,` $input", "type($gradient) `,` type($input)"> {
  let description = [{
    As `segue.conv2d_weight_grad`, of `segue.conv3d`.

    Example: `%dw = segue.conv3d_weight_grad %g, %x strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x6x3x4x7xf32>, tensor<2x4x5x6x7xf32> -> tensor<6x2x2x3x3xf32>`
  }];
}

//===----------------------------------------------------------------------===//
// Products of groups of rows, whose extents are known when they run: calls of the
// library. Sums are f32.
//===----------------------------------------------------------------------===//

def Segue_GroupedDotOp : Segue_Op<"grouped_dot", [Pure]> {
  let summary = "multiplies each row with the matrix of its group";
  let description = [{
    `result[t, n] = sum over k of rows[t, k] * matrices[e, k, n]` or, with
    `transposed`, of `matrices[e, n, k]`, where e is the group of row t: group e
    has the rows from `ends[e - 1]` (0 for the first) to `ends[e]`, without it.
    Rows behind the last group give zeros. What a mixture of experts computes, its
    rows sorted by expert. An end below the one before it is read as that, and one
    beyond the rows as their number.

    Constraints: (C1) `rows` has 2 dimensions, `matrices` 3 and `ends` 1. (C2)
    there is an end per matrix. (C3) rows are as long as the contracted dimension of
    `matrices`. (C4) one float element type. (C5) the result is [rows, columns].

    Example: `%y = segue.grouped_dot %r, %m transposed by %e : tensor<7x4xf32>, tensor<3x5x4xf32>, tensor<3xi32> -> tensor<7x5xf32>`
  }];
  let arguments = (ins Segue_LibraryTensor:$rows, Segue_LibraryTensor:$matrices, Segue_IndexTensor:$ends,
                       UnitAttr:$transposed);
  let results = (outs Segue_LibraryTensor:$result);
  let assemblyFormat = [{
    $rows `,` $matrices (`transposed` $transposed^)? `by` $ends attr-dict
    `:` type($rows) `,` type($matrices) `,` type($ends) `->` type($result)
  }];
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
  let extraClassDeclaration = [{
    /// Numbers that a library call gets besides the tensors.
    ::llvm::SmallVector<int64_t> getLibraryNumbers() { return {getTransposed()}; }
    /// The flops of the call if every row has a group.
    int64_t getLibraryFlops() { return 2 * getResult().getType().getNumElements() * getRows().getType().getDimSize(1); }
  }];
}

def Segue_GroupedOuterOp : Segue_Op<"grouped_outer", [Pure]> {
  let summary = "sums the outer products of the rows of each group";
  let description = [{
    `result[e, m, n] = sum over the rows t of group e of lhs[t, m] * rhs[t, n]`,
    with groups as in `segue.grouped_dot`: its gradient for the matrices. A group
    without rows gives zeros.

    Constraints: (C1) `lhs` and `rhs` have 2 dimensions and `ends` 1. (C2) both
    have as many rows. (C3) one float element type. (C4) the result is [ends,
    columns of lhs, columns of rhs].

    Example: `%y = segue.grouped_outer %a, %b by %e : tensor<7x4xf32>, tensor<7x5xf32>, tensor<3xi32> -> tensor<3x4x5xf32>`
  }];
  let arguments = (ins Segue_LibraryTensor:$lhs, Segue_LibraryTensor:$rhs, Segue_IndexTensor:$ends);
  let results = (outs Segue_LibraryTensor:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs `by` $ends attr-dict `:` type($lhs) `,` type($rhs) `,` type($ends) `->` type($result)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Numbers that a library call gets besides the tensors.
    ::llvm::SmallVector<int64_t> getLibraryNumbers() { return {}; }
    /// The flops of the call if every row has a group.
    int64_t getLibraryFlops() { return 2 * getLhs().getType().getNumElements() * getRhs().getType().getDimSize(1); }
  }];
}

//===----------------------------------------------------------------------===//
// A product with a function of its results: a call of the library, made by
// segue-fuse-epilogues. Sums are f32.
//===----------------------------------------------------------------------===//

def Segue_DotGeluOp : Segue_Op<"dot_gelu", [Pure]> {
  let summary = "takes gelu tanh of a product";
  let description = [{
    `sums[i..., n] = sum over k of lhs[i..., k] * rhs[k, n] + bias[n]` or, with
    `transposed`, of `rhs[n, k]`, and `result = gelu tanh of sums`. The sums are
    a result where somebody wants them, as the derivative does.

    Constraints: (C1) `lhs` has a dimension or more, `rhs` 2. (C2) rows of `lhs`
    are as long as the contracted dimension of `rhs`. (C3) one float element
    type. (C4) the result and the sums have the shape of `lhs` with the columns
    of `rhs` in the place of its last dimension. (C5) `bias` has an element per
    column.

    Example: `%y, %s = segue.dot_gelu %x, %v transposed bias %b : tensor<8xf32> : tensor<2x3x4xf32>, tensor<8x4xf32> -> tensor<2x3x8xf32>, tensor<2x3x8xf32>`
  }];
  let arguments = (ins Segue_LibraryTensor:$lhs, Segue_LibraryTensor:$rhs, Optional<Segue_LibraryTensor>:$bias,
                       UnitAttr:$transposed);
  let results = (outs Segue_LibraryTensor:$result, Optional<Segue_LibraryTensor>:$sums);
  let assemblyFormat = [{
    $lhs `,` $rhs (`transposed` $transposed^)? (`bias` $bias^ `:` type($bias))? attr-dict
    `:` type($lhs) `,` type($rhs) `->` type($result) (`,` type($sums)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Numbers that a library call gets besides the tensors.
    ::llvm::SmallVector<int64_t> getLibraryNumbers() { return {getTransposed()}; }
    int64_t getLibraryFlops() { return 2 * getResult().getType().getNumElements() * getLhs().getType().getShape().back(); }
  }];
}

//===----------------------------------------------------------------------===//
// Sorted rows: a call of the library, with a workspace among the buffers of the program.
//===----------------------------------------------------------------------===//

def Segue_ArgsortOp : Segue_Op<"argsort", [Pure]> {
  let summary = "gives the places of elements in the order of their row";
  let description = [{
    `result[i..., k]` is the index of the element of the row `input[i..., :]` at
    place `first + k` of its order: ascending or, with `descending`, descending.
    Equal elements keep the order that they have in the row. NaN is the greatest
    element, and all NaN are equal, as are both zeros. The values in their order
    are a gather by the result, which has their derivative.

    Constraints: (C1) `input` has a dimension or more. (C2) rows have an
    element or more, and fewer than 2^31. (C3) the result has the shape of `input` but for its last
    dimension, the number of places. (C4) `first` is not negative, and the last
    place is one of the row.

    Example: `%i = segue.argsort %x descending from 1 : tensor<4x8xf32> -> tensor<4x3xi64>`
  }];
  let arguments = (ins Segue_Tensor:$input, UnitAttr:$descending, DefaultValuedAttr<I64Attr, "0">:$first);
  let results = (outs StaticShapeTensorOf<[I64]>:$result);
  let assemblyFormat = [{
    $input (`descending` $descending^)? (`from` $first^)? attr-dict `:` type($input) `->` type($result)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Numbers that a library call gets besides the tensors.
    ::llvm::SmallVector<int64_t> getLibraryNumbers() { return {getDescending(), static_cast<int64_t>(getFirst())}; }
    /// Comparisons, of which each element takes part in as many as its row can be halved.
    int64_t getLibraryFlops() {
      return getInput().getType().getNumElements() *
             static_cast<int64_t>(::llvm::Log2_64(getInput().getType().getShape().back()) + 1);
    }
    /// The shape of the workspace, of i64: rows that are sorted at a time. A million elements or 16 rows keep any
    /// device busy.
    ::llvm::SmallVector<int64_t> getLibraryWorkspace() {
      int64_t length = getInput().getType().getShape().back(), rows = getInput().getType().getNumElements() / length;
      return {std::clamp<int64_t>(rows, 1, std::max<int64_t>(16, (1 << 20) / length)), length};
    }
  }];
}

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUELIBRARYOPS_TD
