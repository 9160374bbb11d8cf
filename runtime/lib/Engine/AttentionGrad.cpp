//===- AttentionGrad.cpp - derivative of attention ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// For each block of rows (see AttentionPlans.h) the probabilities are computed
// again from q, k and lse, then, with delta = sum over dims of out * dout,
//
//   dp = dout v^T,  ds = scale * p * (dp - delta),
//   dq = ds k,  dk += ds^T q,  dv += p^T dout        (arXiv:2205.14135, alg. 4).
//
// With dropout, dp is times the factors of the weights, as p is in dv; they are drawn again.
//
// Scores lie transposed, [keys][panel]: ds and p are then the left operands of
// dk and dv as they are, and a panel on the right for dq. One thread does all
// blocks of a (batch, head), in order, so the sums dk and dv need no other
// thread and come out the same each time.
//
//===----------------------------------------------------------------------===//

#include "AttentionPlans.h"

using namespace segue;

namespace {

struct Buffers {
  // Packed: rows of k and v for the scores, dims of k for dq.
  float *keyRows, *valueRows, *keyDims;
  // A block has q and dout as panels, and as rows with a padded step.
  float *queryPanel, *gradPanel, *queryRows, *gradRows, *outRow;
  float *scores, *grads, *mask, *wideMask, *dropout, *result, *logSum, *delta;
  // Sums over blocks: [keys][padded dim].
  float *gradKeys, *gradValues;
  float *wide;
};

class PanelAttentionGrad final : public AttentionGradPlan {
public:
  PanelAttentionGrad(const AttentionGradSpec &spec, Threads threads, std::shared_ptr<Scratch> scratch,
                     const VectorKernels &kernels)
      : grad_(spec), spec_(grad_.forward), threads_(threads), scratch_(std::move(scratch)), kernels_(kernels),
        padded_((spec_.dim + kernels_.panel - 1) / kernels_.panel * kernels_.panel) {
    ScratchCutter cutter;
    cutBuffers(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(const AttentionGradArgs &args) const override {
    auto lock = scratch_->lock();
    threads_.forEachItem(spec_.batch * spec_.heads, [&](int64_t item, int64_t thread) {
      runHead(args, item / spec_.heads, item % spec_.heads, thread);
    });
  }

private:
  Buffers cutBuffers(ScratchCutter &cutter) const;
  void runHead(const AttentionGradArgs &args, int64_t batch, int64_t head, int64_t thread) const;
  void runBlock(const AttentionGradArgs &args, const Buffers &buffers, int64_t batch, int64_t head, int64_t row) const;
  void loadBlock(const AttentionGradArgs &args, const Buffers &buffers, int64_t batch, int64_t head, int64_t row,
                 int64_t rows) const;

  AttentionGradSpec grad_;
  const AttentionSpec &spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  /// The extent dim, rounded up to whole panels.
  int64_t padded_;
};

} // namespace

Buffers PanelAttentionGrad::cutBuffers(ScratchCutter &cutter) const {
  int64_t panel = kernels_.panel, tile = kernels_.tileRows, dim = spec_.dim, keys = spec_.keys;
  Buffers buffers{};
  buffers.keyRows = cutter.floats(packedSize(keys, dim, tile));
  buffers.valueRows = cutter.floats(packedSize(keys, dim, tile));
  buffers.keyDims = cutter.floats(packedSize(dim, keys, tile));
  buffers.queryPanel = cutter.floats(dim * panel);
  buffers.gradPanel = cutter.floats(dim * panel);
  buffers.queryRows = cutter.floats(padded_ * panel);
  buffers.gradRows = cutter.floats(padded_ * panel);
  buffers.outRow = cutter.floats(dim);
  buffers.scores = cutter.floats(keys * panel);
  buffers.grads = cutter.floats(keys * panel);
  if (spec_.mask != MaskKind::none) {
    buffers.mask = cutter.floats(keys * panel);
    buffers.wideMask = cutter.floats(keys * panel);
  }
  if (spec_.dropout)
    buffers.dropout = cutter.floats(keys * panel);
  buffers.result = cutter.floats(dim * panel);
  buffers.logSum = cutter.floats(panel);
  buffers.delta = cutter.floats(panel);
  buffers.gradKeys = cutter.floats(keys * padded_);
  buffers.gradValues = cutter.floats(keys * padded_);
  if (spec_.element != ElementType::f32)
    buffers.wide = cutter.floats(std::max(keys, panel) * dim);
  return buffers;
}

void PanelAttentionGrad::runHead(const AttentionGradArgs &args, int64_t batch, int64_t head, int64_t thread) const {
  ScratchCutter cutter(scratch_->area(thread));
  Buffers buffers = cutBuffers(cutter);
  int64_t tile = kernels_.tileRows, dim = spec_.dim, keys = spec_.keys;
  ElementType type = spec_.element;
  const void *k = advance(args.k, type, headOffset(spec_.k, batch, head));
  const void *v = advance(args.v, type, headOffset(spec_.v, batch, head));
  packRows(kernels_, type, keys, dim, k, spec_.k[2], buffers.wide, buffers.keyRows, tile);
  packDims(kernels_, type, keys, dim, k, spec_.k[2], buffers.wide, buffers.keyDims);
  packRows(kernels_, type, keys, dim, v, spec_.v[2], buffers.wide, buffers.valueRows, tile);
  std::fill_n(buffers.gradKeys, keys * padded_, 0.0f);
  std::fill_n(buffers.gradValues, keys * padded_, 0.0f);

  for (int64_t row = 0; row < spec_.rows; row += kernels_.panel)
    runBlock(args, buffers, batch, head, row);

  narrowRows(kernels_, type, keys, dim, buffers.gradKeys, padded_,
             advance(args.gradK, type, headOffset(grad_.gradK, batch, head)), grad_.gradK[2]);
  narrowRows(kernels_, type, keys, dim, buffers.gradValues, padded_,
             advance(args.gradV, type, headOffset(grad_.gradV, batch, head)), grad_.gradV[2]);
}

/// Fills what a block needs of q, dout, out and lse. The lanes after the last
/// row get zeros, of which nothing comes.
void PanelAttentionGrad::loadBlock(const AttentionGradArgs &args, const Buffers &buffers, int64_t batch, int64_t head,
                                   int64_t row, int64_t rows) const {
  int64_t panel = kernels_.panel, dim = spec_.dim;
  ElementType type = spec_.element;
  const void *q = advance(args.q, type, headOffset(spec_.q, batch, head) + row * spec_.q[2]);
  const void *out = advance(args.out, type, headOffset(spec_.out, batch, head) + row * spec_.out[2]);
  const void *gradOut = advance(args.gradOut, type, headOffset(grad_.gradOut, batch, head) + row * grad_.gradOut[2]);
  for (float *padding : {buffers.queryRows, buffers.gradRows})
    for (int64_t i = 0; i < rows && dim < padded_; ++i)
      std::fill(padding + i * padded_ + dim, padding + (i + 1) * padded_, 0.0f);
  // The rows of the next block; this block's products hide their coming.
  int64_t next = std::min(panel, spec_.rows - row - rows);
  prefetchRows(type, next, dim, advance(q, type, rows * spec_.q[2]), spec_.q[2]);
  prefetchRows(type, next, dim, advance(out, type, rows * spec_.out[2]), spec_.out[2]);
  prefetchRows(type, next, dim, advance(gradOut, type, rows * grad_.gradOut[2]), grad_.gradOut[2]);
  widenRows(kernels_, type, rows, dim, q, spec_.q[2], buffers.queryRows, padded_);
  widenRows(kernels_, type, rows, dim, gradOut, grad_.gradOut[2], buffers.gradRows, padded_);
  kernels_.pack(rows, dim, buffers.queryRows, padded_, 1, buffers.queryPanel, panel);
  kernels_.pack(rows, dim, buffers.gradRows, padded_, 1, buffers.gradPanel, panel);
  kernels_.scale(dim * panel, spec_.scale, buffers.queryPanel);

  std::fill_n(buffers.delta, panel, 0.0f);
  std::fill_n(buffers.logSum, panel, 0.0f);
  std::copy_n(args.lse + (batch * spec_.heads + head) * spec_.rows + row, rows, buffers.logSum);
  for (int64_t i = 0; i < rows; ++i) {
    widen(kernels_, type, dim, advance(out, type, i * spec_.out[2]), buffers.outRow);
    buffers.delta[i] = kernels_.dot(dim, buffers.outRow, buffers.gradRows + i * padded_);
  }
}

void PanelAttentionGrad::runBlock(const AttentionGradArgs &args, const Buffers &buffers, int64_t batch, int64_t head,
                                  int64_t row) const {
  int64_t panel = kernels_.panel, dim = spec_.dim;
  int64_t rows = std::min(panel, spec_.rows - row), seen = keysSeen(spec_, row, rows);
  void *gradQ = advance(args.gradQ, spec_.element, headOffset(grad_.gradQ, batch, head) + row * grad_.gradQ[2]);
  loadBlock(args, buffers, batch, head, row, rows);
  prefetchRows</*kWrite=*/true>(spec_.element, rows, dim, gradQ, grad_.gradQ[2]);
  multiplyPanel(kernels_, seen, dim, buffers.keyRows, dim, buffers.queryPanel, buffers.scores);
  multiplyPanel(kernels_, seen, dim, buffers.valueRows, dim, buffers.gradPanel, buffers.grads);
  if (buffers.mask)
    fillMask(kernels_, spec_, args.mask, batch, head, row, rows, seen, buffers.wideMask, buffers.mask);
  if (buffers.dropout)
    drawDropout(kernels_, spec_, args.seed, args.step, batch, head, row, seen, buffers.dropout);
  kernels_.softmaxGrad({buffers.scores, buffers.grads, seen, buffers.mask, spec_.causal, row, buffers.dropout,
                        spec_.scale, buffers.logSum, buffers.delta});

  multiplyPanel(kernels_, dim, seen, buffers.keyDims, spec_.keys, buffers.grads, buffers.result);
  writeBlock(kernels_, spec_.element, rows, dim, buffers.result, buffers.wide, gradQ, grad_.gradQ[2]);
  for (int64_t column = 0; column < padded_; column += panel) {
    kernels_.multiplyBlockRows(seen, rows, buffers.grads, buffers.queryRows + column, padded_,
                               buffers.gradKeys + column, padded_, true);
    kernels_.multiplyBlockRows(seen, rows, buffers.scores, buffers.gradRows + column, padded_,
                               buffers.gradValues + column, padded_, true);
  }
}

std::shared_ptr<const AttentionGradPlan> segue::makeAttentionGradPlan(const AttentionGradSpec &spec, Threads threads,
                                                                      std::shared_ptr<Scratch> scratch,
                                                                      const VectorKernels &kernels) {
  return std::make_shared<PanelAttentionGrad>(spec, threads, std::move(scratch), kernels);
}
