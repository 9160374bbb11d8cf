//===- RowOrder.h - the order of a row's elements ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_ROWORDER_H
#define SEGUE_RUNTIME_LIB_ENGINE_ROWORDER_H

#include "segue/runtime/Layout/ElementType.h"

namespace segue::inline runtime {

/// A row of fewer than 2^31 elements, and which way it is sorted: by keys (SortKeys.h), then by place.
struct SortedRow {
  ElementType element;
  const void *data;
  int64_t length;
  bool descending;
};

/// Writes the places of the elements that are number [first, first + count) in the order of a row, where count > 0.
/// `space` is memory for `length` numbers, whose contents do not matter. Allocates nothing.
void writeOrder(const SortedRow &row, int64_t first, int64_t count, int64_t *result, uint64_t *space);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_ROWORDER_H
