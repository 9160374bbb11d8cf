//===- LayerQuantizer.h - one weight into its stored form -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Quantises a weight [out, in] row by row, rows in parallel, and measures what
// that has cost. Rows come from a function, so that no copy of the weight in
// f32 ever exists. The result does not depend on the number of threads: each
// row is computed alone, and sums over rows are added in their order.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_LAYERQUANTIZER_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_LAYERQUANTIZER_H

#include "segue/runtime/Engine/Threads.h"
#include "segue/runtime/Services/SquareQ/SlabForm.h"
#include "segue/runtime/Layout/RowStorage.h"
#include <functional>
#include <vector>

namespace segue::inline runtime {

/// A function that writes rows [first, first + count) of a weight, dense, as f32. It is
/// called from several threads at once; what it throws ends the quantisation.
using RowReader = std::function<void(int64_t first, int64_t count, std::span<float> values)>;

/// The distance of a quantised weight from its original.
struct QuantizationError {
  /// The number of rows whose scale is the floor 1e-8: they lose resolution.
  int64_t flooredRows = 0;
  /// The relative error sqrt(sum (w - w')² / sum w²), w' dequantised to f32; 0 for a zero weight.
  double relRmse = 0;
  /// The cosine between w and w' as vectors; 1 for a zero weight.
  double cosine = 1;
};

/// The factors a [out, rank] and b [rank, in] of a product, bf16.
struct LowRankPair {
  std::vector<uint16_t> a, b;
};

struct QuantizedLayer {
  SlabSize size;
  /// The bytes of the tensors, as stored.
  std::vector<std::byte> qweight, scale, zeroPoint;
  LowRankPair lowRank;
  QuantizationError error;
  /// The row and column of the first element that is NaN or infinite; nothing if there is none.
  std::optional<std::pair<int64_t, int64_t>> nonFinite;
};

/// Quantises into `layer`, whose memory is used again. `size` is that of slabSize for the
/// same form. Throws what `rows` throws.
///
/// With a rank, the nearest matrix of that rank is taken out of the weight before
/// quantising, and is found again for what the codes have left; this is done twice. It
/// takes two copies of the weight in f32.
void quantizeLayer(const SlabForm &form, const SlabSize &size, ScaleSearch search, const RowReader &rows,
                   const Threads &threads, QuantizedLayer &layer);

/// Writes rows [first, first + count) of the layer in f32, dense, `in` wide.
void dequantizeRows(const SlabForm &form, const QuantizedLayer &layer, int64_t first, int64_t count,
                    std::span<float> values);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_LAYERQUANTIZER_H
