//===- AttentionParts.h - operands and scores of attention ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The parts that the kernels of Attention.cu and TensorAttention.h share: where the rows of a
// head lie, what a product of two of them becomes by scale and masks, and which weights are dropped.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_ATTENTIONPARTS_H
#define SEGUE_LIB_CUDA_BUILTIN_ATTENTIONPARTS_H

#include "Numbers.h"
#include "Philox.h"

#include "BuiltinArgs.h"

namespace segue::inline runtime::cuda {

/// The rows of an operand of one head: its first element, and the elements from row to row.
/// Rows from `count` on are zeros.
struct Rows {
  std::byte *data;
  int64_t step;
  int count;
};

/// One head, by its number.
struct Head {
  const AttentionKernelArgs &args;
  int batch, head;
};

GPU_FUNCTION Rows rowsOf(const Head &head, const void *data, const AttentionStrides &strides, int64_t count) {
  int64_t first = head.batch * strides[0] + head.head * strides[1];
  int64_t bytes = head.args.spec.forward.element == ElementType::f32 ? 4 : 2;
  return {static_cast<std::byte *>(const_cast<void *>(data)) + first * bytes, strides[2], int(count)};
}

/// The operands of a head, as attendRows reads them and their derivatives do.
struct Operands {
  Rows q, k, v, out, gradOut;
};

GPU_FUNCTION Operands operandsOf(const Head &head) {
  const AttentionSpec &spec = head.args.spec.forward;
  return {rowsOf(head, head.args.q, spec.q, spec.rows), rowsOf(head, head.args.k, spec.k, spec.keys),
          rowsOf(head, head.args.v, spec.v, spec.keys), rowsOf(head, head.args.out, spec.out, spec.rows),
          rowsOf(head, head.args.gradOut, head.args.spec.gradOut, spec.rows)};
}

/// The score of a product, scaled and masked; minus infinity where the row does not see the key.
GPU_FUNCTION float scoreOf(const Head &head, float product, int row, int key) {
  const AttentionSpec &spec = head.args.spec.forward;
  if (row >= spec.rows || key >= spec.keys || (spec.causal && key > row))
    return -gpu::infinity;
  float score = product * spec.scale;
  if (spec.mask == MaskKind::none)
    return score;
  int64_t at = head.batch * spec.maskStrides[0] + head.head * spec.maskStrides[1] + row * spec.maskStrides[2] +
               key * spec.maskStrides[3];
  if (spec.mask == MaskKind::add)
    return score + gpu::element(head.args.mask, spec.maskElement, at);
  return static_cast<const uint8_t *>(head.args.mask)[at] ? score : -gpu::infinity;
}

/// The probability of dropout, of which nothing is computed before the loop that needs it.
GPU_FUNCTION float dropoutOf(const AttentionSpec &spec) {
  return gpu::floatOf(uint32_t(gpu::kept(int(gpu::bitsOf(spec.dropout)))));
}

/// Draws for a head which weights dropout keeps. All is found anew at each draw, which takes fewer registers than to know it.
class KeptWeights {
public:
  GPU_MEMBER explicit KeptWeights(const Head &head) : head_(head) {}

  GPU_MEMBER bool isKept(int row, int key) const {
    int word = wordOf(row, key);
    return isKept(draw(row, key).of(word));
  }

  /// Returns a bit for each of two neighbouring keys, which as a rule come from one draw.
  GPU_MEMBER uint32_t pairKept(int row, int key) const {
    int word = wordOf(row, key);
    gpu::RandomWords words = draw(row, key);
    uint32_t first = isKept(words.of(word));
    if (word == 3)
      words = draw(row, key + 1);
    return first | uint32_t(isKept(words.of(word + 1))) << 1;
  }

private:
  GPU_MEMBER int64_t numberOf(int row, int key) const {
    const AttentionSpec &spec = head_.args.spec.forward;
    int64_t heads = int64_t(gpu::kept(head_.batch)) * spec.heads + gpu::kept(head_.head);
    return (heads * spec.rows + row) * spec.keys + key;
  }
  GPU_MEMBER int wordOf(int row, int key) const { return int(numberOf(row, key) & 3); }
  GPU_MEMBER gpu::RandomWords draw(int row, int key) const {
    return gpu::drawWords({uint64_t(head_.args.seed[gpu::kept(0)]), uint64_t(head_.args.step[gpu::kept(0)]),
                           uint32_t(head_.args.spec.forward.dropoutId)},
                          numberOf(row, key) >> 2);
  }
  GPU_MEMBER bool isKept(uint32_t word) const { return word >= leastKept(dropoutOf(head_.args.spec.forward)); }

  const Head &head_;
};

/// Returns the factor of weights that are kept.
GPU_FUNCTION float keptFactor(const AttentionSpec &spec) { return 1.0f / (1.0f - dropoutOf(spec)); }

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_BUILTIN_ATTENTIONPARTS_H
