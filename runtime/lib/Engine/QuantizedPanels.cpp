//===- QuantizedPanels.cpp - INT8 products by widened panels --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The blocking of PanelMatmul.cpp with one difference: a block of the weight is
// widened from its codes on the way into its panels. It is read once per block
// of rows, one byte per element, and multiplied as often as there are rows.
// Sums stay in f32 until the last term; then the forward form multiplies them
// with the scales of their columns, while they are in the cache.
//
//===----------------------------------------------------------------------===//

#include "QuantizedPanels.h"
#include "FloatRows.h"
#include <algorithm>

using namespace segue;

namespace {

// As in PanelMatmul.cpp; rows so many that widening the weight is a small part.
constexpr int64_t kDepth = 384, kColumns = 768, kRowBlock = 120, kRows = 480;
/// Products below this many operations run on one thread.
constexpr double kSerialFlops = 1e6;

struct Buffers {
  float *a, *b, *wide, *sums;
};

struct Operands {
  const void *x;
  const int8_t *codes;
  const float *scale, *zeroPoint;
  void *y;
};

class QuantizedPanels final : public QuantizedMatmulPlan {
public:
  QuantizedPanels(const QuantizedMatmulSpec &spec, Threads threads, std::shared_ptr<Scratch> scratch,
                  const VectorKernels &kernels)
      : spec_(spec), threads_(threads), scratch_(std::move(scratch)), kernels_(kernels) {
    serial_ = threads_.count() == 1 || spec_.flops() < kSerialFlops;
    int64_t columns = spec_.columns(), parts = serial_ ? 1 : threads_.count();
    int64_t panels = (columns + kernels_.panel - 1) / kernels_.panel;
    pieceColumns_ = std::min(kColumns, std::max<int64_t>(1, (panels + parts - 1) / parts) * kernels_.panel);
    ScratchCutter cutter;
    cut(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(const void *x, const void *codes, const float *scale, const float *zeroPoint, void *y) const override {
    Operands operands{x, static_cast<const int8_t *>(codes), scale, zeroPoint, y};
    int64_t columnPieces = (spec_.columns() + pieceColumns_ - 1) / pieceColumns_;
    int64_t rowPieces = (spec_.rows + kRows - 1) / kRows;
    auto lock = scratch_->lock();
    auto runItem = [&](int64_t index, int64_t thread) {
      runPiece(operands, index / columnPieces * kRows, index % columnPieces * pieceColumns_, thread);
    };
    if (serial_) {
      FlushDenormals flush;
      for (int64_t index = 0; index < columnPieces * rowPieces; ++index)
        runItem(index, 0);
    } else {
      threads_.forEachItem(columnPieces * rowPieces, runItem);
    }
  }

  std::string describe() const override {
    return std::string("int8 panels ") + kernels_.name + (serial_ ? " serial" : "");
  }

private:
  Buffers cut(ScratchCutter &cutter) const {
    int64_t depth = std::min(spec_.depth(), kDepth);
    Buffers buffers{};
    buffers.a = cutter.floats(depth * kRowBlock);
    buffers.b = cutter.floats(depth * pieceColumns_);
    buffers.wide = cutter.floats(depth * std::max(pieceColumns_, kRowBlock));
    buffers.sums = cutter.floats(std::min(spec_.rows, kRows) * pieceColumns_);
    return buffers;
  }

  /// Panels of columns [column, column + columns) over [l, l + depth).
  void packWeight(const Operands &operands, int64_t column, int64_t columns, int64_t l, int64_t depth,
                  const Buffers &buffers) const {
    auto zeroOf = [&](int64_t row) { return operands.zeroPoint ? operands.zeroPoint[row] : 0.0f; };
    if (spec_.transposed) {
      for (int64_t d = 0; d < depth; ++d)
        kernels_.widenI8(columns, operands.codes + (l + d) * spec_.codeStride + column, zeroOf(l + d),
                         operands.scale[l + d], buffers.wide + d * columns);
      kernels_.pack(columns, depth, buffers.wide, 1, columns, buffers.b, kernels_.panel);
      return;
    }
    for (int64_t j = 0; j < columns; ++j)
      kernels_.widenI8(depth, operands.codes + (column + j) * spec_.codeStride + l, zeroOf(column + j), 1.0f,
                       buffers.wide + j * depth);
    kernels_.pack(columns, depth, buffers.wide, depth, 1, buffers.b, kernels_.panel);
  }

  void packRows(const Operands &operands, int64_t row, int64_t rows, int64_t l, int64_t depth,
                const Buffers &buffers) const {
    const void *source = advance(operands.x, spec_.x, row * spec_.xStride + l);
    if (spec_.x == ElementType::f32)
      return kernels_.pack(rows, depth, static_cast<const float *>(source), spec_.xStride, 1, buffers.a,
                           kernels_.tileRows);
    widenRows(kernels_, spec_.x, rows, depth, source, spec_.xStride, buffers.wide, depth);
    kernels_.pack(rows, depth, buffers.wide, depth, 1, buffers.a, kernels_.tileRows);
  }

  void runPiece(const Operands &operands, int64_t row, int64_t column, int64_t thread) const {
    ScratchCutter cutter(scratch_->area(thread));
    Buffers buffers = cut(cutter);
    int64_t rows = std::min(kRows, spec_.rows - row), columns = std::min(pieceColumns_, spec_.columns() - column);
    int64_t l = 0;
    do { // once at least: without depth the result is 0
      int64_t depth = std::min(kDepth, spec_.depth() - l);
      packWeight(operands, column, columns, l, depth, buffers);
      for (int64_t i = 0; i < rows; i += kRowBlock) {
        int64_t count = std::min(kRowBlock, rows - i);
        packRows(operands, row + i, count, l, depth, buffers);
        kernels_.multiplyPacked({.rows = count,
                                 .columns = columns,
                                 .depth = depth,
                                 .a = buffers.a,
                                 .aPanelStep = depth * kernels_.tileRows,
                                 .b = buffers.b,
                                 .bPanelStep = depth * kernels_.panel,
                                 .bStep = kernels_.panel,
                                 .c = buffers.sums + i * columns,
                                 .cStep = columns,
                                 .accumulate = l > 0});
      }
      l += kDepth;
    } while (l < spec_.depth());
    for (int64_t i = 0; i < rows; ++i) {
      float *sums = buffers.sums + i * columns;
      if (!spec_.transposed)
        kernels_.multiply(columns, operands.scale + column, sums);
      narrow(kernels_, spec_.y, columns, sums, advance(operands.y, spec_.y, (row + i) * spec_.yStride + column));
    }
  }

  QuantizedMatmulSpec spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  bool serial_ = false;
  int64_t pieceColumns_ = 1;
};

} // namespace

std::shared_ptr<const QuantizedMatmulPlan> segue::makeQuantizedPanels(const QuantizedMatmulSpec &spec, Threads threads,
                                                                      std::shared_ptr<Scratch> scratch,
                                                                      const VectorKernels &kernels) {
  return std::make_shared<QuantizedPanels>(spec, threads, std::move(scratch), kernels);
}
