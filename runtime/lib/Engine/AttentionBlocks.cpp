//===- AttentionBlocks.cpp - operands of attention in and out of panels ---===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Packing and unpacking shared by attention and its derivative.
//
//===----------------------------------------------------------------------===//

#include "AttentionPlans.h"
#include <cmath>

using namespace segue;

void segue::packRows(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t dim, const void *source,
                     int64_t rowStep, float *wide, float *target, int64_t width) {
  if (type == ElementType::f32)
    return kernels.pack(rows, dim, static_cast<const float *>(source), rowStep, 1, target, width);
  widenRows(kernels, type, rows, dim, source, rowStep, wide, dim);
  kernels.pack(rows, dim, wide, dim, 1, target, width);
}

void segue::packDims(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t dim, const void *source,
                     int64_t rowStep, float *wide, float *target) {
  if (type == ElementType::f32)
    return kernels.pack(dim, rows, static_cast<const float *>(source), 1, rowStep, target, kernels.tileRows);
  widenRows(kernels, type, rows, dim, source, rowStep, wide, dim);
  kernels.pack(dim, rows, wide, 1, dim, target, kernels.tileRows);
}

/// Writes a row of a mask as numbers to add.
static void widenMask(const VectorKernels &kernels, const AttentionSpec &spec, const void *mask, int64_t first,
                      int64_t keys, float *target) {
  int64_t step = spec.maskStrides[3], together = step == 1 ? keys : 1;
  for (int64_t key = 0; key < keys; key += together) {
    const void *at = advance(mask, spec.maskElement, first + key * step);
    if (spec.mask == MaskKind::keep)
      kernels.widenKept(together, static_cast<const uint8_t *>(at), target + key);
    else
      widen(kernels, spec.maskElement, together, at, target + key);
  }
}

void segue::fillMask(const VectorKernels &kernels, const AttentionSpec &spec, const void *mask, int64_t batch,
                     int64_t head, int64_t firstRow, int64_t rows, int64_t keys, float *wide, float *target) {
  const auto &strides = spec.maskStrides;
  int64_t first = batch * strides[0] + head * strides[1] + firstRow * strides[2];
  if (strides[2] == 0) { // one for all rows
    widenMask(kernels, spec, mask, first, keys, wide);
    return kernels.spread(keys, wide, target);
  }
  const float *lines = wide;
  int64_t step = keys;
  if (spec.mask == MaskKind::add && spec.maskElement == ElementType::f32 && strides[3] == 1) {
    lines = static_cast<const float *>(advance(mask, spec.maskElement, first));
    step = strides[2];
  } else {
    for (int64_t row = 0; row < rows; ++row)
      widenMask(kernels, spec, mask, first + row * strides[2], keys, wide + row * keys);
  }
  kernels.transpose(rows, keys, lines, step, target, kernels.panel);
  for (int64_t key = 0; key < keys && rows < kernels.panel; ++key)
    std::fill(target + key * kernels.panel + rows, target + (key + 1) * kernels.panel, 0.0f);
}

void segue::drawDropout(const VectorKernels &kernels, const AttentionSpec &spec, const int64_t *seed,
                        const int64_t *step, int64_t batch, int64_t head, int64_t firstRow, int64_t keys,
                        float *target) {
  DropoutBlock block{.seed = uint64_t(*seed),
                     .step = uint64_t(*step),
                     .id = uint32_t(spec.dropoutId),
                     .first = ((batch * spec.heads + head) * spec.rows + firstRow) * spec.keys,
                     .rowStep = spec.keys,
                     .keys = keys,
                     .leastKept = leastKept(spec.dropout),
                     .factor = 1 / (1 - spec.dropout)};
  kernels.drawFactors(block, target);
}

void segue::writeBlock(const VectorKernels &kernels, ElementType type, int64_t rows, int64_t dim, const float *block,
                       float *wide, void *target, int64_t rowStep) {
  if (type == ElementType::f32)
    return kernels.transpose(dim, rows, block, kernels.panel, static_cast<float *>(target), rowStep);
  kernels.transpose(dim, rows, block, kernels.panel, wide, dim);
  narrowRows(kernels, type, rows, dim, wide, dim, target, rowStep);
}
