//===- FusedLinear.h - a linear layer over a stored weight ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The `fused` way of serving: the weight stays in int8_row storage on the device
// and products read it there, forward and backward; a trained low-rank adapter
// adds to both.
//
//   Tensor w = server.serve(name, storedDesc);            // codes and scales
//   Tensor y = fusedLinear(device, x, w, {.adapter = &adapter});
//   Tensor dx = fusedLinearGrad(device, dy, w, {.adapter = &adapter});
//
//   y  = x W'ᵀ + (x A) B * (alpha / rank)        A [in, rank], B [rank, out], f32
//   dx = dy W' + (dy Bᵀ) Aᵀ * (alpha / rank)
//
// There is no gradient for codes or scales. Results are new tensors, pending
// where the device works asynchronously. The thread that submits calls.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_FUSEDLINEAR_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_FUSEDLINEAR_H

#include "segue/runtime/Tensor/Tensor.h"
#include <optional>

namespace segue::inline runtime {

/// A low-rank adapter. With B all 0, as it starts, the layer is that of the weight alone.
struct LoraAdapter {
  /// The factors [in, rank] and [rank, out], f32, dense, in device_dram.
  Tensor a, b;
  float alpha = 1;

  int64_t rank() const { return a.shape()[1]; }
};

/// A weight of which codes are a part: W' = Q R + A B (LowBitForms.h).
struct FusedWeight {
  /// The codes: [out, in] in row or group storage, with rows as a slab pads them.
  Tensor codes;
  /// True if the codes are those of the rotated weight.
  bool rotated = false;
  /// The low-rank product, as an adapter whose factor is 1.
  std::optional<LoraAdapter> residual = {};
};

struct FusedLinearOptions {
  /// The adapter, which may be null.
  const LoraAdapter *adapter = nullptr;
};

/// Returns the product of `x` [..., in] and the weight [out, in], which is [..., out] of
/// x's element type; all are in device_dram, x is dense. Where more than the codes takes
/// part, all sums are in f32 first. Throws LayoutMismatch naming what does not fit, and the
/// error of an operand that was never written.
Tensor fusedLinear(const DeviceRef &device, const Tensor &x, const FusedWeight &weight,
                   const FusedLinearOptions &options = {});
/// Returns the derivative for x: `dy` is [..., out], the result [..., in].
Tensor fusedLinearGrad(const DeviceRef &device, const Tensor &dy, const FusedWeight &weight,
                       const FusedLinearOptions &options = {});

/// These multiply by a weight that is its codes and nothing else.
inline Tensor fusedLinear(const DeviceRef &device, const Tensor &x, const Tensor &codes,
                          const FusedLinearOptions &options = {}) {
  return fusedLinear(device, x, FusedWeight{codes}, options);
}
inline Tensor fusedLinearGrad(const DeviceRef &device, const Tensor &dy, const Tensor &codes,
                              const FusedLinearOptions &options = {}) {
  return fusedLinearGrad(device, dy, FusedWeight{codes}, options);
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_FUSEDLINEAR_H
