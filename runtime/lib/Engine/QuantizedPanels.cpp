//===- QuantizedPanels.cpp - products of codes by widened panels ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The blocking of PanelMatmul.cpp with one difference: a block of the weight is
// widened from its codes on the way into its panels. It is read once per block
// of rows, a byte or half a byte per element, and multiplied as often as there
// are rows. Sums stay in f32 until the last term; then the forward form
// multiplies them with the scales of their columns, while they are in the cache.
// Scales of groups differ along the sum and are part of what is widened.
//
//===----------------------------------------------------------------------===//

#include "QuantizedPanels.h"
#include "FloatRows.h"
#include "segue/runtime/Layout/GroupStorage.h"
#include <algorithm>
#include <array>

using namespace segue;

namespace {

// The blocks are those of PanelMatmul.cpp; rows are so many that widening the weight is a small part.
constexpr int64_t kDepth = 384, kColumns = 768, kRowBlock = 120, kRows = 480;
/// The flops below which a product runs on one thread.
constexpr double kSerialFlops = 1e6;

struct Buffers {
  float *a, *b, *wide, *sums, *bias;
};

/// Reads rows of the weight as f32.
class CodeReader {
public:
  CodeReader(const QuantizedMatmulSpec &spec, const VectorKernels &kernels)
      : spec_(spec), kernels_(kernels), group_(groupExtent(spec.storage)) {
    for (size_t code = 0; code < values_.size() && isRowStorage(spec.storage); ++code)
      values_[code] = codeToFloat(uint8_t(code), spec.storage);
  }

  /// Widens elements [first, first + count) of `row`. With `scaled` they are times the
  /// scale of the row, if the storage has one; scales of groups always count.
  void widen(const QuantizedMatmulArgs &args, int64_t row, int64_t first, int64_t count, bool scaled, float *to) const {
    auto *codes = static_cast<const std::byte *>(args.codes);
    if (group_)
      return widenGroups(args, codes + row * spec_.codeStride / 2, row, first, count, to);
    codes += row * spec_.codeStride + first;
    float zero = args.zeroPoints ? static_cast<const float *>(args.zeroPoints)[row] : 0.0f;
    float scale = scaled ? static_cast<const float *>(args.scales)[row] : 1.0f;
    if (spec_.storage == StorageType::Int8Row)
      return kernels_.widenI8(count, reinterpret_cast<const int8_t *>(codes), zero, scale, to);
    for (int64_t i = 0; i < count; ++i)
      to[i] = (values_[size_t(codes[i])] - zero) * scale;
  }

private:
  void widenGroups(const QuantizedMatmulArgs &args, const std::byte *codes, int64_t row, int64_t first, int64_t count,
                   float *to) const {
    auto *scales = static_cast<const uint16_t *>(args.scales);
    for (int64_t done = 0; done < count;) {
      int64_t index = first + done, group = index / group_;
      int64_t piece = std::min(count - done, (group + 1) * group_ - index);
      float scale = bf16ToFloat(scales[group * spec_.out + row]), products[16];
      for (int code = 0; code < 16; ++code)
        products[code] = float(code < 8 ? code : code - 16) * scale;
      for (int64_t i = index; i < index + piece; ++i)
        to[i - first] = products[int4Code(codes, i) & 15];
      done += piece;
    }
  }

