//===- CopiedProduct.h - a product of copies of its operands ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a library cannot read or write as it lies: operands with a stride of 1 in neither
// direction, or whose rows repeat, are made dense first; a result to which a bias of f32 is
// added is one of f32 until it is rounded, once.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_COPIEDPRODUCT_H
#define SEGUE_LIB_CUDA_COPIEDPRODUCT_H

#include "Relayout.h"
#include "Workspaces.h"
#include "segue/runtime/Engine/Matmul.h"
#include <optional>

namespace segue::inline runtime::cuda {

class CopiedProduct final : public MatmulPlan {
public:
  /// Says which operands of a spec are copied.
  struct Copied {
    bool a = false, b = false, c = false;
    bool any() const { return a || b || c; }
  };

  /// Returns the spec of the product of copies.
  static MatmulSpec specOfCopies(const MatmulSpec &spec, Copied copied);

  /// Makes `product`, the plan of specOfCopies, one of `spec`, and takes the memory for the copies, which lie in
  /// `copies`. Throws OutOfMemory. `kernels` and `copies` outlive all runs.
  CopiedProduct(const MatmulSpec &spec, Copied copied, std::shared_ptr<const MatmulPlan> product,
                BuiltinKernels &kernels, Workspaces &copies);

  void run(const void *a, const void *b, void *c, const void *bias) const override;
  std::string describe() const override;

private:
  /// A copy of an operand, which begins at `offset` in the memory for copies.
  struct Copy {
    CopyPlan plan;
    uint64_t offset;
  };
  void add(std::optional<Copy> &copy, int64_t batch, int64_t rows, int64_t columns, const MatrixView &from,
           const MatrixView &to);

  bool accumulates_;
  uint64_t bytes_ = 0;
  std::optional<Copy> a_, b_, c_;
  /// Brings the result from its copy to where it belongs.
  std::optional<CopyPlan> back_;
  std::shared_ptr<const MatmulPlan> product_;
  BuiltinKernels &kernels_;
  Workspaces &copies_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_COPIEDPRODUCT_H
