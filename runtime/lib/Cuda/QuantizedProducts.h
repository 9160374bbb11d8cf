//===- QuantizedProducts.h - products of a GPU that read codes --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans products with a weight of codes, one of four ways by the extents and by options, the
// size of a workspace among them, so that a spec has the same bits in each run:
//
//   few rows   a kernel that reads each code once (decoding)
//   codes      where that was asked for: x is rounded to codes of the weight's kind, a row at
//              a time, and cuBLASLt multiplies codes with codes on tensor cores for those
//   panels     the weight is widened panel by panel into a workspace, for cuBLASLt
//   tiles      a kernel for what is small beside a workspace, and for f16 with scales along
//              the sum, which f16 has no range for
//
// The workspace has one size, whatever the products: it is taken with the first that wants
// it, so that what is foreseen then is what will be taken.
//
// A panel has the type of x. It holds codes less their zero points where the scales come
// last, if there is room for their sums in f32, and otherwise weights. bf16 rounds what it
// cannot hold, by 2^-9 of itself: not codes, nor those of INT8 less a whole number.
//
// Codes with codes: y[i, j] = (sum over l of X[i, l] q[j, l] - z[j] * sum of X[i, l]) * sx[i] * s[j]
// for x = X * sx, a scale of a row. For dx = dy W' the scales s lie along the sum and are
// part of what is rounded: dy[i, o] * s[o] = Y[i, o] * sy[i]. The library reads both operands
// along the depth, so there the codes of W are transposed first, a panel at a time. INT8 is
// summed up in int32, exactly; FP8 in f32. E5M2 is multiplied with x in E4M3: the library has
// no product of two E5M2.
//
// Any thread may plan and run.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_QUANTIZEDPRODUCTS_H
#define SEGUE_LIB_CUDA_QUANTIZEDPRODUCTS_H

#include "Products.h"
#include "segue/runtime/Engine/QuantizedMatmul.h"

namespace segue::inline runtime::cuda {

class QuantizedProducts {
public:
  /// What it is given must outlive it, and plans of it may not be run after it.
  QuantizedProducts(BuiltinKernels &kernels, Products &products, DeviceMemory &memory, const ProductOptions &options)
      : kernels_(kernels), products_(products), panelBytes_(options.panelBytes), roundsToCodes_(options.codes),
        panels_(kernels.streams(), memory, "(panels of codes)") {}
  QuantizedProducts(const QuantizedProducts &) = delete;

  /// Does what Engine::planQuantizedMatmul promises. A product by panels or of codes with codes takes its memory here,
  /// and wants cuBLASLt.
  std::shared_ptr<const QuantizedMatmulPlan> plan(const QuantizedMatmulSpec &spec);
  /// Returns the bytes of the workspace, if a plan wanted it and did not get it.
  uint64_t bytesToTake() const { return panels_.bytesToTake(); }
  /// Returns how many plans have run so far.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

private:
  class ByCodes;
  class ByKernel;
  class ByPanels;

  BuiltinKernels &kernels_;
  Products &products_;
  uint64_t panelBytes_;
  bool roundsToCodes_;
  Workspaces panels_;
  std::atomic<uint64_t> calls_{0};
  std::mutex mutex_; // guards what follows
  PlanCache<QuantizedMatmulSpec, QuantizedMatmulPlan> plans_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_QUANTIZEDPRODUCTS_H
