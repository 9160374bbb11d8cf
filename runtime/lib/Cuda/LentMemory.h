//===- LentMemory.h - memory of other libraries on a GPU --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Which addresses outside of the device's own ranges commands may compute on.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_LENTMEMORY_H
#define SEGUE_LIB_CUDA_LENTMEMORY_H

#include "Context.h"
#include <map>
#include <mutex>
#include <shared_mutex>

namespace segue::inline runtime::cuda {

/// Any thread.
class LentMemory {
public:
  explicit LentMemory(const Context &context) : context_(context) {}

  /// Throws InvalidArgument if it is not memory of this GPU.
  void lend(const void *data, uint64_t bytes);
  void takeBack(const void *data, uint64_t bytes) noexcept;
  /// Returns true if `address` is in what somebody has lent.
  bool holds(const void *address) const;

private:
  const Context &context_;
  mutable std::shared_mutex mutex_;
  /// The ranges by their ends, with their begins: some may lie in others.
  std::multimap<uintptr_t, uintptr_t> ranges_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_LENTMEMORY_H
