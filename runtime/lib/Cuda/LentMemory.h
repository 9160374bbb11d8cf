//===- LentMemory.h - memory of other libraries on a GPU --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A LentMemory keeps the ranges of this GPU's memory that others lend, as the driver knows them.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_LENTMEMORY_H
#define SEGUE_LIB_CUDA_LENTMEMORY_H

#include "Context.h"
#include "../Drivers/LentRanges.h"

namespace segue::inline runtime::cuda {

/// Any thread.
class LentMemory {
public:
  explicit LentMemory(const Context &context) : context_(context) {}

  /// Throws InvalidArgument if it is not memory of this GPU.
  void lend(const void *data, uint64_t bytes);
  void takeBack(const void *data, uint64_t bytes) noexcept { ranges_.takeBack(data, bytes); }
  bool holds(const void *address) const { return ranges_.holds(address); }

private:
  const Context &context_;
  LentRanges ranges_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_LENTMEMORY_H
