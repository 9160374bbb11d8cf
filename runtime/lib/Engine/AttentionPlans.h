//===- AttentionPlans.h - the engine's attention ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans for attention and its derivative; see Attention.cpp, AttentionGrad.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_ATTENTIONPLANS_H
#define SEGUE_RUNTIME_LIB_ENGINE_ATTENTIONPLANS_H

#include "FloatRows.h"
#include "Scratch.h"
#include "segue/runtime/Engine/Attention.h"
#include "segue/runtime/Engine/Threads.h"
#include <algorithm>
#include <memory>

namespace segue::inline runtime {

std::shared_ptr<const AttentionPlan> makeAttentionPlan(const AttentionSpec &spec, Threads threads,
                                                       std::shared_ptr<Scratch> scratch, const VectorKernels &kernels);
std::shared_ptr<const AttentionGradPlan> makeAttentionGradPlan(const AttentionGradSpec &spec, Threads threads,
                                                               std::shared_ptr<Scratch> scratch,
                                                               const VectorKernels &kernels);

// The declarations below are shared by both plans. A *block* is up to `panel` rows
// of q side by side, one per lane: scores of a block are [keys][panel], so that a
// row's maximum and sum run down a lane and no sum crosses lanes.

/// Returns the number of keys that some row of a block sees.
inline int64_t keysSeen(const AttentionSpec &spec, int64_t firstRow, int64_t rows) {
  return spec.causal ? std::min(spec.keys, firstRow + rows) : spec.keys;
}

/// Returns the index of the first element of the rows of (batch, head) in a tensor.
inline int64_t headOffset(const AttentionStrides &strides, int64_t batch, int64_t head) {
  return batch * strides[0] + head * strides[1];
}

/// Returns the number of elements of packed panels of `width` rows.
inline int64_t packedSize(int64_t rows, int64_t depth, int64_t width) {
  return (rows + width - 1) / width * width * depth;
}

/// Computes c = a * b for one panel of columns: b is [depth][panel], c is [rows][panel],
/// and a is packed in panels of length `aDepth`, of which `depth` count.
inline void multiplyPanel(const VectorKernels &kernels, int64_t rows, int64_t depth, const float *a, int64_t aDepth,
                          const float *b, float *c) {
  kernels.multiplyPacked({.rows = rows,
                          .columns = kernels.panel,
                          .depth = depth,
                          .a = a,
                          .aPanelStep = aDepth * kernels.tileRows,
                          .b = b,
                          .bPanelStep = 0,
                          .bStep = kernels.panel,
                          .c = c,
                          .cStep = kernels.panel});
}

/// Packs `rows` rows of `dim` elements in panels of `width` rows, through
/// `wide` ([rows][dim]) if they are not f32.
void packRows(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t dim, const void *source,
              int64_t rowStep, float *wide, float *target, int64_t width);

/// Packs the transpose in panels of `tileRows` dims: [dims / tileRows][rows][tileRows].
void packDims(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t dim, const void *source,
              int64_t rowStep, float *wide, float *target);

/// Writes the mask of a block as numbers to add: [keys][panel]. `wide` has room for as many.
void fillMask(const VectorKernels &kernels, const AttentionSpec &spec, const void *mask, int64_t batch, int64_t head,
              int64_t firstRow, int64_t rows, int64_t keys, float *wide, float *target);

/// Draws the factors of the weights of a block, [keys][panel]: 0 of those that are dropped.
void drawDropout(const VectorKernels &kernels, const AttentionSpec &spec, const int64_t *seed, const int64_t *step,
                 int64_t batch, int64_t head, int64_t firstRow, int64_t keys, float *target);

/// Writes a block of results, [dim][panel], as `rows` rows of `dim` elements.
void writeBlock(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t dim, const float *block,
                float *wide, void *target, int64_t rowStep);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_ATTENTIONPLANS_H
