//===- SlabForm.cpp - how a slab stores a layer, and how large ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabForm.h"
#include "segue/runtime/Engine/LowBitForms.h"
#include <algorithm>

namespace segue::inline runtime {

/// The bytes above which sizes of a layer are refused, so that sums of them stay below 2^63.
static constexpr uint64_t greatestTensor = uint64_t(1) << 56;

std::optional<SlabScheme> parseSlabScheme(std::string_view text) {
  for (SlabScheme scheme : allSlabSchemes)
    if (name(scheme) == text)
      return scheme;
  return std::nullopt;
}

StorageType SlabForm::storage() const {
  switch (scheme) {
  case SlabScheme::PerRowSymmetric:
    return StorageType::Int8Row;
  case SlabScheme::Fp8E4M3Row:
    return StorageType::Fp8E4M3Row;
  case SlabScheme::Int4Group:
    return group == 32 ? StorageType::Int4Group32 : StorageType::Int4Group64;
  }
  return StorageType::Element;
}

std::string_view SlabForm::qweightType() const {
  switch (scheme) {
  case SlabScheme::PerRowSymmetric:
    return "I8";
  case SlabScheme::Fp8E4M3Row:
    return "F8_E4M3";
  case SlabScheme::Int4Group:
    return "U8";
  }
  return "?";
}

std::string_view SlabForm::scaleType() const { return scheme == SlabScheme::Int4Group ? "BF16" : "F32"; }

std::optional<int64_t> paddedIn(int64_t in, int64_t padK) {
  if (in <= 0 || padK <= 0 || in > INT64_MAX - padK)
    return std::nullopt;
  return (in + padK - 1) / padK * padK;
}

std::optional<SlabSize> slabSize(const SlabForm &form, int64_t out, int64_t in, bool bias) {
  std::optional<int64_t> padded = paddedIn(in, form.padK);
  if (!padded || out <= 0)
    return std::nullopt;
  std::optional<uint64_t> elements = checkedMultiply(uint64_t(out), uint64_t(*padded));
  if (!elements || *elements > greatestTensor)
    return std::nullopt;
  SlabSize size{.out = out, .in = in, .padded = *padded, .qweight = *elements, .scale = 4 * uint64_t(out)};
  if (form.scheme == SlabScheme::Int4Group) {
    if (form.group <= 0 || *padded % form.group != 0 || *padded % 2 != 0)
      return std::nullopt;
    size.qweight = *elements / 2;
    size.scale = *elements / uint64_t(form.group) * 2;
    if ((form.rotated && !canRotate(in)) || form.rank < 0 || form.rank > std::min(out, in))
      return std::nullopt;
    size.lowRank = 2 * uint64_t(form.rank) * (uint64_t(out) + uint64_t(in));
  }
  size.zeroPoint = form.hasZeroPoint() ? 4 * uint64_t(out) : 0;
  size.bias = bias ? 4 * uint64_t(out) : 0;
  size.bf16 = 2 * uint64_t(out) * uint64_t(in);
  return size;
}

std::optional<std::pair<int64_t, int64_t>> flattenWeight(std::span<const int64_t> shape) {
  if (shape.size() < 2 || shape[0] <= 0)
    return std::nullopt;
  std::optional<uint64_t> rest = checkedElementCount(shape.subspan(1));
  if (!rest || *rest == 0)
    return std::nullopt;
  return std::pair(shape[0], int64_t(*rest));
}

} // namespace segue::inline runtime
