//===- BuiltinArgs.h - the runtime's own kernels of a GPU -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The list of kernels that are part of the runtime, and what they take. Read by the host
// and by the kernels. Another kernel is a line of the list, a struct, and a GPU_KERNEL in
// a .cu file of this folder (docs/guides/adding.md).
//
// A struct begins with its addresses of memory, which may be null; the list says how many.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_BUILTINARGS_H
#define SEGUE_LIB_CUDA_BUILTIN_BUILTINARGS_H

#include "segue/runtime/Engine/Attention.h"
#include "segue/runtime/Layout/ElementType.h"
#include <cstddef>
#include <cstdint>

namespace segue::inline runtime {
enum class StorageType : int8_t;
}

namespace segue::inline runtime::cuda {

// The list has, by kernel, its file, its name, its arguments, and the number of addresses in them.
#define SEGUE_BUILTIN_KERNELS(X)                                                                                       \
  X(Attention, attendRows, AttentionKernelArgs, 12)                                                                    \
  X(Attention, attendRowsGrad, AttentionKernelArgs, 12)                                                                \
  X(Attention, attendKeysGrad, AttentionKernelArgs, 12)                                                                \
  X(AttentionBf16x64, attendRowsBf16x64, AttentionKernelArgs, 12)                                                      \
  X(AttentionBf16x64, attendRowsGradBf16x64, AttentionKernelArgs, 12)                                                  \
  X(AttentionBf16x64, attendKeysGradBf16x64, AttentionKernelArgs, 12)                                                  \
  X(AttentionBf16x128, attendRowsBf16x128, AttentionKernelArgs, 12)                                                    \
  X(AttentionBf16x128, attendRowsGradBf16x128, AttentionKernelArgs, 12)                                                \
  X(AttentionBf16x128, attendKeysGradBf16x128, AttentionKernelArgs, 12)                                                \
  X(AttentionBf16x128, attendValuesGradBf16x128, AttentionKernelArgs, 12)                                              \
  X(AttentionBf16x256, attendRowsBf16x256, AttentionKernelArgs, 12)                                                    \
  X(AttentionBf16x256, attendRowsGradBf16x256, AttentionKernelArgs, 12)                                                \
  X(AttentionBf16x256, attendKeysGradBf16x256, AttentionKernelArgs, 12)                                                \
  X(AttentionBf16x256, attendValuesGradBf16x256, AttentionKernelArgs, 12)                                              \
  X(AttentionF16x64, attendRowsF16x64, AttentionKernelArgs, 12)                                                        \
  X(AttentionF16x64, attendRowsGradF16x64, AttentionKernelArgs, 12)                                                    \
  X(AttentionF16x64, attendKeysGradF16x64, AttentionKernelArgs, 12)                                                    \
  X(AttentionF16x128, attendRowsF16x128, AttentionKernelArgs, 12)                                                      \
  X(AttentionF16x128, attendRowsGradF16x128, AttentionKernelArgs, 12)                                                  \
  X(AttentionF16x128, attendKeysGradF16x128, AttentionKernelArgs, 12)                                                  \
  X(AttentionF16x128, attendValuesGradF16x128, AttentionKernelArgs, 12)                                                \
  X(AttentionF16x256, attendRowsF16x256, AttentionKernelArgs, 12)                                                      \
  X(AttentionF16x256, attendRowsGradF16x256, AttentionKernelArgs, 12)                                                  \
  X(AttentionF16x256, attendKeysGradF16x256, AttentionKernelArgs, 12)                                                  \
  X(AttentionF16x256, attendValuesGradF16x256, AttentionKernelArgs, 12)                                                \
  X(AttentionTf32x64, attendRowsTf32x64, AttentionKernelArgs, 12)                                                      \
  X(AttentionTf32x64, attendRowsGradTf32x64, AttentionKernelArgs, 12)                                                  \
  X(AttentionTf32x64, attendKeysGradTf32x64, AttentionKernelArgs, 12)                                                  \
  X(AttentionTf32x64, attendValuesGradTf32x64, AttentionKernelArgs, 12)                                                \
  X(AttentionTf32x128, attendRowsTf32x128, AttentionKernelArgs, 12)                                                    \
  X(AttentionTf32x128, attendRowsGradTf32x128, AttentionKernelArgs, 12)                                                \
  X(AttentionTf32x128, attendKeysGradTf32x128, AttentionKernelArgs, 12)                                                \
  X(AttentionTf32x128, attendValuesGradTf32x128, AttentionKernelArgs, 12)                                              \
  X(CodeOperands, quantizeRows, QuantizeRowsArgs, 6)                                                                   \
  X(CodeOperands, transposeCodes, TransposeCodesArgs, 2)                                                               \
  X(CodeOperands, finishCodes, FinishCodesArgs, 7)                                                                     \
  X(CodeProducts, multiplyCodes, CodesArgs, 6)                                                                         \
  X(CodeProducts, multiplyFewRows, CodesArgs, 6)                                                                       \
  X(CodeProducts, widenCodes, WidenArgs, 6)                                                                            \
  X(CodeProducts, finishColumns, CodesArgs, 6)                                                                         \
  X(Convolution, convolve, ConvolutionArgs, 5)                                                                         \
  X(Convolution, convolveImageGrad, ConvolutionArgs, 5)                                                                \
  X(Convolution, convolveWeightGrad, ConvolutionArgs, 5)                                                               \
  X(Convolution, addParts, PartsArgs, 3)                                                                               \
  X(Gelu, applyGelu, GeluArgs, 2)                                                                                      \
  X(Gradients, addFloats, AddArgs, 2)                                                                                  \
  X(Gradients, scaleFloats, ScaleArgs, 1)                                                                              \
  X(Gradients, countNonFinite, CountArgs, 2)                                                                           \
  X(GroupProducts, multiplyGroups, GroupsArgs, 4)                                                                      \
  X(GroupProducts, multiplyGroupsOuter, GroupsArgs, 4)                                                                 \
  X(LowBit, rotateRows, RotateArgs, 1)                                                                                 \
  X(LowBit, addLowRank, LowRankArgs, 3)                                                                                \
  X(Relayout, copyElements, RelayoutArgs, 7)                                                                           \
  X(Relayout, findRowScales, RelayoutArgs, 7)                                                                          \
  X(Relayout, quantizeGroups, RelayoutArgs, 7)                                                                         \
  X(Relayout, moveGroups, RelayoutArgs, 7)                                                                             \
  X(Sort, sortRuns, SortArgs, 3)                                                                                       \
  X(Sort, mergeRuns, SortArgs, 3)

// The files, and whether their kernels flush denormals, as loops of the CPU do that run on
// its pool.
#define SEGUE_BUILTIN_FILES(X)                                                                                         \
  X(Attention, true)                                                                                                   \
  X(AttentionBf16x64, true)                                                                                            \
  X(AttentionBf16x128, true)                                                                                           \
  X(AttentionBf16x256, true)                                                                                           \
  X(AttentionF16x64, true)                                                                                             \
  X(AttentionF16x128, true)                                                                                            \
  X(AttentionF16x256, true)                                                                                            \
  X(AttentionTf32x64, true)                                                                                            \
  X(AttentionTf32x128, true)                                                                                           \
  X(CodeOperands, true)                                                                                                \
  X(CodeProducts, true)                                                                                                \
  X(Convolution, true)                                                                                                 \
  X(Gelu, true)                                                                                                        \
  X(Gradients, true)                                                                                                   \
  X(GroupProducts, true)                                                                                               \
  X(LowBit, true)                                                                                                      \
  X(Relayout, false)                                                                                                   \
  X(Sort, false)

/// Attention, or its derivative (Attention.h).
struct AttentionKernelArgs {
  const void *q, *k, *v, *mask;
  const int64_t *seed, *step;
  void *out;
  float *lse;
  const void *gradOut;
  void *gradQ, *gradK, *gradV;
  /// The extents, strides and types of all operands; attendRows reads `forward` alone.
  AttentionGradSpec spec;
};

/// The rows, or keys, of a block of attention on tensor cores (TensorAttention.h), and what rows of its operands begin
/// at multiples of.
struct TensorAttention {
  static constexpr int64_t blockRows = 128, alignmentBytes = 16;
};

/// In how many passes a kernel for heads of `width` dims makes its result, each by blocks of its own: registers hold
/// no more columns of the sums. Where `values` is 0, those for dv are made with those for dk.
struct TensorPasses {
  int64_t rows, keys, values;
};
constexpr TensorPasses tensorPasses(ElementType type, int64_t width) {
  if (type == ElementType::f32)
    return width == 64 ? TensorPasses{1, 1, 1} : TensorPasses{1, 2, 1};
  return width == 64 ? TensorPasses{1, 1, 0} : width == 128 ? TensorPasses{1, 1, 1} : TensorPasses{2, 4, 2};
}

/// Whether a kernel for heads of `width` dims can drop weights without values outside of its registers.
constexpr bool tensorDrops(ElementType type, int64_t width) { return width == (type == ElementType::f32 ? 64 : 128); }

/// A product that reads codes (QuantizedMatmul.h).
struct CodesArgs {
  /// multiplyFewRows does so many rows of x at most.
  static constexpr int fewRows = 8;
  /// The operands are those of QuantizedMatmulArgs. finishColumns reads sums of f32 as x; widenCodes writes the panel as y.
  const void *x, *codes, *scales;
  const float *zeroPoints;
  const void *bias;
  void *y;
  int64_t rows, out, in, codeStride, xStride, yStride;
  ElementType xElement, yElement, biasElement;
  StorageType storage;
  bool transposed;
};

/// Rows [firstRow, firstRow + rows) and columns [firstColumn, firstColumn + columns) of a weight of codes as floats:
/// those of group storages, and with `scaled` all, times their scales.
struct WidenArgs {
  CodesArgs codes;
  int64_t firstRow, rows, firstColumn, columns;
  bool scaled;
};

/// The arguments of quantizeRows, which makes rows of x codes of INT8 or E4M3. Those from `columns` up to codeStride are zero.
struct QuantizeRowsArgs {
  const void *x;
  /// The numbers that columns of x are multiplied with first, or null.
  const float *factors;
  /// The numbers that the codes of a row are multiplied with in its sum, or null for 1.
  const float *zeroPoints;
  void *codes;
  float *scales;
  /// The sum of a row's codes, or null.
  float *rowSums;
  int64_t rows, columns, xStride, codeStride;
  ElementType xElement;
  StorageType storage;
};

/// target[c, r] = codes[r, c] of `columns` columns, a multiple of four, all of which lie in rows of codes; zeros from
/// `rows` up to targetStride. Both begin at multiples of 4 bytes, as their rows do.
struct TransposeCodesArgs {
  const void *codes;
  void *target;
  int64_t rows, columns, codeStride, targetStride;
};

/// y = (sums - zeroPoints[column] * rowSums[row]) * rowScales[row] * scales[column] + bias[column], of which null is
/// left out: a zero point is 1 then.
struct FinishCodesArgs {
  const void *sums;
  const float *rowScales, *rowSums, *scales, *zeroPoints;
  const void *bias;
  void *y;
  int64_t rows, columns, sumStride, yStride;
  ElementType biasElement, yElement;
  /// True where sums are int32, and not f32.
  bool isInteger;
};

/// y[i] = gelu tanh of x[i]; x may be y.
struct GeluArgs {
  const void *x;
  void *y;
  int64_t count;
  ElementType element;
};

/// A convolution or a gradient of one, by the names of the forward operation: the result is one of the first three.
struct ConvolutionArgs {
  void *image, *weight, *output;
  const void *bias;
  /// Where the sums of parts go, [parts, results].
  float *sums;
  /// The product of a group, and the depth of a part of its sums.
  int64_t rows, columns, depth, parts, partDepth, results;
  /// Per group.
  int32_t channels, outputs;
  int32_t images, groups;
  /// An axis has the fields of Convolution::Axis (Engine/Library/Convolution.h).
  struct Axis {
    int32_t image, output, taps, stride, dilation, low;
  } axes[3];
  ElementType element;
};

/// result[i] = the sum of its parts in their order, and the bias of its channel.
struct PartsArgs {
  const float *sums;
  const void *bias;
  void *result;
  int64_t parts, results, channels, perChannel;
  ElementType element;
};

/// sum[i] += addend[i].
struct AddArgs {
  float *sum;
  const float *addend;
  int64_t count;
};

/// data[i] *= factor.
struct ScaleArgs {
  float *data;
  int64_t count;
  float factor;
};

/// Adds the numbers of NaN and of infinities to two words of the host's memory. The rows are
/// those of NonFiniteRows.
struct CountArgs {
  static constexpr int mostDims = 40;
  const void *data;
  uint64_t *counts;
  int64_t units, perUnit, elements, innerStride;
  int64_t extents[mostDims], strides[mostDims];
  int32_t dims;
  ElementType element;
};

/// Rotates blocks of 256 numbers in place (LowBitForms.h), one per block of threads.
struct RotateArgs {
  float *data;
  int64_t blocks;
};

/// rows[i, j] += sum over r of a[i, r] * b[r, j], the sum in the order of r.
struct LowRankArgs {
  float *rows;
  const float *a, *b;
  int64_t count, columns, rank;
};

/// A product of groups of rows (GroupedProducts.h). multiplyGroups gives [rows, width] of rows [depth] and a matrix per
/// group, multiplyGroupsOuter a matrix [height, width] per group of rows of both.
struct GroupsArgs {
  const void *a, *b, *ends;
  void *c;
  int64_t rows, groups, height, width, depth;
  ElementType element, index;
  bool transposed;
};

/// A step of sorting `rows` rows of `length` elements (Argsort.h), after which runs of `run` elements are sorted by
/// sortRuns, and of twice as many by mergeRuns.
struct SortArgs {
  const void *x;
  /// The places of elements before this step, [rows, length], which sortRuns does not read, and after it: after the last
  /// step i64, those at [first, first + count) alone.
  const int32_t *from;
  void *to;
  int64_t rows, length, run, first, count;
  ElementType element;
  bool descending, isLast;
};

/// One dimension of a relayout, as DimPlacement has it for both sides.
struct RelayoutDim {
  struct Place {
    int64_t tile, inTile, stride;
    constexpr int64_t at(int64_t index) const {
      return tile == 1 ? index * stride : index / tile * stride + index % tile * inTile;
    }
  };
  /// The indices of the tensor, and those with the padding of the target.
  int64_t extent, padded;
  Place source, target;
  /// The distance, in a row, of elements that follow each other here; 0 for the rows.
  int64_t column;
};

enum class RelayoutForm : int8_t { Move, ThroughInt64, ThroughDouble, ThroughFloat, Quantize };

/// A copy from one layout to another (CopyPlan.h).
struct RelayoutArgs {
  /// A tensor of more dimensions with two indices or more has 2^40 elements.
  static constexpr int mostDims = 40;
  const std::byte *source;
  const void *sourceScales;
  const float *sourceZeroPoints;
  std::byte *target;
  void *targetScales;
  float *targetZeroPoints;
  /// A word of the host's memory: the lowest row that cannot be quantised.
  uint64_t *fault;
  /// Elements of the target with its padding.
  int64_t total;
  int64_t rows, columns;
  /// The groups of a row on each side.
  int64_t sourceGroups, targetGroups;
  /// The dimensions by falling stride of the target; that of the rows, or -1.
  int32_t dims, rowDim;
  /// Bytes of an element, and the bytes that are read and written at once.
  uint8_t sourceBytes, targetBytes, sourceWord, targetWord;
  ElementType sourceElement, targetElement;
  StorageType sourceStorage, targetStorage;
  RelayoutForm form;
  RelayoutDim dim[mostDims];
};
static_assert(sizeof(RelayoutArgs) <= 4096, "arguments of a kernel are no larger before CUDA 12.1");

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_BUILTIN_BUILTINARGS_H
