//===- LayerQuantizer.cpp - one weight into its stored form ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/LayerQuantizer.h"
#include "LowRank.h"
#include "segue/runtime/Engine/LowBitForms.h"
#include "segue/runtime/Layout/GroupStorage.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>

namespace segue::inline runtime {

/// The number of elements that a thread reads at once.
static constexpr int64_t elementsPerPiece = int64_t(1) << 18;

namespace {

/// The sums that one row adds to the report.
struct RowSums {
  double error = 0, weight = 0, product = 0, restored = 0;
  int64_t nonFinite = -1;
  bool floored = false;

  void add(double value, double back) {
    error += (value - back) * (value - back);
    weight += value * value;
    product += value * back;
    restored += back * back;
  }
};

/// The memory of one thread.
struct Scratch {
  std::vector<float> rows, padded, restored;
  std::vector<uint16_t> scales;
};

/// Quantises single rows into the layer.
class RowWriter {
public:
  RowWriter(const SlabForm &form, ScaleSearch search, QuantizedLayer &layer)
      : form_(form), search_(search), layer_(layer), rowBytes_(layer.size.qweight / uint64_t(layer.size.out)) {}

  RowSums write(int64_t r, std::span<const float> row, Scratch &scratch) const {
    RowSums sums;
    std::span<std::byte> codes = std::span(layer_.qweight).subspan(uint64_t(r) * rowBytes_, rowBytes_);
    std::span<float> restored(scratch.restored);
    if (form_.scheme == SlabScheme::Int4Group) {
      std::copy(row.begin(), row.end(), scratch.padded.begin());
      if (form_.rotated)
        rotateRows(std::span(scratch.padded).first(row.size()));
      sums.nonFinite = quantizeInt4Row(scratch.padded, form_.group, codes, scratch.scales, search_);
      if (sums.nonFinite >= 0 && form_.rotated) // which spreads it
        sums.nonFinite = std::ranges::find_if(row, [](float v) { return !std::isfinite(v); }) - row.begin();
      for (size_t g = 0; g < scratch.scales.size(); ++g)
        std::memcpy(&layer_.scale[2 * (g * size_t(layer_.size.out) + size_t(r))], &scratch.scales[g], 2);
      dequantizeInt4Row(codes, scratch.scales, form_.group, restored);
      if (form_.rotated)
        rotateRows(restored);
    } else {
      StorageType storage = form_.storage();
      RowScale result = quantizeRow(row, storage, codes.first(row.size()), search_);
      std::fill(codes.begin() + ptrdiff_t(row.size()), codes.end(), std::byte(0));
      std::memcpy(&layer_.scale[4 * size_t(r)], &result.scale, 4);
      sums.nonFinite = result.firstNonFinite;
      sums.floored = result.floored;
      dequantizeRow(codes.first(row.size()), storage, result.scale, 0, restored);
    }
    for (size_t i = 0; i < row.size(); ++i)
      sums.add(double(row[i]), double(restored[i]));
    return sums;
  }

private:
  const SlabForm &form_;
  ScaleSearch search_;
  QuantizedLayer &layer_;
  uint64_t rowBytes_;
};

} // namespace

static void summarize(std::span<const RowSums> rows, QuantizedLayer &layer) {
  RowSums total;
  layer.error = {};
  layer.nonFinite.reset();
  for (size_t r = 0; r < rows.size(); ++r) {
    total.error += rows[r].error;
    total.weight += rows[r].weight;
    total.product += rows[r].product;
    total.restored += rows[r].restored;
    layer.error.flooredRows += rows[r].floored;
    if (rows[r].nonFinite >= 0 && !layer.nonFinite)
      layer.nonFinite = {int64_t(r), rows[r].nonFinite};
  }
  if (total.weight > 0) {
    layer.error.relRmse = std::sqrt(total.error / total.weight);
    layer.error.cosine = total.restored > 0 ? total.product / (std::sqrt(total.weight) * std::sqrt(total.restored)) : 0;
  }
}

static void quantizeRows(const SlabForm &form, const SlabSize &size, ScaleSearch search, const RowReader &rows,
                         const Threads &threads, QuantizedLayer &layer) {
  layer.size = size;
  layer.qweight.resize(size.qweight);
  layer.scale.resize(size.scale);
  layer.zeroPoint.assign(size.zeroPoint, std::byte(0));
  std::vector<RowSums> sums(static_cast<size_t>(size.out));
  int64_t rowsPerPiece = std::clamp<int64_t>(elementsPerPiece / size.in, 1, size.out);
  int64_t pieces = (size.out + rowsPerPiece - 1) / rowsPerPiece;
  std::vector<Scratch> scratch(static_cast<size_t>(std::min<int64_t>(threads.count(), pieces)));
  for (Scratch &each : scratch) {
    each.rows.resize(size_t(rowsPerPiece * size.in));
    each.restored.resize(size_t(size.in));
    if (form.scheme == SlabScheme::Int4Group) {
      each.padded.assign(size_t(size.padded), 0.0f);
      each.scales.resize(size_t(size.padded / form.group));
    }
  }
  RowWriter writer(form, search, layer);
  // The failure in the earliest rows is reported, whoever met it.
  std::vector<std::exception_ptr> failures(static_cast<size_t>(pieces));
  std::atomic<bool> failed{false};
  std::atomic<size_t> nextScratch{0};
  std::vector<int> scratchOf(static_cast<size_t>(std::max(threads.count(), 1)), -1);
  threads.forEachItem(pieces, [&](int64_t piece, int64_t thread) {
    if (failed.load(std::memory_order_relaxed))
      return;
    // Fewer pieces than threads: whichever threads come get the scratches.
    int &own = scratchOf[size_t(thread)];
    if (own < 0)
      own = int(nextScratch.fetch_add(1, std::memory_order_relaxed));
    Scratch &mine = scratch[size_t(own)];
    int64_t first = piece * rowsPerPiece, count = std::min(rowsPerPiece, size.out - first);
    std::span<float> values = std::span(mine.rows).first(size_t(count * size.in));
    try {
      rows(first, count, values);
    } catch (...) {
      failures[size_t(piece)] = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
      return;
    }
    for (int64_t r = 0; r < count; ++r)
      sums[size_t(first + r)] = writer.write(first + r, values.subspan(size_t(r * size.in), size_t(size.in)), mine);
  });
  for (const std::exception_ptr &failure : failures)
    if (failure)
      std::rethrow_exception(failure);
  summarize(sums, layer);
}

/// Fits codes and low-rank product in turn.
static void quantizeBesideLowRank(const SlabForm &form, const SlabSize &size, ScaleSearch search, const RowReader &rows,
                                  const Threads &threads, QuantizedLayer &layer) {
  std::vector<float> weight(size_t(size.out * size.in)), rest;
  rows(0, size.out, weight);
  RowReader rowsOfRest = [&](int64_t first, int64_t count, std::span<float> values) {
    std::copy_n(rest.begin() + first * size.in, count * size.in, values.begin());
  };
  SlabForm codes = form;
  codes.rank = 0;
  rest = weight;
  quantizeRows(codes, size, search, rowsOfRest, threads, layer);
  if (layer.nonFinite)
    return;
  constexpr int rounds = 2;
  for (int round = 0; round < rounds; ++round) {
    if (round == 0)
      layer.lowRank = fitLowRank(weight, size.out, size.in, form.rank, threads);
    rest = weight;
    addLowRank(layer.lowRank, size.out, size.in, form.rank, -1, threads, rest);
    quantizeRows(codes, size, search, rowsOfRest, threads, layer);
    dequantizeRows(codes, layer, 0, size.out, rest);
    for (size_t i = 0; i < rest.size(); ++i)
      rest[i] = weight[i] - rest[i];
    layer.lowRank = fitLowRank(rest, size.out, size.in, form.rank, threads);
  }
  addLowRank(layer.lowRank, size.out, size.in, form.rank, -1, threads, rest);
  std::vector<RowSums> sums(1);
  for (size_t i = 0; i < rest.size(); ++i)
    sums[0].add(double(weight[i]), double(weight[i]) - double(rest[i]));
  summarize(sums, layer);
}

void quantizeLayer(const SlabForm &form, const SlabSize &size, ScaleSearch search, const RowReader &rows,
                   const Threads &threads, QuantizedLayer &layer) {
  layer.lowRank = {};
  (form.rank ? quantizeBesideLowRank : quantizeRows)(form, size, search, rows, threads, layer);
}

void dequantizeRows(const SlabForm &form, const QuantizedLayer &layer, int64_t first, int64_t count,
                    std::span<float> values) {
  const SlabSize &size = layer.size;
  uint64_t rowBytes = size.qweight / uint64_t(size.out);
  std::vector<uint16_t> scales(form.scheme == SlabScheme::Int4Group ? size_t(size.padded / form.group) : 0);
  std::vector<float> a(layer.lowRank.a.size()), b(layer.lowRank.b.size());
  std::ranges::transform(layer.lowRank.a, a.begin(), bf16ToFloat);
  std::ranges::transform(layer.lowRank.b, b.begin(), bf16ToFloat);
  for (int64_t r = first; r < first + count; ++r) {
    std::span<const std::byte> codes = std::span(layer.qweight).subspan(uint64_t(r) * rowBytes, rowBytes);
    std::span<float> row = values.subspan(size_t((r - first) * size.in), size_t(size.in));
    if (form.scheme == SlabScheme::Int4Group) {
      for (size_t g = 0; g < scales.size(); ++g)
        std::memcpy(&scales[g], &layer.scale[2 * (g * size_t(size.out) + size_t(r))], 2);
      dequantizeInt4Row(codes, scales, form.group, row);
      restoreRows(form.rotated, form.rank, a.data(), b.data(), r, size.in, row);
      continue;
    }
    float scale, zero = 0;
    std::memcpy(&scale, &layer.scale[4 * size_t(r)], 4);
    if (!layer.zeroPoint.empty())
      std::memcpy(&zero, &layer.zeroPoint[4 * size_t(r)], 4);
    dequantizeRow(codes.first(row.size()), form.storage(), scale, zero, row);
  }
}

} // namespace segue::inline runtime
