//===- RandomTensors.h - made up values, and values to compare --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_RANDOMTENSORS_H
#define SEGUE_TEST_STITCH_RANDOMTENSORS_H

#include "segue/runtime/Runtime.h"
#include <random>
#include <vector>

namespace segue {

/// Values in [-1, 1) on the host, the same for one seed.
inline Tensor randomTensor(const DeviceRef &device, Shape shape, uint32_t seed) {
  Tensor tensor = Tensor::onHost(device, std::move(shape), ElementType::f32);
  std::mt19937 random(seed);
  auto *data = tensor.data<float>();
  for (uint64_t i = 0, count = tensor.elementCount(); i < count; ++i)
    data[i] = float(random() % 2001) / 1000 - 1;
  return tensor;
}

inline std::vector<float> values(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return {host.data<float>(), host.data<float>() + host.elementCount()};
}

} // namespace segue

#endif // SEGUE_TEST_STITCH_RANDOMTENSORS_H
