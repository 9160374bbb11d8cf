//===- RowMatmul.cpp - products of one row --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With one row of a to meet, b is read from memory and used once: packing it into panels
// would write all of it and read it again, for nothing. Threads take columns. Sums
// are those of panels to the bit, since layouts, which decide between the two, change no
// digit: in the order of the depth, block by block.
//
//===----------------------------------------------------------------------===//

#include "RowMatmul.h"
#include "PanelMatmul.h"
#include "Pieces.h"
#include <algorithm>

using namespace segue;

namespace {

/// With more rows, panels gain more than packing costs (segue-bench-engine, rows/*).
constexpr int64_t kMostRows = 1;

/// The columns of a piece.
constexpr int64_t kColumns = 64;

/// The flops below which a product runs on one thread, as in PanelMatmul.cpp.
constexpr double kSerialFlops = 1e6;

class RowMatmul final : public MatmulPlan {
public:
  RowMatmul(const MatmulSpec &spec, Threads threads, const VectorKernels &kernels)
      : spec_(spec), threads_(threads), kernels_(kernels), serial_(threads.count() == 1 || spec.flops() < kSerialFlops),
        pieces_((spec.n + kColumns - 1) / kColumns) {}

  void run(const void *a, const void *b, void *c, const void *bias) const override {
    runPieces(threads_, serial_, spec_.batch * pieces_, [&](int64_t index, int64_t) {
      int64_t item = index / pieces_, column = index % pieces_ * kColumns;
      const float *rows = static_cast<const float *>(a) + item * spec_.a.strides[0];
      const float *columns = static_cast<const float *>(b) + item * spec_.b.strides[0] + column * spec_.b.strides[2];
      float *sums = static_cast<float *>(c) + item * spec_.c.strides[0] + column;
      int64_t count = std::min(kColumns, spec_.n - column);
      const float *added = spec_.hasBias ? static_cast<const float *>(bias) + column : nullptr;
      for (int64_t l = 0; l < spec_.k; l += kPanelDepth)
        for (int64_t i = 0; i < spec_.m; ++i)
          kernels_.multiplyRow(count, std::min(kPanelDepth, spec_.k - l), rows + i * spec_.a.strides[1] + l, columns + l,
                               spec_.b.strides[2], sums + i * spec_.c.strides[1], spec_.accumulate || l > 0,
                               l == 0 ? added : nullptr);
    });
  }

  std::string describe() const override { return std::string("rows ") + kernels_.name + (serial_ ? " serial" : ""); }

private:
  MatmulSpec spec_;
  Threads threads_;
  const VectorKernels &kernels_;
  bool serial_;
  /// The pieces of one item of the batch.
  int64_t pieces_;
};

} // namespace

std::shared_ptr<const MatmulPlan> segue::makeRowMatmul(const MatmulSpec &spec, Threads threads,
                                                       const VectorKernels &kernels) {
  bool isF32 = spec.a.element == ElementType::f32 && spec.c.element == ElementType::f32 &&
               (!spec.hasBias || spec.bias == ElementType::f32);
  bool lieAlongTheSum = spec.a.strides[2] == 1 && spec.b.strides[1] == 1 && spec.b.strides[2] != 1;
  bool addsAsPanels = !(spec.accumulate && spec.hasBias); // which add a bias last, but for columns at the edge
  if (!isF32 || !lieAlongTheSum || !addsAsPanels || spec.m < 1 || spec.m > kMostRows || spec.n < 1 || spec.k < kernels.lanes)
    return nullptr;
  return std::make_shared<RowMatmul>(spec, threads, kernels);
}
