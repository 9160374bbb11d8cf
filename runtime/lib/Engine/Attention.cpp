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
  float *keys, *values, *query, *scores, *mask, *result, *inverseSum, *logSum, *wide;
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
    threads_.forEachItem(spec_.batch * spec_.heads * runsPerHead_,
                         [&](int64_t item, int64_t thread) { runItem(args, item, thread); });
  }

private:
  void chooseItems();
  Buffers cutBuffers(ScratchCutter &cutter) const;
  void runItem(const AttentionArgs &args, int64_t item, int64_t thread) const;

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
  if (spec_.mask != MaskKind::none)
    buffers.mask = cutter.floats(keys * panel);
  buffers.result = cutter.floats(dim * panel);
  buffers.inverseSum = cutter.floats(panel);
  buffers.logSum = cutter.floats(panel);
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
      fillMask(kernels_, spec_, args.mask, batch, head, row, rows, seen, buffers.mask);
    kernels_.softmax({buffers.scores, seen, buffers.mask, spec_.causal, row, buffers.inverseSum, buffers.logSum});
    multiplyPanel(kernels_, dim, seen, buffers.values, keys, buffers.scores, buffers.result);
    kernels_.scaleColumns(dim, buffers.inverseSum, buffers.result);
    writeBlock(kernels_, type, rows, dim, buffers.result, buffers.wide, out, spec_.out[2]);
    std::copy_n(buffers.logSum, rows, args.lse + (batch * spec_.heads + head) * spec_.rows + row);
  }
}

std::shared_ptr<const AttentionPlan> segue::makeAttentionPlan(const AttentionSpec &spec, Threads threads,
                                                              std::shared_ptr<Scratch> scratch,
                                                              const VectorKernels &kernels) {
  return std::make_shared<PanelAttention>(spec, threads, std::move(scratch), kernels);
}
