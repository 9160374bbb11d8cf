//===- LowRank.cpp - the best product of two thin matrices ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LowRank.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace segue::inline runtime {

/// The number of vectors beyond the rank that make the leading ones converge, and that of rounds.
static constexpr int64_t oversampling = 8;
static constexpr int iterations = 4;

namespace {
/// A dense row-major matrix, or its transpose.
struct Matrix {
  const float *data;
  int64_t rows, columns;
  bool transposed = false;

  MatrixView view() const {
    MatrixView view;
    view.strides = transposed ? std::array<int64_t, 3>{0, 1, rows} : std::array<int64_t, 3>{0, columns, 1};
    return view;
  }
};
} // namespace

static std::vector<float> multiply(CpuEngine &engine, const Matrix &a, const Matrix &b) {
  MatmulSpec spec{.m = a.rows, .n = b.columns, .k = a.columns, .a = a.view(), .b = b.view()};
  spec.c.strides = {0, b.columns, 1};
  std::vector<float> c(size_t(spec.m * spec.n));
  engine.planMatmul(spec)->run(a.data, b.data, c.data(), nullptr);
  return c;
}

/// Does Gram-Schmidt over the columns of [rows, columns], twice; a column that depends on
/// those before it becomes 0.
static void orthonormalize(std::vector<float> &matrix, int64_t rows, int64_t columns) {
  std::vector<double> column(static_cast<size_t>(rows));
  auto at = [&](int64_t i, int64_t j) -> float & { return matrix[size_t(i * columns + j)]; };
  for (int64_t j = 0; j < columns; ++j) {
    double before = 0, after = 0;
    for (int64_t i = 0; i < rows; ++i) {
      column[size_t(i)] = double(at(i, j));
      before += column[size_t(i)] * column[size_t(i)];
    }
    for (int round = 0; round < 2; ++round)
      for (int64_t k = 0; k < j; ++k) {
        double dot = 0;
        for (int64_t i = 0; i < rows; ++i)
          dot += column[size_t(i)] * double(at(i, k));
        for (int64_t i = 0; i < rows; ++i)
          column[size_t(i)] -= dot * double(at(i, k));
      }
    for (double value : column)
      after += value * value;
    // The rest of a dependent column is rounding.
    double scale = after > before * 1e-20 && after > 0 ? 1 / std::sqrt(after) : 0;
    for (int64_t i = 0; i < rows; ++i)
      at(i, j) = float(column[size_t(i)] * scale);
  }
}

/// Returns the eigenvectors of a symmetric matrix by Jacobi rotations, the columns of the
/// result in falling order of eigenvalues.
static std::vector<float> eigenvectors(const std::vector<float> &symmetric, int64_t n) {
  std::vector<double> a(symmetric.begin(), symmetric.end()), v(a.size());
  auto at = [n](std::vector<double> &matrix, int64_t i, int64_t j) -> double & { return matrix[size_t(i * n + j)]; };
  for (int64_t i = 0; i < n; ++i)
    at(v, i, i) = 1;
  constexpr int sweeps = 30;
  for (int sweep = 0; sweep < sweeps; ++sweep)
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        double off = at(a, p, q);
        if (off == 0)
          continue;
        double theta = (at(a, q, q) - at(a, p, p)) / (2 * off);
        double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
        double c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (int64_t k = 0; k < n; ++k) {
          double kp = at(a, k, p), kq = at(a, k, q);
          at(a, k, p) = c * kp - s * kq;
          at(a, k, q) = s * kp + c * kq;
        }
        for (int64_t k = 0; k < n; ++k) {
          double pk = at(a, p, k), qk = at(a, q, k);
          at(a, p, k) = c * pk - s * qk;
          at(a, q, k) = s * pk + c * qk;
          double vp = at(v, k, p), vq = at(v, k, q);
          at(v, k, p) = c * vp - s * vq;
          at(v, k, q) = s * vp + c * vq;
        }
        at(a, p, q) = at(a, q, p) = 0;
      }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t i, int64_t j) { return at(a, i, i) > at(a, j, j); });
  std::vector<float> sorted(a.size());
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < n; ++i)
      sorted[size_t(i * n + j)] = float(at(v, i, order[size_t(j)]));
  return sorted;
}

LowRankPair fitLowRank(std::span<const float> matrix, int64_t out, int64_t in, int64_t rank, const Threads &threads) {
  CpuEngine engine(threads);
  int64_t width = std::min(rank + oversampling, std::min(out, in));
  Matrix m{matrix.data(), out, in}, mT{matrix.data(), in, out, true};
  // Numbers of which every machine makes the same.
  std::mt19937 random(1);
  std::vector<float> start(size_t(in * width));
  for (float &value : start)
    value = float(int32_t(random())) * 0x1p-31f;
  std::vector<float> range = multiply(engine, m, {start.data(), in, width});
  for (int i = 0; i < iterations; ++i) {
    orthonormalize(range, out, width);
    std::vector<float> domain = multiply(engine, mT, {range.data(), out, width});
    orthonormalize(domain, in, width);
    range = multiply(engine, m, {domain.data(), in, width});
  }
  orthonormalize(range, out, width);
  // matrix ~ range (rangeᵀ matrix); turned so that the leading vectors come first.
  std::vector<float> projected = multiply(engine, {range.data(), width, out, true}, m);
  std::vector<float> gram = multiply(engine, {projected.data(), width, in}, {projected.data(), in, width, true});
  std::vector<float> turn = eigenvectors(gram, width);
  std::vector<float> a = multiply(engine, {range.data(), out, width}, {turn.data(), width, width});
  std::vector<float> b = multiply(engine, {turn.data(), width, width, true}, {projected.data(), width, in});

  LowRankPair pair;
  for (int64_t i = 0; i < out; ++i)
    for (int64_t r = 0; r < rank; ++r)
      pair.a.push_back(floatToBf16(a[size_t(i * width + r)]));
  for (int64_t i = 0; i < rank * in; ++i)
    pair.b.push_back(floatToBf16(b[size_t(i)]));
  return pair;
}

void addLowRank(const LowRankPair &pair, int64_t out, int64_t in, int64_t rank, float factor, const Threads &threads,
                std::span<float> matrix) {
  std::vector<float> b(pair.b.size());
  std::ranges::transform(pair.b, b.begin(), bf16ToFloat);
  threads.parallelFor(out, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t r = 0; r < rank; ++r) {
        float of = factor * bf16ToFloat(pair.a[size_t(i * rank + r)]);
        for (int64_t j = 0; j < in; ++j)
          matrix[size_t(i * in + j)] += of * b[size_t(r * in + j)];
      }
  });
}

} // namespace segue::inline runtime
