//===- Values.h - values for the tests of the engine ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Buffers of any float type with values that depend on a seed alone, read back
// as double.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_ENGINE_VALUES_H
#define SEGUE_RUNTIME_TEST_ENGINE_VALUES_H

#include "segue/runtime/Layout/ElementType.h"
#include <cstdint>
#include <cstring>
#include <vector>

namespace segue::test {

/// Step `index` of a splitmix64 sequence, in [-1, 1), exact in bf16 and f16.
inline float value(uint64_t index, uint64_t seed) {
  uint64_t bits = (index * 0x632BE59BD9B4E019ull + seed + 1) * 0x9E3779B97F4A7C15ull;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
  return static_cast<float>(static_cast<int64_t>(bits >> 56) - 128) / 128;
}

class Values {
public:
  Values(ElementType type, int64_t count, uint64_t seed) : type_(type), bytes_(count * byteSize(type)) {
    for (int64_t i = 0; i < count; ++i)
      set(i, value(i, seed));
  }

  void *data() { return bytes_.data(); }
  const std::vector<uint8_t> &bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size() / byteSize(type_)); }

  void set(int64_t index, float number) {
    if (type_ == ElementType::f64)
      return write(index, double(number));
    if (type_ == ElementType::f32)
      return write(index, number);
    if (type_ == ElementType::i1)
      return write(index, static_cast<uint8_t>(number > -0.5f));
    if (type_ == ElementType::f16)
      return write(index, static_cast<_Float16>(number));
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    write(index, static_cast<uint16_t>(bits >> 16)); // exact for the values here
  }

  double at(int64_t index) const {
    if (type_ == ElementType::f64)
      return read<double>(index);
    if (type_ == ElementType::f32)
      return read<float>(index);
    if (type_ == ElementType::i1)
      return read<uint8_t>(index);
    if (type_ == ElementType::f16)
      return static_cast<double>(read<_Float16>(index));
    uint32_t bits = static_cast<uint32_t>(read<uint16_t>(index)) << 16;
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
  }

  /// All of them, as `at` gives them.
  std::vector<double> numbers() const {
    std::vector<double> numbers(bytes_.size() / byteSize(type_));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = at(int64_t(i));
    return numbers;
  }

private:
  template <typename T> void write(int64_t index, T element) {
    std::memcpy(bytes_.data() + index * sizeof(T), &element, sizeof(T));
  }
  template <typename T> T read(int64_t index) const {
    T element;
    std::memcpy(&element, bytes_.data() + index * sizeof(T), sizeof(T));
    return element;
  }

  ElementType type_;
  std::vector<uint8_t> bytes_;
};

/// Relative error that the type's rounding explains.
inline double tolerance(ElementType type) {
  return type == ElementType::f64 ? 4e-15 : type == ElementType::f32 ? 2e-6 : type == ElementType::bf16 ? 5e-3 : 7e-4;
}

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_ENGINE_VALUES_H
