//===- GradientSum.cpp - sums of gradients --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GradientSum.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Threads.h"
#include "segue/runtime/Transfer/ToLayout.h"

namespace segue::inline runtime {

/// Elements that pay for waking another thread.
static constexpr int64_t addGrain = 1 << 14;

void addGradient(Tensor &sum, Tensor gradient) {
  if (!sum) {
    sum = std::move(gradient);
    return;
  }
  const DeviceRef &device = sum.device();
  TensorDesc desc(sum.shape(), ElementType::f32);
  // What somebody else may still read is not written to.
  if (sum.element() != ElementType::f32 || !sum.desc().isDense())
    sum = toLayout(device, sum, desc);
  else if (!sum.isSoleOwner())
    sum = copyTo(device, sum, desc);
  Tensor addend = toLayout(device, gradient, desc);
  float *into = sum.data<float>();
  const float *from = addend.data<float>();
  Threads(device->threads()).parallelFor(int64_t(sum.elementCount()), addGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      into[i] += from[i];
  });
}

} // namespace segue::inline runtime
