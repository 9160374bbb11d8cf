//===- Attention.cpp - scaled dot product attention -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An item of work is a run of rows of one (batch, head): as a rule all of them,
// so that keys and values are packed once. For each block of rows (see
// AttentionPlans.h) the scores of all the keys it sees are computed as
// k q^T, their softmax taken down the lanes, and the result summed as v^T p^T,
// for which the probabilities already lie as a panel. With causal, keys beyond
// a block's last row are never touched.
//
// A block holds panel x keys scores, so memory grows with keys but not with
// rows x keys, and no running maximum is needed.
//
//===----------------------------------------------------------------------===//

#include "AttentionPlans.h"

using namespace segue;

namespace {

struct Buffers {
  float *keys, *values, *query, *scores, *mask, *wideMask, *dropout, *result, *inverseSum, *logSum, *wide, *row;
};

class PanelAttention final : public AttentionPlan {
public:
  PanelAttention(const AttentionSpec &spec, Threads threads, std::shared_ptr<Scratch> scratch,
                 const VectorKernels &kernels)
      : spec_(spec), threads_(threads), scratch_(std::move(scratch)), kernels_(kernels) {
    chooseItems();
    ScratchCutter cutter;
    cutBuffers(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(const AttentionArgs &args) const override {
    auto lock = scratch_->lock();
    threads_.forEachItem(spec_.batch * spec_.heads * runsPerHead_, [&](int64_t item, int64_t thread) {
      isOneRow() ? runRow(args, item, thread) : runItem(args, item, thread);
    });
  }

private:
  void chooseItems();
  Buffers cutBuffers(ScratchCutter &cutter) const;
  void runItem(const AttentionArgs &args, int64_t item, int64_t thread) const;
  void runRow(const AttentionArgs &args, int64_t item, int64_t thread) const;
  /// True if keys and values are read where they lie.
  bool isOneRow() const {
    return spec_.rows == 1 && spec_.element == ElementType::f32 && spec_.dim > 0 && spec_.dim % kernels_.panel == 0;
  }

  AttentionSpec spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  int64_t runsPerHead_ = 1, rowsPerRun_ = 1;
};

} // namespace

/// Chooses the items of work. Heads are cut into runs of rows only if there are too few to balance.
void PanelAttention::chooseItems() {
  int64_t heads = std::max<int64_t>(1, spec_.batch * spec_.heads), threads = threads_.count();
  int64_t blocks = std::max<int64_t>(1, (spec_.rows + kernels_.panel - 1) / kernels_.panel);
  bool balanced = heads % threads == 0 || heads >= 4 * threads;
  int64_t wanted = balanced ? 1 : (4 * threads - 1) / heads + 1;
  int64_t blocksPerRun = (blocks - 1) / std::min(wanted, blocks) + 1;
  rowsPerRun_ = blocksPerRun * kernels_.panel;
  runsPerHead_ = spec_.rows ? (spec_.rows - 1) / rowsPerRun_ + 1 : 0;
}

Buffers PanelAttention::cutBuffers(ScratchCutter &cutter) const {
  int64_t panel = kernels_.panel, tile = kernels_.tileRows, dim = spec_.dim, keys = spec_.keys;
  Buffers buffers{};
  buffers.keys = cutter.floats(packedSize(keys, dim, tile));
  buffers.values = cutter.floats(packedSize(dim, keys, tile));
  buffers.query = cutter.floats(dim * panel);
  buffers.scores = cutter.floats(keys * panel);
  if (spec_.mask != MaskKind::none) {
    buffers.mask = cutter.floats(keys * panel);
    buffers.wideMask = cutter.floats(keys * panel);
  }
  if (spec_.dropout)
    buffers.dropout = cutter.floats(keys * panel);
  buffers.result = cutter.floats(dim * panel);
  buffers.inverseSum = cutter.floats(panel);
  buffers.logSum = cutter.floats(panel);
  if (isOneRow())
    buffers.row = cutter.floats(keys);
  if (spec_.element != ElementType::f32)
    buffers.wide = cutter.floats(std::max(keys, panel) * dim);
  return buffers;
}

void PanelAttention::runItem(const AttentionArgs &args, int64_t item, int64_t thread) const {
  ScratchCutter cutter(scratch_->area(thread));
  Buffers buffers = cutBuffers(cutter);
  int64_t head = item / runsPerHead_ % spec_.heads, batch = item / runsPerHead_ / spec_.heads;
  int64_t firstRow = item % runsPerHead_ * rowsPerRun_, lastRow = std::min(spec_.rows, firstRow + rowsPerRun_);
  int64_t panel = kernels_.panel, tile = kernels_.tileRows, dim = spec_.dim;
  ElementType type = spec_.element;

  int64_t keys = keysSeen(spec_, firstRow, lastRow - firstRow);
  packRows(kernels_, type, keys, dim, advance(args.k, type, headOffset(spec_.k, batch, head)), spec_.k[2], buffers.wide,
           buffers.keys, tile);
  packDims(kernels_, type, keys, dim, advance(args.v, type, headOffset(spec_.v, batch, head)), spec_.v[2], buffers.wide,
           buffers.values);

  for (int64_t row = firstRow; row < lastRow; row += panel) {
    int64_t rows = std::min(panel, lastRow - row), seen = keysSeen(spec_, row, rows);
    const void *q = advance(args.q, type, headOffset(spec_.q, batch, head) + row * spec_.q[2]);
    void *out = advance(args.out, type, headOffset(spec_.out, batch, head) + row * spec_.out[2]);
    packRows(kernels_, type, rows, dim, q, spec_.q[2], buffers.wide, buffers.query, panel);
    prefetchRows(type, std::min(panel, lastRow - row - rows), dim, advance(q, type, rows * spec_.q[2]), spec_.q[2]);
    prefetchRows</*kWrite=*/true>(type, rows, dim, out, spec_.out[2]);
    kernels_.scale(dim * panel, spec_.scale, buffers.query);
    multiplyPanel(kernels_, seen, dim, buffers.keys, dim, buffers.query, buffers.scores);
    if (buffers.mask)
      fillMask(kernels_, spec_, args.mask, batch, head, row, rows, seen, buffers.wideMask, buffers.mask);
    if (buffers.dropout)
      drawDropout(kernels_, spec_, args.seed, args.step, batch, head, row, seen, buffers.dropout);
    kernels_.softmax({buffers.scores, seen, buffers.mask, spec_.causal, row, buffers.dropout, buffers.inverseSum,
                      buffers.logSum});
    multiplyPanel(kernels_, dim, seen, buffers.values, keys, buffers.scores, buffers.result);
    kernels_.scaleColumns(dim, buffers.inverseSum, buffers.result);
    writeBlock(kernels_, type, rows, dim, buffers.result, buffers.wide, out, spec_.out[2]);
    std::copy_n(buffers.logSum, rows, args.lse + (batch * spec_.heads + head) * spec_.rows + row);
  }
}

/// The one row of a head, as when a token is generated: packed, keys and values would be written and read once more
/// for nothing. The row is the first lane of a block whose other lanes hold zeros.
void PanelAttention::runRow(const AttentionArgs &args, int64_t item, int64_t thread) const {
  ScratchCutter cutter(scratch_->area(thread));
  Buffers buffers = cutBuffers(cutter);
  int64_t head = item % spec_.heads, batch = item / spec_.heads;
  int64_t panel = kernels_.panel, dim = spec_.dim, seen = keysSeen(spec_, 0, 1);
  auto floats = [&](const void *data, const auto &strides) {
    return static_cast<const float *>(data) + headOffset(strides, batch, head);
  };
  const float *keys = floats(args.k, spec_.k), *values = floats(args.v, spec_.v);
  std::copy_n(floats(args.q, spec_.q), dim, buffers.query);
  kernels_.scale(dim, spec_.scale, buffers.query);
  kernels_.multiplyRow(seen, dim, buffers.query, keys, spec_.k[2], buffers.row, /*accumulate=*/false, /*bias=*/nullptr);
  std::fill_n(buffers.scores, seen * panel, 0.0f);
  for (int64_t key = 0; key < seen; ++key)
    buffers.scores[key * panel] = buffers.row[key];
  if (buffers.mask)
    fillMask(kernels_, spec_, args.mask, batch, head, 0, 1, seen, buffers.wideMask, buffers.mask);
  if (buffers.dropout)
    drawDropout(kernels_, spec_, args.seed, args.step, batch, head, 0, seen, buffers.dropout);
  kernels_.softmax({buffers.scores, seen, buffers.mask, spec_.causal, 0, buffers.dropout, buffers.inverseSum,
                    buffers.logSum});
  for (int64_t key = 0; key < seen; ++key)
    buffers.row[key] = buffers.scores[key * panel];
  float *out = static_cast<float *>(args.out) + headOffset(spec_.out, batch, head);
  for (int64_t column = 0; column < dim; column += panel)
    kernels_.multiplyBlockRows(1, seen, buffers.row, values + column, spec_.v[2], buffers.result + column, dim,
                               /*accumulate=*/false);
  kernels_.scale(dim, *buffers.inverseSum, buffers.result);
  std::copy_n(buffers.result, dim, out);
  args.lse[batch * spec_.heads + head] = *buffers.logSum;
}

std::shared_ptr<const AttentionPlan> segue::makeAttentionPlan(const AttentionSpec &spec, Threads threads,
                                                              std::shared_ptr<Scratch> scratch,
                                                              const VectorKernels &kernels) {
  return std::make_shared<PanelAttention>(spec, threads, std::move(scratch), kernels);
}
