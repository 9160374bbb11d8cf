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
// A workspace displaces nothing: where there is no room, answers with less are taken, down
// to none at all, and other algorithms may give other bits then. What the library cannot
// read as it lies is copied first (CopiedProduct.h).
//
// Any thread may plan and run.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_PRODUCTS_H
#define SEGUE_LIB_CUDA_PRODUCTS_H

#include "../Engine/PlanCache.h"
#include "BlasApi.h"
#include "CopiedProduct.h"
#include "segue/runtime/Layout/Layout.h"

namespace segue::inline runtime::cuda {

struct ProductOptions {
  /// Lets products of f32 round their operands to TF32 (10 bits behind the point), which is several times as fast.
  bool tf32 = false;
  /// Lets products with a weight of INT8 or FP8 codes round x to such codes, a row at a time (QuantizedProducts.h).
  bool codes = false;
  /// The bytes of workspace that products of a queue share; 0 for none, which cost plain products of an H100 nothing.
  uint64_t workspaceBytes = 0;
  /// The bytes of the workspace of products with weights in codes, or 0: they are by tiles then, however large.
  uint64_t panelBytes = 16 << 20;
};

/// An Epilogue is done by the library to the sums of a product: it takes gelu tanh of them, and may write them besides.
enum class Epilogue : uint8_t { None, Gelu, GeluAndSums };

/// A product with an epilogue, made ready.
class EpiloguePlan {
public:
  virtual ~EpiloguePlan() = default;
  /// Runs as MatmulPlan::run does; all operands begin at multiples of 16 bytes. `sums` are dense rows of the type of c.
  virtual void run(const void *a, const void *b, void *c, const void *bias, void *sums) const = 0;
};

class Products {
public:
  Products(std::string device, BuiltinKernels &kernels, DeviceMemory &memory, ProductOptions options)
      : device_(std::move(device)), kernels_(kernels), context_(kernels.context()), streams_(kernels.streams()),
        options_(options), workspaces_(streams_, memory, "(workspace of products)"),
        copies_(streams_, memory, "(operands of products)") {}
  /// Gives the memory back; all queued work must have ended. Plans that live on may not be run.
  ~Products();
  Products(const Products &) = delete;

  /// Does what Engine::planMatmul promises. Throws Unsupported without the library, and for
  /// a spec that it cannot do, with the reason.
  std::shared_ptr<const MatmulPlan> plan(const MatmulSpec &spec);
  /// Plans a product of codes that are multiplied as they are: a and b of `spec` are bytes, c is i32 for INT8 and f32
  /// for FP8. Null if the library has none for it, or the GPU. Operands and the result begin at multiples of 16 bytes.
  std::shared_ptr<const MatmulPlan> planCodes(const MatmulSpec &spec, StorageType a, StorageType b);
  /// Plans a product of dense rows with an epilogue; null if the library has none for it.
  std::shared_ptr<const EpiloguePlan> planEpilogue(const MatmulSpec &spec, Epilogue epilogue);
  /// Returns the bytes that plans will take: the workspace with the first one, and memory for copies that was wanted.
  uint64_t bytesToTake() const {
    uint64_t workspace = workspaces_.hasSome() ? 0 : Workspaces::bytesFor(options_.workspaceBytes);
    return workspace + copies_.bytesToTake();
  }

private:
  class Plan;

  void open();
  void prepare();
  std::shared_ptr<const MatmulPlan> make(const MatmulSpec &spec);
  void check(cublasStatus_t status, const char *call) const;

  std::string device_;
  BuiltinKernels &kernels_;
  const Context &context_;
  Streams &streams_;
  ProductOptions options_;
  Workspaces workspaces_, copies_;
  std::mutex mutex_; // guards what follows
  const BlasApi *blas_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  PlanCache<MatmulSpec, MatmulPlan> plans_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_PRODUCTS_H
