//===- RetargetViewTest.cpp - views follow their tensor -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Program/RetargetView.h"
#include "segue/runtime/Layout/Layout.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

using namespace segue;
using Numbers = std::vector<int64_t>;

TEST(RetargetView, JoinsAndSplits) {
  // [2,3,4] seen as [6,4], rows padded to 8.
  EXPECT_EQ(retargetStrides(Numbers{2, 3, 4}, Numbers{12, 4, 1}, Numbers{24, 8, 1}, Numbers{6, 4}, Numbers{4, 1}),
            (Numbers{8, 1}));
  // [4,12] seen as [4,3,4], then transposed.
  EXPECT_EQ(retargetStrides(Numbers{4, 12}, Numbers{12, 1}, Numbers{1, 4}, Numbers{3, 4, 4}, Numbers{4, 12, 1}),
            (Numbers{16, 1, 4}));
  // A factor from each of two dimensions.
  EXPECT_EQ(retargetStrides(Numbers{4, 6}, Numbers{6, 1}, Numbers{8, 1}, Numbers{2, 2, 3, 2}, Numbers{12, 6, 2, 1}),
            (Numbers{16, 8, 2, 1}));
  // Two strides for one dimension.
  EXPECT_EQ(retargetStrides(Numbers{2, 3, 4}, Numbers{12, 4, 1}, Numbers{16, 4, 1}, Numbers{6, 4}, Numbers{4, 1}),
            std::nullopt);
  // Not the whole: a slice, and a repetition.
  EXPECT_EQ(retargetStrides(Numbers{4, 6}, Numbers{6, 1}, Numbers{1, 4}, Numbers{4, 3}, Numbers{6, 1}), std::nullopt);
  EXPECT_EQ(retargetStrides(Numbers{4, 6}, Numbers{6, 1}, Numbers{1, 4}, Numbers{4, 6}, Numbers{0, 1}), std::nullopt);
  // Neither factors fit: 4 of 6.
  EXPECT_EQ(retargetStrides(Numbers{4, 6}, Numbers{6, 1}, Numbers{1, 4}, Numbers{6, 4}, Numbers{4, 1}), std::nullopt);
  // Unit dimensions keep what they had; no element, nothing to do.
  EXPECT_EQ(retargetStrides(Numbers{4, 6}, Numbers{6, 1}, Numbers{1, 4}, Numbers{1, 4, 6}, Numbers{99, 6, 1}),
            (Numbers{99, 1, 4}));
  EXPECT_EQ(retargetStrides(Numbers{0, 6}, Numbers{6, 1}, Numbers{1, 4}, Numbers{6, 0}, Numbers{5, 5}),
            (Numbers{5, 5}));
}

TEST(RetargetView, RefusesNumbersThatOverflow) {
  int64_t huge = int64_t(1) << 62;
  EXPECT_EQ(retargetStrides(Numbers{4, 6}, Numbers{6, 1}, Numbers{huge, 1}, Numbers{4, 6}, Numbers{6, 1}),
            std::nullopt);
  EXPECT_EQ(retargetStrides(Numbers{4, 6}, Numbers{6, 1}, Numbers{1, 4}, Numbers{4, 6}, Numbers{huge, 1}),
            std::nullopt);
  EXPECT_EQ(retargetStrides(Numbers{4, -6}, Numbers{6, 1}, Numbers{1, 4}, Numbers{4, 6}, Numbers{6, 1}), std::nullopt);
}

/// Where element `index` of a strided shape lies.
static int64_t placeOf(int64_t index, const Numbers &shape, const Numbers &strides) {
  int64_t place = 0;
  for (size_t dim = shape.size(); dim-- > 0; index /= shape[dim])
    place += index % shape[dim] * strides[dim];
  return place;
}

/// Strides of `shape` with its dimensions laid in `order`, outermost first.
static Numbers permuted(const Numbers &shape, const Numbers &order) {
  Numbers strides(shape.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0; stride *= shape[size_t(order[i])])
    strides[size_t(order[i])] = stride;
  return strides;
}

// Random reshapes of random permutations: whatever is answered, each element of
// the view is the same element of the tensor in both layouts.
TEST(RetargetView, KeepsEachElement) {
  std::mt19937 random(11);
  size_t answered = 0;
  for (int round = 0; round < 2000; ++round) {
    Numbers shape;
    for (size_t dim = 0, rank = 1 + random() % 4; dim < rank; ++dim)
      shape.push_back(int64_t(Numbers{1, 2, 3, 4, 6}[random() % 5]));
    Numbers order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    Numbers from = permuted(shape, order);
    std::ranges::shuffle(order, random);
    Numbers to = permuted(shape, order);
    // The view: a reshape of the dense tensor by splitting and joining.
    Numbers view = shape;
    for (int change = 0; change < 3; ++change) {
      size_t at = random() % view.size();
      if (view[at] % 2 == 0 && random() % 2) {
        view[at] /= 2;
        view.insert(view.begin() + std::ptrdiff_t(at) + 1, 2);
      } else if (at + 1 < view.size()) {
        view[at] *= view[at + 1];
        view.erase(view.begin() + std::ptrdiff_t(at) + 1);
      }
    }
    Numbers viewStrides = denseStrides(view);
    auto strides = retargetStrides(shape, from, to, view, viewStrides);
    if (!strides)
      continue;
    ++answered;
    int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(placeOf(i, view, *strides), placeOf(i, shape, to));
  }
  EXPECT_GT(answered, 800u);
}
