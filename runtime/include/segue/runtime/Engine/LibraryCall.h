//===- LibraryCall.h - operations that are known by name --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A library call runs an operation on dense tensors: the LibraryCall command of
// schemas/program.fbs. The operation is found by its name, and tells everything that
// loading, costs and the executor ask: what is wrong with a call, its flops, and a
// plan. Another operation is a file in runtime/lib/Engine/Library and nothing else of
// the runtime.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_LIBRARYCALL_H
#define SEGUE_RUNTIME_ENGINE_LIBRARYCALL_H

#include "segue/runtime/Layout/ElementType.h"
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::inline runtime {

/// A tensor of a call: dense, the last dimension contiguous.
struct LibraryTensor {
  ElementType element = ElementType::f32;
  std::vector<int64_t> shape;

  int64_t elements() const {
    int64_t product = 1;
    for (int64_t extent : shape)
      product *= extent;
    return product;
  }
  bool operator==(const LibraryTensor &) const = default;
};

/// One call without its memory. It may come from a file that nobody trusts: only its shapes
/// are known to be of tensors that fit in memory, and findProblem checks everything else.
struct LibraryCallSpec {
  std::string operation;
  std::vector<LibraryTensor> reads, writes;
  /// Options of the operation, in its own order.
  std::vector<int64_t> numbers;

  bool operator==(const LibraryCallSpec &) const = default;
};

/// A call that is ready to run as often as wanted. Of the threads that share an engine one
/// runs at a time; others wait.
class LibraryPlan {
public:
  virtual ~LibraryPlan() = default;
  /// Runs the call. `tensors` holds the first elements of the tensors that are read, then
  /// of those that are written. No tensor that is written overlaps another.
  virtual void run(std::span<void *const> tensors) const = 0;
};

/// Parts of the CPU's engine that its plans use.
struct LibraryTools;

/// An operation by its name.
struct LibraryOperation {
  std::string_view name;
  /// Returns what is wrong with a call, or an empty text.
  std::string (*findProblem)(const LibraryCallSpec &spec);
  /// Returns the flops of a call without problem; the greatest number if they do not fit.
  uint64_t (*flops)(const LibraryCallSpec &spec);
  /// Makes a plan of a call without problem.
  std::shared_ptr<const LibraryPlan> (*plan)(const LibraryCallSpec &spec, const LibraryTools &tools);
};

/// Returns the operation called `name`, or null if there is none.
const LibraryOperation *findLibraryOperation(std::string_view name);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_LIBRARYCALL_H
