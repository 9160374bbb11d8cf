//===- Argsort.h - calls that sort rows -------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_ARGSORT_H
#define SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_ARGSORT_H

#include "segue/runtime/Engine/LibraryCall.h"

namespace segue::inline runtime {

/// A call of argsort: of the order of each row, places [first, first + count) are wanted.
struct ArgsortSpec {
  ElementType element;
  int64_t rows, length, first, count;
  bool descending;
  /// Rows of the workspace, of `length` i64 each: how many rows can be sorted at a time.
  int64_t slots;
};

/// Reads a call of argsort without problem.
ArgsortSpec readArgsort(const LibraryCallSpec &spec);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_ARGSORT_H
