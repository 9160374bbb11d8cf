//===- GeluProducts.h - calls of products with gelu -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_GELUPRODUCTS_H
#define SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_GELUPRODUCTS_H

#include "segue/runtime/Engine/LibraryCall.h"
#include "segue/runtime/Engine/Matmul.h"
#include <span>

namespace segue::inline runtime {

struct GeluProduct {
  /// True where the sums are written besides.
  bool hasSums;
  /// The product; its bias is of the type of all.
  MatmulSpec product;

  int64_t elements() const { return product.m * product.n; }
};

/// Reads a call of dot_gelu without problem.
GeluProduct readGeluProduct(const LibraryCallSpec &spec);

/// The memory of a run of a call.
struct GeluProductArgs {
  const void *lhs, *rhs, *bias;
  /// Null where none are written.
  void *sums;
  void *result;

  GeluProductArgs(const GeluProduct &call, std::span<void *const> tensors);
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_GELUPRODUCTS_H
