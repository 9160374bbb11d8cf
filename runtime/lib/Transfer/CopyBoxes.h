//===- CopyBoxes.h - a copy cut into strided boxes --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A tiled dimension is two dimensions, tiles and indices inside, as far as whole
// tiles go. If on each dimension the tile of one side divides that of the other,
// a copy between two layouts is therefore a few copies between plain strided
// views, boxes: one of whole tiles and those of what is left at the ends. This
// file decides for each box in which order to walk it.
//
// Pure planning: no memory is touched here.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_TRANSFER_COPYBOXES_H
#define SEGUE_RUNTIME_LIB_TRANSFER_COPYBOXES_H

#include "segue/runtime/Layout/Layout.h"

namespace segue::inline runtime {

/// A dimension of a box: its extent, and its steps in bytes and in rows.
struct BoxDim {
  int64_t extent = 1, source = 0, target = 0, row = 0;
};

/// The kinds of the two innermost dimensions of a box, `along` and `inner`.
enum class Leaf : uint8_t {
  /// The elements of both sides are adjacent along `inner`.
  Straight,
  /// One element of the source is repeated, side by side, along `inner`.
  Fill,
  /// The elements of the target are adjacent along `inner`, those of the source along `along`.
  Transposed,
  /// Anything else.
  Strided,
};

struct CopyBox {
  /// The offsets of the first element, in bytes and rows.
  int64_t source = 0, target = 0, row = 0;
  /// The outer dimensions, by falling step of the target.
  std::vector<BoxDim> outer;
  /// A dimension that is walked inside a band of `along`, so that what one cache line of
  /// the source holds is used while it is there.
  BoxDim across;
  BoxDim along, inner;
  Leaf leaf = Leaf::Straight;
  /// The indices of `along` that are taken together, and those of `inner` in a strided leaf.
  int64_t band = 1, innerBlock = 1;
  /// The number of bands over all of `outer`, the unit in which threads share a box.
  int64_t items = 1;

  int64_t bands() const { return (along.extent - 1) / band + 1; }
  uint64_t elements() const;
};

/// One dimension as the two sides place it. `row` is the step of an index in rows: 1 for
/// the dimension of rows, else 0.
struct PairedDim {
  DimPlacement source, target;
  int64_t row = 0;
};

/// Returns the boxes of a copy; elements have `sourceBytes` and `targetBytes`. Returns
/// nothing if on some dimension neither tile divides the other, or if there would be too
/// many boxes. No extent may be 0.
std::optional<std::vector<CopyBox>> cutIntoBoxes(std::span<const PairedDim> dims, int64_t sourceBytes,
                                                 int64_t targetBytes);

/// Returns boxes that visit the source alone in its own order, each element once per row
/// that it belongs to.
std::optional<std::vector<CopyBox>> cutForScan(std::span<const PairedDim> dims, int64_t sourceBytes);

/// Returns boxes over the padding of the target's tiles; their source is one element.
std::vector<CopyBox> cutPadding(std::span<const PairedDim> dims, int64_t targetBytes);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_TRANSFER_COPYBOXES_H
