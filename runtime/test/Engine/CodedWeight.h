//===- CodedWeight.h - weights of codes for tests of products ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_ENGINE_CODEDWEIGHT_H
#define SEGUE_RUNTIME_TEST_ENGINE_CODEDWEIGHT_H

#include "Values.h"
#include "segue/runtime/Engine/QuantizedMatmul.h"
#include "segue/runtime/Layout/GroupStorage.h"
#include <cmath>
#include <gtest/gtest.h>

namespace segue::test {

/// A weight in the storage that `spec` names; what pads its rows would show in any
/// result.
struct CodedWeight {
  CodedWeight(const QuantizedMatmulSpec &spec, uint64_t seed) : spec(spec), group(groupExtent(spec.storage)) {
    codes.assign(size_t(spec.out * spec.codeStride) / (group ? 2 : 1), std::byte(0x7f)); // NaN, of FP8
    scale.resize(size_t(spec.out));
    zero.resize(size_t(spec.out));
    for (int64_t i = 0; group && i < spec.codeStride / group * spec.out; ++i)
      groupScale.push_back(floatToBf16(0.05f + std::fabs(value(uint64_t(i), seed + 1)) * 0.2f));
    for (int64_t o = 0; o < spec.out; ++o) {
      scale[size_t(o)] = 0.01f + std::fabs(value(uint64_t(o), seed + 1)) * 0.03f;
      scale[size_t(o)] *= 127 / largestCode(spec.storage);
      zero[size_t(o)] = float(o % 5 - 2);
      for (int64_t k = 0; k < spec.in; ++k) {
        float number = value(uint64_t(o * spec.in + k), seed);
        std::byte *at = &codes[size_t(o * spec.codeStride + k) / (group ? 2 : 1)];
        if (group)
          *at = (*at & std::byte(k % 2 ? 15 : 240)) | std::byte((int(7 * number) & 15) << (k % 2 * 4));
        else
          *at = std::byte(floatToCode(largestCode(spec.storage) * number, spec.storage));
      }
    }
  }

  double at(int64_t o, int64_t k) const {
    if (group)
      return double(float(int4Code(&codes[size_t(o * spec.codeStride / 2)], k)) *
                    bf16ToFloat(groupScale[size_t(k / group * spec.out + o)]));
    float zeroPoint = spec.hasZeroPoints ? zero[size_t(o)] : 0;
    return double((codeToFloat(uint8_t(codes[size_t(o * spec.codeStride + k)]), spec.storage) - zeroPoint) *
                  scale[size_t(o)]);
  }

  const void *scales() const { return group ? static_cast<const void *>(groupScale.data()) : scale.data(); }

  QuantizedMatmulSpec spec;
  int64_t group;
  std::vector<std::byte> codes;
  std::vector<float> scale, zero;
  std::vector<uint16_t> groupScale;
};

/// Compares each element of `y`, the product of `weight`'s spec, with a sum in double: it is off by at most `error` of
/// the magnitudes that were added. What lies between the rows is as in `before`.
inline void expectProduct(const CodedWeight &weight, const Values &x, const Values &bias, const Values &before,
                          const Values &y, double error) {
  const QuantizedMatmulSpec &spec = weight.spec;
  std::vector<bool> written(size_t(y.size()));
  std::vector<double> inputs = x.numbers(), weights(size_t(spec.columns() * spec.depth()));
  for (int64_t j = 0; j < spec.columns(); ++j)
    for (int64_t l = 0; l < spec.depth(); ++l)
      weights[size_t(j * spec.depth() + l)] = spec.transposed ? weight.at(l, j) : weight.at(j, l);
  for (int64_t i = 0; i < spec.rows; ++i)
    for (int64_t j = 0; j < spec.columns(); ++j) {
      double sum = spec.hasBias ? bias.at(j) : 0, size = 1 + std::fabs(sum);
      for (int64_t l = 0; l < spec.depth(); ++l) {
        double term = inputs[size_t(i * spec.xStride + l)] * weights[size_t(j * spec.depth() + l)];
        sum += term;
        size += std::fabs(term);
      }
      int64_t at = i * spec.yStride + j;
      written[size_t(at)] = true;
      ASSERT_NEAR(y.at(at), sum, error * (size + std::fabs(sum))) << "at " << i << ", " << j;
    }
  for (int64_t at = 0; at < y.size(); ++at)
    ASSERT_TRUE(written[size_t(at)] || y.at(at) == before.at(at)) << "written outside of y at " << at;
}

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_ENGINE_CODEDWEIGHT_H
