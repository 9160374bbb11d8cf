//===- Attention.h - scaled dot product attention ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Specs say what attention and its derivative compute (AttentionSpec, AttentionGradSpec),
// and plans run them. The specs are the Attention and AttentionGrad
// commands of schemas/program.fbs without buffers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_ATTENTION_H
#define SEGUE_RUNTIME_ENGINE_ATTENTION_H

#include "segue/runtime/Layout/ElementType.h"
#include <array>
#include <cstdint>
#include <string>

namespace segue::inline runtime {

enum class MaskKind : int8_t {
  none,
  /// The mask is i1: a score is kept where the mask is true.
  keep,
  /// The mask is of floats, which are added to the scaled scores.
  add,
};

/// The number of elements to step per batch, head, row (or key) and dim; the last is 1.
using AttentionStrides = std::array<int64_t, 4>;

/// out = dropout(softmax(scale * q k^T + mask)) v per batch and head. With causal, row i
/// sees keys 0 to i. A row that sees no key gives zeros, and minus infinity in
/// lse. q and out are [batch, heads, rows, dim], k and v [batch, heads, keys,
/// dim], mask broadcasts to [batch, heads, rows, keys] by strides of 0, lse is
/// dense f32 [batch, heads, rows]: the logarithm of the sum of exponentials of
/// a row of scaled, masked scores.
struct AttentionSpec {
  int64_t batch = 1, heads = 1, rows = 0, keys = 0, dim = 0;
  /// Element type of q, k, v and out: f32, bf16 or f16. All sums are f32.
  ElementType element = ElementType::f32;
  AttentionStrides q = {}, k = {}, v = {}, out = {};
  MaskKind mask = MaskKind::none;
  /// i1 for keep; f32, bf16 or f16 for add.
  ElementType maskElement = ElementType::f32;
  std::array<int64_t, 4> maskStrides = {};
  bool causal = false;
  float scale = 1;
  /// The probability with which a weight of the softmax is dropped, in [0, 1); the others are
  /// divided by 1 less it. Weight i, in the order of [batch, heads, rows, keys], is dropped
  /// where the number i that segue.random draws of the seed, the step and `dropoutId` is less.
  float dropout = 0;
  int64_t dropoutId = 0;

  /// Returns why no engine can run this: a sentence
  /// to append to "attention: ". Empty if it can.
  std::string findProblem() const;

  bool operator==(const AttentionSpec &) const = default;
};

/// Gradients of attention for q, k and v. The scores are computed again from q,
/// k and lse (Dao et al., arXiv:2205.14135, algorithm 4).
struct AttentionGradSpec {
  AttentionSpec forward;
  AttentionStrides gradOut = {}, gradQ = {}, gradK = {}, gradV = {};

  std::string findProblem() const;

  bool operator==(const AttentionGradSpec &) const = default;
};

/// Returns the least of the 32 random bits of a weight with which it is kept: of the number in [0, 1)
/// that segue.random makes of them, the lower 8 have no part.
constexpr uint32_t leastKept(float dropout) {
  float scaled = dropout * 0x1p24f;
  auto whole = uint32_t(scaled);
  return (whole + uint32_t(float(whole) < scaled)) << 8;
}

struct AttentionArgs {
  const void *q, *k, *v;
  /// Null unless the spec has a mask.
  const void *mask;
  /// Null unless the spec has dropout: one number each, where the tensors lie.
  const int64_t *seed, *step;
  void *out;
  float *lse;
};

struct AttentionGradArgs {
  const void *q, *k, *v, *mask;
  const int64_t *seed, *step;
  const void *out;
  const float *lse;
  const void *gradOut;
  void *gradQ, *gradK, *gradV;
};

/// Attention made ready: run it as often as you like. Made by Engine; equal
/// specs may share one plan. Any thread may run it; runs of one engine's plans wait
/// for each other. A run blocks, uses the threads of the engine and does not
/// allocate; its result is the same each time and at every thread count.
/// Results must not overlap operands or each other.
class AttentionPlan {
public:
  virtual ~AttentionPlan() = default;
  virtual void run(const AttentionArgs &args) const = 0;
};

/// The gradients of attention made ready. All that holds for AttentionPlan holds for it.
class AttentionGradPlan {
public:
  virtual ~AttentionGradPlan() = default;
  virtual void run(const AttentionGradArgs &args) const = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_ATTENTION_H
