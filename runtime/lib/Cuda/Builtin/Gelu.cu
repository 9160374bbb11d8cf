//===- Gelu.cu - gelu behind a product ------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// For products whose gelu cuBLASLt does not take (Engine/Library/GeluProducts.h): gelu tanh
// of x is x (1 + tanh(u)) / 2 = x / (1 + e^(-2 u)).
//
//===----------------------------------------------------------------------===//

#include "Numbers.h"

#include "BuiltinArgs.h"

using namespace segue::cuda;

GPU_KERNEL(applyGelu, GeluArgs) {
  constexpr float twice = 1.5957691216f, cubic = twice * 0.044715f;
  for (int64_t i = gpu::firstIndex(); i < args.count; i += gpu::indexStep()) {
    float x = gpu::element(args.x, args.element, i);
    float power = gpu::exponential(-(x * (x * x * cubic + twice)));
    gpu::setElement(args.y, args.element, i, x / (1.0f + power));
  }
}
