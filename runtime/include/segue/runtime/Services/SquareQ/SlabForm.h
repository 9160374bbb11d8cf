//===- SlabForm.h - how a slab stores a layer, and how large ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The three schemes of a slab and the tensors that each makes of a weight
// [out, in] (a higher rank is flattened to [out, rest]). `padded` is `in`
// rounded up to a multiple of pad_k; the columns beyond `in` are 0.
//
//   per_row_symmetric   qweight I8 [out, padded]        scale F32 [out]
//                       zero_point F32 [out], all 0
//   fp8_e4m3_row        qweight F8_E4M3 [out, padded]   scale F32 [out]
//   int4_group          qweight U8 [out, padded / 2]    wscales BF16 [padded / group, out]
//   each                bias F32 [out], where the layer has one
//
// Pure functions: any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABFORM_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABFORM_H

#include "segue/runtime/Layout/Layout.h"
#include <string_view>

namespace segue::inline runtime {

enum class SlabScheme : int8_t { PerRowSymmetric, Fp8E4M3Row, Int4Group };

inline constexpr SlabScheme allSlabSchemes[] = {SlabScheme::PerRowSymmetric, SlabScheme::Fp8E4M3Row,
                                                SlabScheme::Int4Group};

/// Returns "per_row_symmetric", "fp8_e4m3_row" or "int4_group".
constexpr std::string_view name(SlabScheme scheme) {
  switch (scheme) {
  case SlabScheme::PerRowSymmetric:
    return "per_row_symmetric";
  case SlabScheme::Fp8E4M3Row:
    return "fp8_e4m3_row";
  case SlabScheme::Int4Group:
    return "int4_group";
  }
  return "?";
}
std::optional<SlabScheme> parseSlabScheme(std::string_view text);

/// One form of a layer: how its tensors are shaped and stored.
struct SlabForm {
  SlabScheme scheme = SlabScheme::PerRowSymmetric;
  int64_t padK = 64;
  /// Fields of int4_group alone: the columns that share a scale; whether what is stored is
  /// the rotated weight (LowBitForms.h); the rank of a bf16 product that is added to what
  /// the codes are, or 0.
  int64_t group = 64;
  bool rotated = false;
  int64_t rank = 0;

  int64_t quantBits() const { return scheme == SlabScheme::Int4Group ? 4 : 8; }
  /// Returns the storage, in terms of layouts, that the tensors of a layer have.
  StorageType storage() const;
  bool hasZeroPoint() const { return scheme == SlabScheme::PerRowSymmetric; }
  /// Return the types as the header of a safetensors file spells them: "I8", "F8_E4M3",
  /// "U8"; "F32", "BF16".
  std::string_view qweightType() const;
  std::string_view scaleType() const;
};

/// Returns `in` rounded up to a multiple of `padK`; nothing if that passes 2^63 - 1 or one
/// of them is not positive.
std::optional<int64_t> paddedIn(int64_t in, int64_t padK);

/// The sizes of one layer, stored and as bf16, in bytes.
struct SlabSize {
  int64_t out = 0, in = 0, padded = 0;
  uint64_t qweight = 0, scale = 0, zeroPoint = 0, bias = 0;
  /// The bytes of both matrices of the low-rank product.
  uint64_t lowRank = 0;
  /// The bytes as bf16, 2 * out * in, without the bias.
  uint64_t bf16 = 0;

  uint64_t slab() const { return qweight + scale + zeroPoint + bias + lowRank; }
  /// Returns the bytes that cross the link for a layer served from the slab. A zero point
  /// that is all zero is not sent, and the bias goes with the parameters of the block.
  uint64_t sent(bool zeroPoints) const { return qweight + scale + lowRank + (zeroPoints ? zeroPoint : 0); }
  double ratio() const { return double(slab()) / double(bf16); }
  Shape packedShape() const { return {out, int64_t(qweight / uint64_t(out))}; }
};

/// Returns the sizes of a layer [out, in]; nothing for extents that are not positive or too
/// large, and for int4_group where `padded` is not a multiple of `group`, `in` cannot be
/// rotated as the form says, or the rank is above an extent.
std::optional<SlabSize> slabSize(const SlabForm &form, int64_t out, int64_t in, bool bias);

/// Returns [out, in] of a weight of rank 2 or more, the trailing dimensions joined; nothing
/// for other ranks, extents that are not positive, or too large.
std::optional<std::pair<int64_t, int64_t>> flattenWeight(std::span<const int64_t> shape);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABFORM_H
