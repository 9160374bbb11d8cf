//===- Products.h - products on a GPU by cuBLASLt ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans products of a GPU. The library is opened with the first plan, and asked once for
// each spec how to do it: its first answer whose workspace is to be had. Sums are made in
// one order, so that each run gives the same bits: the library may add parts of a product
// in a second step, by way of the workspace, and not in the result by turns.
//
// A workspace is device memory of a queue, in the books, and taken when an answer first
// wants it. It displaces nothing: where there is no room, answers with less are taken, down
// to none at all, and other algorithms may give other bits then.
//
// Any thread may plan and run.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_PRODUCTS_H
#define SEGUE_LIB_CUDA_PRODUCTS_H

#include "../Engine/PlanCache.h"
#include "BlasApi.h"
#include "Streams.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Memory/DeviceMemory.h"

namespace segue::inline runtime::cuda {

struct ProductOptions {
  /// Lets products of f32 round their operands to TF32 (10 bits behind the point), which is several times as fast.
  bool tf32 = false;
  /// The most bytes of workspace that a product may take; 0 for none.
  uint64_t workspaceBytes = 4 << 20;
};

class Products {
public:
  Products(std::string device, const Context &context, Streams &streams, DeviceMemory &memory, ProductOptions options)
      : device_(std::move(device)), context_(context), streams_(streams), memory_(memory), options_(options) {}
  /// Gives the workspaces back; all queued work must have ended. Plans that live on may not be run.
  ~Products();
  Products(const Products &) = delete;

  /// Does what Engine::planMatmul promises. Throws Unsupported without the library, and for
  /// a spec that it cannot do, with the reason.
  std::shared_ptr<const MatmulPlan> plan(const MatmulSpec &spec);

private:
  class Plan;
  struct Workspace {
    void *data = nullptr;
    uint64_t bytes = 0;
  };
  /// The queues, and the stream of what is asked for outside of a body.
  static constexpr size_t laneCount = queueCount + 1;

  void open();
  size_t lane() const { return streams_.inBody() ? size_t(streams_.openQueue()) : queueCount; }
  Workspace workspaceOf(size_t lane, uint64_t bytes);
  void check(cublasStatus_t status, const char *call) const;

  std::string device_;
  const Context &context_;
  Streams &streams_;
  DeviceMemory &memory_;
  ProductOptions options_;
  std::mutex mutex_; // guards what follows
  const BlasApi *blas_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  PlanCache<MatmulSpec, MatmulPlan> plans_;
  std::mutex workspaceMutex_; // guards what follows
  Workspace workspaces_[laneCount];
  /// All that were taken: one that a greater one has followed may be in use by queued work and by older plans.
  std::vector<std::pair<MemoryBlock, uint64_t>> taken_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_PRODUCTS_H
