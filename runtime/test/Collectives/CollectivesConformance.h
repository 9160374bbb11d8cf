//===- CollectivesConformance.h - what collectives have to do ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One suite for all ways of messages and all devices. A program of tests that has a way
// instantiates it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_COLLECTIVES_COLLECTIVESCONFORMANCE_H
#define SEGUE_RUNTIME_TEST_COLLECTIVES_COLLECTIVESCONFORMANCE_H

#include "OnRanks.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cmath>
#include <vector>

namespace segue::test {

struct CollectivesCase {
  /// The spec of the device of each rank, whose number stands for RANK.
  const char *device;
  MakeCollectives make = makeCollectives;
  /// False where three ranks and more are added up in an order of the library's own.
  bool addsInOrder = true;
  /// There are as many devices.
  int mostRanks = 4;
};
inline void PrintTo(const CollectivesCase &each, std::ostream *os) { *os << each.device; }

class CollectivesConformance : public testing::TestWithParam<CollectivesCase> {
protected:
  std::vector<std::string> run(int ranks, const std::function<void(Rank &)> &body, InProcessOptions options = {},
                               CollectiveOptions collectives = {}) {
    return onRanks(ranks, GetParam().device, body, options, collectives, GetParam().make);
  }
  bool has(int ranks) const { return ranks <= GetParam().mostRanks; }
};

using Vector = std::vector<float>;

/// The number of rank `rank` at `index`, which no other order of addition sums to the same bits.
inline float valueOf(int rank, int64_t index) { return std::ldexp(1.1f + float(index % 7), rank * 5) / 3; }

inline Tensor filled(const DeviceRef &device, int64_t count, int rank, Space space = Space::DeviceDram) {
  Tensor host = Tensor::onHost(device, {count}, ElementType::f32);
  for (int64_t i = 0; i < count; ++i)
    host.data<float>()[i] = valueOf(rank, i);
  TensorDesc desc({count}, ElementType::f32);
  desc.layout.space = space;
  return copyTo(device, host, desc);
}

inline Vector sums(int ranks, int64_t count, int64_t first = 0) {
  Vector sum;
  for (int64_t i = first; i < first + count; ++i) {
    float total = valueOf(0, i);
    for (int rank = 1; rank < ranks; ++rank)
      total += valueOf(rank, i);
    sum.push_back(total);
  }
  return sum;
}

inline Vector read(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return Vector(host.data<float>(), host.data<float>() + host.elementCount());
}

/// Says how far a sum may be from that of adding one rank after the other.
inline void expectSum(const Vector &found, const Vector &expected, bool isInOrder) {
  ASSERT_EQ(found.size(), expected.size());
  if (isInOrder) {
    EXPECT_EQ(found, expected);
    return;
  }
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-6 * std::fabs(double(expected[i]))) << i;
}

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_COLLECTIVES_COLLECTIVESCONFORMANCE_H
