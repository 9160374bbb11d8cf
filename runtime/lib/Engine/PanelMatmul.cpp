//===- PanelMatmul.cpp - matmul in f32 by packed panels -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The blocking is that of Goto and van de Geijn ("Anatomy of high-performance
// matrix multiplication", 2008): a block of b of kDepth x kColumns is packed
// for the second-level cache, blocks of a of kRows x kDepth pass by, and a tile
// of rows stays in the first-level cache while all panels of b meet it.
//
// Threads share nothing: c is cut into a grid of pieces, one per thread, and
// each piece packs what it needs. That packs b (or a) once per thread, which at
// these sizes costs less than a barrier per block.
//
//===----------------------------------------------------------------------===//

#include "PanelMatmul.h"
#include "FloatRows.h"
#include "Pieces.h"
#include "VectorKernels.h"
#include <algorithm>

using namespace segue;

namespace {

// Multiples of the tile rows (4, 6, 12) and panel widths (8, 16, 32) of all
// instruction sets. b takes 1.1 MiB of the second-level cache, a 0.2 MiB.
constexpr int64_t kDepth = kPanelDepth, kRows = 120, kColumns = 768;

/// Up to so many tiles of rows, packing b costs more than it saves.
constexpr int64_t kRowsInPlace = 2;

/// The flops below which a product runs on one thread: a parallel region costs as much (a
/// few microseconds).
constexpr double kSerialFlops = 1e6;

/// One piece of c: rows and columns of one item of the batch.
struct Piece {
  int64_t item, row, rows, column, columns;
};

struct Pointers {
  const void *a, *b;
  void *c;
  const void *bias;
};

struct Buffers {
  float *a, *b, *wide, *c, *bias;
};

class PanelMatmul final : public MatmulPlan {
public:
  PanelMatmul(const MatmulSpec &spec, Threads threads, std::shared_ptr<Scratch> scratch, const VectorKernels &kernels)
      : spec_(spec), threads_(threads), scratch_(std::move(scratch)), kernels_(kernels) {
    cutGrid();
    ScratchCutter cutter;
    cutBuffers(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(const void *a, const void *b, void *c, const void *bias) const override {
    int64_t pieces = spec_.batch * gridRows_ * gridColumns_;
    Pointers pointers{a, b, c, bias};
    auto lock = scratch_->lock();
    runPieces(threads_, serial_, pieces,
              [&](int64_t index, int64_t thread) { runPiece(piece(index), pointers, thread); });
  }

  std::string describe() const override {
    std::string grid = std::to_string(gridRows_) + "x" + std::to_string(gridColumns_);
    return std::string("panels ") + kernels_.name + (serial_ ? " serial" : " grid " + grid);
  }

private:
  void cutGrid();
  Buffers cutBuffers(ScratchCutter &cutter) const;
  Piece piece(int64_t index) const;
  void runPiece(const Piece &piece, const Pointers &pointers, int64_t thread) const;
  bool widens() const { return spec_.a.element != ElementType::f32; }
  bool narrows() const { return spec_.c.element != ElementType::f32; }

  MatmulSpec spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  bool serial_ = false;
  /// True if b is read where it lies, since it has too few rows of a to meet to be worth packing.
  bool readsInPlace_ = false;
  int64_t gridRows_ = 1, gridColumns_ = 1;
  /// The extents of a piece, which are multiples of the tile rows and of the panel.
  int64_t pieceRows_ = 1, pieceColumns_ = 1;
};

} // namespace

static int64_t roundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Chooses how many pieces one item of the batch is cut into: as many as keep
/// all threads busy, in the shape that packs the fewest elements.
void PanelMatmul::cutGrid() {
  serial_ = threads_.count() == 1 || spec_.flops() < kSerialFlops;
  int64_t wanted = serial_ || spec_.batch >= threads_.count() ? 1 : (threads_.count() - 1) / spec_.batch + 1;
  int64_t tiles = std::max<int64_t>(1, roundUp(spec_.m, kernels_.tileRows) / kernels_.tileRows);
  int64_t panels = std::max<int64_t>(1, roundUp(spec_.n, kernels_.panel) / kernels_.panel);
  int64_t least = -1;
  for (int64_t rows = 1; rows <= wanted; ++rows) {
    int64_t columns = wanted / rows;
    if (rows * columns != wanted)
      continue;
    int64_t pieceTiles = (tiles - 1) / rows + 1, piecePanels = (panels - 1) / columns + 1;
    // The cost counts the products of the slowest thread, and the elements that it packs, each
    // of which costs as much as a hundred products.
    int64_t work = pieceTiles * kernels_.tileRows * piecePanels * kernels_.panel;
    int64_t packed = pieceTiles * kernels_.tileRows + piecePanels * kernels_.panel;
    int64_t cost = work + 100 * packed;
    if (least >= 0 && cost >= least)
      continue;
    least = cost;
    pieceRows_ = pieceTiles * kernels_.tileRows;
    pieceColumns_ = piecePanels * kernels_.panel;
  }
  readsInPlace_ = !widens() && spec_.b.strides[2] == 1 && pieceRows_ <= kRowsInPlace * kernels_.tileRows;
  gridRows_ = std::max<int64_t>(1, (spec_.m + pieceRows_ - 1) / pieceRows_);
  gridColumns_ = std::max<int64_t>(1, (spec_.n + pieceColumns_ - 1) / pieceColumns_);
}

Buffers PanelMatmul::cutBuffers(ScratchCutter &cutter) const {
  int64_t depth = std::min(spec_.k, kDepth), rows = std::min(pieceRows_, kRows);
  int64_t columns = std::min(pieceColumns_, kColumns);
  Buffers buffers{};
  buffers.a = cutter.floats(depth * rows);
  buffers.b = cutter.floats(depth * columns);
  if (widens())
    buffers.wide = cutter.floats(depth * std::max(rows, columns));
  if (narrows())
    buffers.c = cutter.floats(pieceRows_ * columns);
  if (spec_.hasBias)
    buffers.bias = cutter.floats(columns);
  return buffers;
}

Piece PanelMatmul::piece(int64_t index) const {
  int64_t column = index % gridColumns_ * pieceColumns_;
  int64_t row = index / gridColumns_ % gridRows_ * pieceRows_;
  return {index / gridColumns_ / gridRows_, row, std::min(pieceRows_, spec_.m - row), column,
          std::min(pieceColumns_, spec_.n - column)};
}

void PanelMatmul::runPiece(const Piece &piece, const Pointers &pointers, int64_t thread) const {
  ScratchCutter cutter(scratch_->area(thread));
  Buffers buffers = cutBuffers(cutter);
  const void *a = advance(pointers.a, spec_.a.element, piece.item * spec_.a.strides[0]);
  const void *b = advance(pointers.b, spec_.b.element, piece.item * spec_.b.strides[0]);
  ElementType cType = spec_.c.element;
  void *c = advance(pointers.c, cType, piece.item * spec_.c.strides[0] + piece.row * spec_.c.strides[1]);

  for (int64_t j = 0; j < piece.columns; j += kColumns) {
    int64_t column = piece.column + j, columns = std::min(kColumns, piece.columns - j);
    if (spec_.hasBias)
      widen(kernels_, spec_.bias, columns, advance(pointers.bias, spec_.bias, column), buffers.bias);
    void *target = advance(c, cType, column);
    // 16-bit results are summed in f32 first, all rows of the piece.
    float *sums = narrows() ? buffers.c : static_cast<float *>(target);
    int64_t sumStep = narrows() ? columns : spec_.c.strides[1];
    if (narrows() && spec_.accumulate)
      widenRows(kernels_, cType, piece.rows, columns, target, spec_.c.strides[1], sums, sumStep);
    // The loop runs once at least: without depth the result is the bias, or zero.
    int64_t l = 0;
    do {
      int64_t depth = std::min(kDepth, spec_.k - l);
      // Columns that are multiplied where they lie, then those that are packed.
      int64_t inPlace = readsInPlace_ ? columns / kernels_.panel * kernels_.panel : 0;
      const MatrixView &aView = spec_.a, &bView = spec_.b;
      packBlock(kernels_, bView.element,
                advance(b, bView.element, (column + inPlace) * bView.strides[2] + l * bView.strides[1]),
                columns - inPlace, bView.strides[2], depth, bView.strides[1], buffers.wide, buffers.b, kernels_.panel);
      for (int64_t i = 0; i < piece.rows; i += kRows) {
        int64_t rows = std::min(kRows, piece.rows - i);
        packBlock(kernels_, aView.element,
                  advance(a, aView.element, (piece.row + i) * aView.strides[1] + l * aView.strides[2]), rows,
                  aView.strides[1], depth, aView.strides[2], buffers.wide, buffers.a, kernels_.tileRows);
        PackedProduct product{.rows = rows,
                              .columns = columns - inPlace,
                              .depth = depth,
                              .a = buffers.a,
                              .aPanelStep = depth * kernels_.tileRows,
                              .b = buffers.b,
                              .bPanelStep = depth * kernels_.panel,
                              .bStep = kernels_.panel,
                              .c = sums + i * sumStep + inPlace,
                              .cStep = sumStep,
                              .accumulate = spec_.accumulate || l > 0,
                              .bias = spec_.hasBias && l == 0 ? buffers.bias + inPlace : nullptr};
        kernels_.multiplyPacked(product);
        if (inPlace == 0)
          continue;
        product.columns = inPlace;
        product.b = static_cast<const float *>(b) + l * spec_.b.strides[1] + column;
        product.bPanelStep = kernels_.panel;
        product.bStep = spec_.b.strides[1];
        product.c = sums + i * sumStep;
        product.bias = product.bias ? buffers.bias : nullptr;
        kernels_.multiplyPacked(product);
      }
      l += kDepth;
    } while (l < spec_.k);
    if (narrows())
      narrowRows(kernels_, cType, piece.rows, columns, sums, sumStep, target, spec_.c.strides[1]);
  }
}

std::shared_ptr<const MatmulPlan> segue::makePanelMatmul(const MatmulSpec &spec, Threads threads,
                                                         std::shared_ptr<Scratch> scratch,
                                                         const VectorKernels &kernels) {
  return std::make_shared<PanelMatmul>(spec, threads, std::move(scratch), kernels);
}
