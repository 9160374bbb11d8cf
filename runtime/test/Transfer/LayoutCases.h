//===- LayoutCases.h - layouts to copy between, and how -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The layouts, shapes and contents with which every copy between layouts is
// tested, in one address space and between devices, and a reference that says
// what the bytes of the target have to be: element by element, with an address
// function and conversions of its own.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_TRANSFER_LAYOUTCASES_H
#define SEGUE_RUNTIME_TEST_TRANSFER_LAYOUTCASES_H

#include "segue/runtime/Layout/TensorDesc.h"
#include <cstddef>
#include <string>
#include <vector>

namespace segue::test {

/// A way to lay out a tensor of any shape.
struct LayoutCase {
  std::string name;
  ElementType element = ElementType::f32;
  StorageType storage = StorageType::Element;
  bool zeroPoints = false;
  /// Tile extents for as many trailing dimensions as there are.
  std::vector<uint32_t> tile;
  /// The order of dimensions (of tiles) in memory: a rotation and perhaps a
  /// reversal of the row-major one.
  int rotate = 0;
  bool reverse = false;
  /// Elements left out after each dimension.
  int64_t gap = 0;
  /// Strides are written, though dense.
  bool explicitStrides = false;
  /// Stride 0 in the first or the last dimension: only to read from.
  bool repeatsFirst = false, repeatsLast = false;

  bool isReadOnly() const { return repeatsFirst || repeatsLast; }
  TensorDesc desc(const Shape &shape) const;
};

/// At least 40 of them.
std::vector<LayoutCase> layoutCases();

/// Rank 0 to 5, extents of 1, without elements, ragged for every tile.
std::vector<Shape> layoutShapes();

/// The bytes of a tensor: values of both signs, small and large, denormals;
/// rows of codes with scales and zero points of which some are 0. With
/// `nonFinite`, NaN and infinity as well.
std::vector<std::byte> makeContents(const TensorDesc &desc, uint32_t seed, bool nonFinite = false);

/// Where the element with `index` lies, in elements from the first.
int64_t addressOf(const TensorDesc &desc, const std::vector<int64_t> &index);

/// Returns what a copy of `source` leaves in the memory of the target that held `before`.
/// Sets `firstNonFinite` to the first row that was quantised with NaN or
/// infinity, or -1.
std::vector<std::byte> referenceCopy(const TensorDesc &source, const std::vector<std::byte> &bytes,
                                     const TensorDesc &target, std::vector<std::byte> before, int64_t &firstNonFinite);

/// The devices on which all pairs are tried; each test program says its own.
std::vector<std::string> layoutPairSpecs();

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_TRANSFER_LAYOUTCASES_H
