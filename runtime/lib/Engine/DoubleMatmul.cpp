//===- DoubleMatmul.cpp - matmul in f64 -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// c is cut into pieces of kRows x kColumns, which threads take one by one. A panel
// of b, 16 columns of a block of the depth, is packed into the first-level cache,
// and all rows of the piece meet it. Rows of a are read where they lie: a model in
// f64 is one whose gradients are checked, and what a packed a would gain is less than
// a tenth there.
//
//===----------------------------------------------------------------------===//

#include "DoubleMatmul.h"
#include "Pieces.h"
#include <algorithm>

using namespace segue;

namespace {

constexpr int64_t kPanel = 16, kTileRows = 4, kDepth = 256, kRows = 64, kColumns = 128;

/// Products below this many operations run on one thread.
constexpr double kSerialFlops = 1e6;

class DoubleMatmul final : public MatmulPlan {
public:
  DoubleMatmul(const MatmulSpec &spec, Threads threads, std::shared_ptr<Scratch> scratch, const VectorKernels &kernels)
      : spec_(spec), threads_(threads), scratch_(std::move(scratch)), kernels_(kernels),
        gridRows_((spec.m + kRows - 1) / kRows), gridColumns_((spec.n + kColumns - 1) / kColumns),
        serial_(threads.count() == 1 || spec.flops() < kSerialFlops) {
    ScratchCutter cutter;
    cutBuffers(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(const void *a, const void *b, void *c, const void *bias) const override {
    Pointers pointers{static_cast<const double *>(a), static_cast<const double *>(b), static_cast<double *>(c), bias};
    int64_t pieces = spec_.batch * gridRows_ * gridColumns_;
    auto lock = scratch_->lock();
    runPieces(threads_, serial_, pieces, [&](int64_t index, int64_t thread) { runPiece(index, pointers, thread); });
  }

  std::string describe() const override {
    return std::string("doubles ") + kernels_.name + (serial_ ? " serial" : "");
  }

private:
  struct Pointers {
    const double *a, *b;
    double *c;
    const void *bias;
  };
  struct Buffers {
    double *panel, *sums;
  };

  static Buffers cutBuffers(ScratchCutter &cutter) {
    auto doubles = [&](int64_t count) { return reinterpret_cast<double *>(cutter.floats(2 * count)); };
    return {doubles(kDepth * kPanel), doubles(kRows * kPanel)};
  }

  double biasAt(const void *bias, int64_t column) const { return bias ? static_cast<const double *>(bias)[column] : 0; }

  /// Packs up to 16 columns, zeros behind the last.
  void pack(const double *b, int64_t columns, int64_t depth, double *panel) const {
    int64_t line = spec_.b.strides[1], step = spec_.b.strides[2];
    for (int64_t l = 0; l < depth; ++l)
      for (int64_t j = 0; j < kPanel; ++j)
        panel[l * kPanel + j] = j < columns ? b[l * line + j * step] : 0.0;
  }

  void runPiece(int64_t index, const Pointers &pointers, int64_t thread) const {
    ScratchCutter cutter(scratch_->area(thread));
    auto [panel, sums] = cutBuffers(cutter);
    int64_t left = index % gridColumns_ * kColumns, top = index / gridColumns_ % gridRows_ * kRows;
    int64_t item = index / gridColumns_ / gridRows_;
    int64_t rows = std::min(kRows, spec_.m - top), right = std::min(left + kColumns, spec_.n);
    const double *a = pointers.a + item * spec_.a.strides[0] + top * spec_.a.strides[1];
    const double *b = pointers.b + item * spec_.b.strides[0];
    double *c = pointers.c + item * spec_.c.strides[0] + top * spec_.c.strides[1];
    for (int64_t column = left; column < right; column += kPanel) {
      int64_t columns = std::min(kPanel, right - column);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < kPanel; ++j)
          sums[i * kPanel + j] = j < columns ? biasAt(pointers.bias, column + j) : 0.0;
      for (int64_t l = 0; l < spec_.k; l += kDepth) {
        int64_t depth = std::min(kDepth, spec_.k - l);
        pack(b + l * spec_.b.strides[1] + column * spec_.b.strides[2], columns, depth, panel);
        for (int64_t i = 0; i < rows; i += kTileRows)
          kernels_.multiplyDoubles(std::min(kTileRows, rows - i), depth,
                                   a + i * spec_.a.strides[1] + l * spec_.a.strides[2], spec_.a.strides[1],
                                   spec_.a.strides[2], panel, sums + i * kPanel);
      }
      for (int64_t i = 0; i < rows; ++i) {
        double *row = c + i * spec_.c.strides[1] + column;
        for (int64_t j = 0; j < columns; ++j)
          row[j] = spec_.accumulate ? row[j] + sums[i * kPanel + j] : sums[i * kPanel + j];
      }
    }
  }

  MatmulSpec spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  int64_t gridRows_, gridColumns_;
  bool serial_;
};

} // namespace

std::shared_ptr<const MatmulPlan> segue::makeDoubleMatmul(const MatmulSpec &spec, Threads threads,
                                                          std::shared_ptr<Scratch> scratch,
                                                          const VectorKernels &kernels) {
  return std::make_shared<DoubleMatmul>(spec, threads, std::move(scratch), kernels);
}
