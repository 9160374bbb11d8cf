//===- GroupedProducts.h - calls of products of groups ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_GROUPEDPRODUCTS_H
#define SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_GROUPEDPRODUCTS_H

#include "segue/runtime/Engine/LibraryCall.h"

namespace segue::inline runtime {

struct GroupedSpec {
  /// grouped_outer, in which groups are cut out of what is summed.
  bool isOuter, transposed;
  ElementType element, index;
  int64_t rows, groups;
  /// Of a matrix of the result per group: for grouped_dot the height is that of its rows.
  int64_t height, width;
  /// What grouped_dot sums over.
  int64_t depth;

  double flops() const { return 2.0 * double(rows) * double(width) * double(isOuter ? height : depth); }
};

/// Reads a call of grouped_dot or grouped_outer without problem.
GroupedSpec readGrouped(const LibraryCallSpec &spec);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_GROUPEDPRODUCTS_H
