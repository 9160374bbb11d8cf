//===- SlabModel.h - a small checkpoint to make slabs of --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABMODEL_H
#define SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABMODEL_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "segue/runtime/Files/Safetensors.h"
#include <cmath>
#include <cstring>
#include <random>

/// Gaussian values of deviation 0.02, the same for the same seed.
inline std::vector<float> gaussian(size_t count, uint32_t seed) {
  std::mt19937 bits(seed);
  auto uniform = [&] { return (double(bits()) + 0.5) / 4294967296.0; };
  std::vector<float> values(count);
  for (float &value : values) {
    double radius = std::sqrt(-2 * std::log(uniform()));
    value = float(0.02 * radius * std::cos(2 * 3.14159265358979 * uniform()));
  }
  return values;
}

inline segue::Tensor tensorOf(segue::Shape shape, segue::ElementType element, const std::vector<float> &values) {
  static const segue::DeviceRef device = segue::Device::open("cpu");
  segue::Tensor tensor = segue::Tensor::empty(device, segue::TensorDesc(std::move(shape), element));
  for (size_t i = 0; i < values.size(); ++i)
    if (element == segue::ElementType::f32)
      tensor.data<float>()[i] = values[i];
    else
      tensor.data<uint16_t>()[i] =
          element == segue::ElementType::bf16 ? segue::floatToBf16(values[i]) : segue::floatToF16(values[i]);
  return tensor;
}

/// The values of a float tensor.
inline std::vector<float> valuesOf(const segue::Tensor &tensor) {
  std::vector<float> values(tensor.elementCount());
  for (size_t i = 0; i < values.size(); ++i)
    if (tensor.element() == segue::ElementType::f32)
      values[i] = tensor.data<float>()[i];
    else
      values[i] = tensor.element() == segue::ElementType::bf16 ? segue::bf16ToFloat(tensor.data<uint16_t>()[i])
                                                               : segue::f16ToFloat(tensor.data<uint16_t>()[i]);
  return values;
}

inline segue::Tensor gaussianTensor(segue::Shape shape, segue::ElementType element, uint32_t seed) {
  size_t count = 1;
  for (int64_t extent : shape)
    count *= size_t(extent);
  return tensorOf(std::move(shape), element, gaussian(count, seed));
}

/// Two blocks, a table, a norm, a head, a convolution and a narrow layer that
/// no slab makes smaller; f32, bf16 and f16.
inline segue::TensorMap smallModel(uint32_t seed = 1) {
  using enum segue::ElementType;
  segue::TensorMap tensors;
  tensors["wte.weight"] = gaussianTensor({50, 96}, f32, seed);
  for (int block = 0; block < 2; ++block) {
    std::string name = "blocks." + std::to_string(block);
    uint32_t own = seed + 100 * uint32_t(block);
    tensors[name + ".norm.weight"] = gaussianTensor({96}, f32, own + 1);
    tensors[name + ".fc1.weight"] = gaussianTensor({160, 96}, f32, own + 2);
    tensors[name + ".fc1.bias"] = gaussianTensor({160}, bf16, own + 3);
    tensors[name + ".fc2.weight"] = gaussianTensor({96, 160}, bf16, own + 4);
    tensors[name + ".out.weight"] = gaussianTensor({96, 100}, f16, own + 5);
  }
  tensors["conv.weight"] = gaussianTensor({32, 16, 3, 3}, f32, seed + 6);
  tensors["narrow.weight"] = gaussianTensor({320, 4}, f32, seed + 7);
  tensors["lm_head.weight"] = gaussianTensor({50, 96}, f32, seed + 8);
  return tensors;
}

#endif // SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABMODEL_H
