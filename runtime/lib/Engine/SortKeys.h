//===- SortKeys.h - elements as numbers that are ordered alike --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// PyTorch's order of elements, for the processor and for kernels of a GPU: NaN is the
// greatest, all NaN are equal, and so are both zeros. A denormal is a number of its own,
// also where arithmetic flushes it: keys are made of bits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_SORTKEYS_H
#define SEGUE_RUNTIME_LIB_ENGINE_SORTKEYS_H

#include "segue/runtime/Layout/ElementType.h"

namespace segue::inline runtime {

/// All bits of a key of an element of `type`.
constexpr uint64_t sortKeyBits(ElementType type) { return ~uint64_t(0) >> (64 - 8 * byteSize(type)); }

/// Returns the key of the element whose bits are `bits`, in an unsigned type that holds them. Keys ascend as elements do;
/// equal elements have equal keys.
template <typename Bits> constexpr Bits sortKey(ElementType type, Bits bits) {
  Bits all = Bits(sortKeyBits(type)), sign = Bits(all ^ (all >> 1));
  if (!isFloat(type))
    return type == ElementType::i1 ? bits : Bits(bits ^ sign);
  Bits magnitude = Bits(bits & ~sign);
  Bits infinity = Bits(type == ElementType::f64   ? 0x7ff0000000000000u
                       : type == ElementType::f32 ? 0x7f800000u
                       : type == ElementType::f16 ? 0x7c00u
                                                  : 0x7f80u);
  Bits key = magnitude == 0 ? sign : Bits(bits & sign ? ~bits & all : bits | sign);
  return magnitude > infinity ? all : key;
}

/// Returns what turns keys into those of the opposite order, by an exclusive or: zero unless `descending`.
constexpr uint64_t sortKeyFlip(ElementType type, bool descending) { return descending ? sortKeyBits(type) : 0; }

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_SORTKEYS_H
