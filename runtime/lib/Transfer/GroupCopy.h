//===- GroupCopy.h - copies from and to group storage -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A copy of which one side or both hold two elements per byte. Half a byte has
// no address, so such a copy does not go by boxes: it goes through the tensor
// row by row, group by group, a group on the stack as f32 between the sides. The
// other side may lie and be stored in any way.
//
// Between two sides of the same storage, codes and scales move as they are.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_TRANSFER_GROUPCOPY_H
#define SEGUE_RUNTIME_LIB_TRANSFER_GROUPCOPY_H

#include "../Tensor/ElementKernels.h"
#include "BlockKernels.h"
#include "segue/runtime/Layout/TensorDesc.h"

namespace segue::inline runtime {

class GroupCopy {
public:
  /// Plans a copy. The descriptions must be valid, of one shape, with elements.
  GroupCopy(const TensorDesc &source, const TensorDesc &target, const ElementKernels &kernels,
            const BlockKernels &blocks);

  /// Returns the number of units of work that write no byte in common.
  int64_t items() const { return byRow_ ? rows_ : rows_ * groups_; }

  /// Copies the items [begin, end), and for the rows of a target in row storage
  /// writes scale and zero point. The padding of tiles and the gap before the
  /// scales are the caller's. Returns the first row that was quantised with an
  /// element that is not finite, or -1.
  int64_t run(const std::byte *source, std::byte *target, int64_t begin, int64_t end) const;

private:
  /// One side of the copy.
  struct Side {
    Side(const TensorDesc &desc);

    ElementType element;
    StorageType storage;
    bool zeroPoints;
    LayoutParts parts;
    /// The bytes per element; not for group storage.
    int64_t bytes;
    /// The dimension of rows, and those of a row, outermost first.
    DimPlacement row;
    std::vector<DimPlacement> dims;
  };

  template <typename Fn> static void forEachRun(const Side &side, int64_t row, int64_t first, int64_t count, Fn fn);
  void read(const std::byte *source, int64_t row, int64_t first, int64_t count, float *values) const;
  void writeElements(std::byte *target, int64_t row, int64_t first, int64_t count, const float *values) const;
  void writeCodes(std::byte *target, int64_t row, int64_t first, int64_t count, const float *values, float scale) const;
  void scatter(std::byte *target, int64_t row, int64_t first, int64_t count, const std::byte *elements) const;
  int64_t writeRow(const std::byte *source, std::byte *target, int64_t row) const;
  int64_t writeGroup(const std::byte *source, std::byte *target, int64_t row, int64_t group) const;
  void moveRow(const std::byte *source, std::byte *target, int64_t row) const;

  Side source_, target_;
  const ElementKernels *kernels_;
  const BlockKernels *blocks_;
  /// The elements of a row, the rows, and the groups of a row in the unit of the copy,
  /// which is the group of the target, or that of the source if the target has none.
  int64_t columns_ = 0, rows_ = 0, group_ = 0, groups_ = 0;
  bool byRow_ = false, moves_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_TRANSFER_GROUPCOPY_H
