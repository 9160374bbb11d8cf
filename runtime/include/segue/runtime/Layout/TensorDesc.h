//===- TensorDesc.h - what a tensor is and how it lies ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The logical part of a tensor (shape, element type) and its Layout: what a
// program declares per input and output, and what `submit` compares.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LAYOUT_TENSORDESC_H
#define SEGUE_RUNTIME_LAYOUT_TENSORDESC_H

#include "segue/runtime/Layout/Layout.h"

namespace segue::inline runtime {

struct TensorDesc {
  Shape shape;
  ElementType element = ElementType::f32;
  Layout layout;

  TensorDesc() = default;
  TensorDesc(Shape shape, ElementType element, Layout layout = {})
      : shape(std::move(shape)), element(element), layout(std::move(layout)) {}

  bool operator==(const TensorDesc &) const = default;

  /// Checks the rules of a description: extents and strides are not negative,
  /// one stride per dimension, no more tile extents than dimensions, zero points
  /// only in row storages, alignment a power of two and enough for the scales of
  /// rows, sizes below 2^63. Throws InvalidArgument.
  void validate() const;

  /// Returns the product of the extents. The description must be valid.
  uint64_t elementCount() const;

  /// Returns where elements, scales and zero points lie. The description must be valid.
  LayoutParts parts() const;

  /// Returns the bytes from the first element to behind the last byte: padding of tiles,
  /// scales and zero points included. The description must be valid.
  uint64_t spanBytes() const;

  /// Returns the strides in elements, also where the layout leaves them out.
  std::vector<int64_t> strides() const { return effectiveStrides(shape, layout); }

  /// Returns true if the elements, stored as they are, lie row-major without a gap.
  bool isDense() const;

  /// Returns a 64-bit hash of shape, element type and canonical layout less
  /// alignment, offset and space: equal for descriptions that differ in no byte.
  uint64_t hash() const;

  /// Returns a text such as "bf16[8,128,768]"; what is not
  /// the default follows: " strides [1,8]", " tile [32,32]",
  /// " stored as int8_row", " with zero points", " in host".
  std::string str() const;

  /// Returns `str()` with " aligned to 512" behind it, for reports of why a copy was made.
  std::string strWithAlignment() const;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LAYOUT_TENSORDESC_H