  const QuantizedMatmulSpec &spec_;
  const VectorKernels &kernels_;
  int64_t group_;
  std::array<float, 256> values_{};
};

class QuantizedPanels final : public QuantizedMatmulPlan {
public:
  QuantizedPanels(const QuantizedMatmulSpec &spec, Threads threads, std::shared_ptr<Scratch> scratch,
                  const VectorKernels &kernels, std::shared_ptr<std::atomic<uint64_t>> calls)
      : spec_(spec), threads_(threads), scratch_(std::move(scratch)), kernels_(kernels), reader_(spec_, kernels),
        calls_(std::move(calls)) {
    serial_ = threads_.count() == 1 || spec_.flops() < kSerialFlops;
    int64_t columns = spec_.columns(), parts = serial_ ? 1 : threads_.count();
    int64_t panels = (columns + kernels_.panel - 1) / kernels_.panel;
    pieceColumns_ = std::min(kColumns, std::max<int64_t>(1, (panels + parts - 1) / parts) * kernels_.panel);
    ScratchCutter cutter;
    cut(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(const QuantizedMatmulArgs &operands) const override {
    calls_->fetch_add(1, std::memory_order_relaxed);
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
    const char *codes = isGroupStorage(spec_.storage) ? "int4" : spec_.storage == StorageType::Int8Row ? "int8" : "fp8";
    return std::string(codes) + " panels " + kernels_.name + (serial_ ? " serial" : "");
  }

private:
  Buffers cut(ScratchCutter &cutter) const {
    int64_t depth = std::min(spec_.depth(), kDepth);
    Buffers buffers{};
    buffers.a = cutter.floats(depth * kRowBlock);
    buffers.b = cutter.floats(depth * pieceColumns_);
    buffers.wide = cutter.floats(depth * std::max(pieceColumns_, kRowBlock));
    buffers.sums = cutter.floats(std::min(spec_.rows, kRows) * pieceColumns_);
    buffers.bias = cutter.floats(spec_.hasBias ? pieceColumns_ : 0);
    return buffers;
  }

  /// Packs panels of columns [column, column + columns) over [l, l + depth).
  void packWeight(const QuantizedMatmulArgs &operands, int64_t column, int64_t columns, int64_t l, int64_t depth,
                  const Buffers &buffers) const {
    if (spec_.transposed) {
      for (int64_t d = 0; d < depth; ++d)
        reader_.widen(operands, l + d, column, columns, /*scaled=*/true, buffers.wide + d * columns);
      kernels_.pack(columns, depth, buffers.wide, 1, columns, buffers.b, kernels_.panel);
      return;
    }
    for (int64_t j = 0; j < columns; ++j)
      reader_.widen(operands, column + j, l, depth, /*scaled=*/false, buffers.wide + j * depth);
    kernels_.pack(columns, depth, buffers.wide, depth, 1, buffers.b, kernels_.panel);
  }

  void packRows(const QuantizedMatmulArgs &operands, int64_t row, int64_t rows, int64_t l, int64_t depth,
                const Buffers &buffers) const {
    const void *source = advance(operands.x, spec_.x, row * spec_.xStride + l);
    if (spec_.x == ElementType::f32)
      return kernels_.pack(rows, depth, static_cast<const float *>(source), spec_.xStride, 1, buffers.a,
                           kernels_.tileRows);
    widenRows(kernels_, spec_.x, rows, depth, source, spec_.xStride, buffers.wide, depth);
    kernels_.pack(rows, depth, buffers.wide, depth, 1, buffers.a, kernels_.tileRows);
  }

  void runPiece(const QuantizedMatmulArgs &operands, int64_t row, int64_t column, int64_t thread) const {
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
    if (spec_.hasBias)
      widen(kernels_, spec_.bias, columns, advance(operands.bias, spec_.bias, column), buffers.bias);
    for (int64_t i = 0; i < rows; ++i) {
      float *sums = buffers.sums + i * columns;
      if (!spec_.transposed && isRowStorage(spec_.storage))
        kernels_.multiply(columns, static_cast<const float *>(operands.scales) + column, sums);
      for (int64_t j = 0; spec_.hasBias && j < columns; ++j)
        sums[j] += buffers.bias[j];
      narrow(kernels_, spec_.y, columns, sums, advance(operands.y, spec_.y, (row + i) * spec_.yStride + column));
    }
  }

  QuantizedMatmulSpec spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  CodeReader reader_;
  std::shared_ptr<std::atomic<uint64_t>> calls_;
  bool serial_ = false;
  int64_t pieceColumns_ = 1;
};

} // namespace

std::shared_ptr<const QuantizedMatmulPlan> segue::makeQuantizedPanels(const QuantizedMatmulSpec &spec, Threads threads,
                                                                      std::shared_ptr<Scratch> scratch,
                                                                      const VectorKernels &kernels,
                                                                      std::shared_ptr<std::atomic<uint64_t>> calls) {
  return std::make_shared<QuantizedPanels>(spec, threads, std::move(scratch), kernels, std::move(calls));
}
