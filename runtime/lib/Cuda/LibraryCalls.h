//===- LibraryCalls.h - library calls on a GPU ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans of operations that are known by name (Engine/LibraryCall.h), by kernels of the
// runtime: products of groups of rows, and convolutions. What a call means is read by the
// code of the CPU's engine, which has its checks and its flops, too.
//
// Any thread may plan and run.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_LIBRARYCALLS_H
#define SEGUE_LIB_CUDA_LIBRARYCALLS_H

#include "../Engine/PlanCache.h"
#include "Products.h"
#include "segue/runtime/Engine/LibraryCall.h"

namespace segue::inline runtime::cuda {

class LibraryCalls {
public:
  /// What it is given must outlive it, and plans of it may not be run after it.
  LibraryCalls(std::string device, BuiltinKernels &kernels, Products &products, DeviceMemory &memory)
      : device_(std::move(device)), kernels_(kernels), products_(products),
        parts_(kernels.streams(), memory, "(sums of convolutions)") {}
  LibraryCalls(const LibraryCalls &) = delete;

  /// Does what Engine::planLibraryCall promises. Throws Unsupported for an operation that no kernel computes, and for a
  /// convolution of more than 2^31 - 1 places or taps. One with sums in parts takes memory for them here.
  std::shared_ptr<const LibraryPlan> plan(const LibraryCallSpec &spec);
  /// Returns the bytes that a plan wanted and did not get.
  uint64_t bytesToTake() const { return parts_.bytesToTake(); }

private:
  class ArgsortByMerging;
  class GeluByEpilogue;
  class GroupProduct;
  class ConvolutionByTiles;

  std::shared_ptr<const LibraryPlan> make(const LibraryCallSpec &spec);
  [[noreturn]] void refuse(const std::string &why) const;

  std::string device_;
  BuiltinKernels &kernels_;
  Products &products_;
  Workspaces parts_;
  std::mutex mutex_; // guards what follows
  PlanCache<LibraryCallSpec, LibraryPlan> plans_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_LIBRARYCALLS_H
