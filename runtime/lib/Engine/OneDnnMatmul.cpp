//===- OneDnnMatmul.cpp - matmul by oneDNN --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A plan holds serial primitives, one per distinct extent of a piece, and runs
// them on the pieces of c inside one region of our own: the pool, the treatment
// of denormals and the split are then the same as for everything else, and at
// two threads this was as fast as oneDNN's own split (docs of the benchmarks:
// bench/RESULTS.md). Memory objects belong to threads, since running sets their
// pointers.
//
//===----------------------------------------------------------------------===//

#include "OneDnnMatmul.h"
#include "FloatRows.h"
#include "OneThreadScope.h"
#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

using namespace segue;

namespace {

/// The flops below which a product runs on one thread.
constexpr double kSerialFlops = 2e6;

/// The primitive for pieces of one extent, and the memories of each thread.
struct PiecePrimitive {
  int64_t rows = 0, columns = 0;
  dnnl::matmul primitive;
  struct Arguments {
    dnnl::memory a, b, c, bias, scratch;
    std::vector<dnnl_exec_arg_t> list;
  };
  std::vector<Arguments> perThread;
};

struct Piece {
  int64_t item, row, rows, column, columns;
  int primitive;
};

class OneDnnMatmul final : public MatmulPlan {
public:
  OneDnnMatmul(const MatmulSpec &spec, Threads threads, std::shared_ptr<Scratch> scratch)
      : spec_(spec), threads_(threads), scratch_(std::move(scratch)), engine_(dnnl::engine::kind::cpu, 0) {
    for (int t = 0; t < threads_.count(); ++t)
      streams_.emplace_back(engine_);
  }

  /// Makes the primitives; false if oneDNN would run its reference loops.
  bool build();

  void run(const void *a, const void *b, void *c, const void *bias) const override;

  std::string describe() const override { return "onednn " + implementation_ + " x" + std::to_string(pieces_.size()); }

private:
  int findOrMakePrimitive(int64_t rows, int64_t columns);
  void runPiece(const Piece &piece, const void *a, const void *b, void *c, const void *bias, int64_t thread) const;

  MatmulSpec spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;
  std::string implementation_;
  /// The primitives. A run, which holds the lock of the scratch, sets the pointers of their memories.
  mutable std::vector<PiecePrimitive> primitives_;
  std::vector<Piece> pieces_;
};

} // namespace

static dnnl::memory::data_type dataType(ElementType type) {
  return type == ElementType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// One matrix of an operand. Strides of extents of 1 say nothing; oneDNN wants
/// sensible ones all the same.
static dnnl::memory::desc describeMatrix(const MatrixView &view, int64_t rows, int64_t columns) {
  int64_t rowStride = view.strides[1], columnStride = view.strides[2];
  if (columns == 1)
    columnStride = rowStride == 1 ? std::max<int64_t>(rows, 1) : 1;
  if (rows == 1)
    rowStride = columnStride == 1 ? std::max<int64_t>(columns, 1) : 1;
  return {{rows, columns}, dataType(view.element), {rowStride, columnStride}};
}

/// One stride is 1 and the other no smaller than a line.
static bool isPlain(const MatrixView &view, int64_t rows, int64_t columns) {
  int64_t rowStride = view.strides[1], columnStride = view.strides[2];
  bool rowMajor = (columns == 1 || columnStride == 1) && (rows == 1 || rowStride >= columns);
  bool columnMajor = (rows == 1 || rowStride == 1) && (columns == 1 || columnStride >= rows);
  return rowMajor || columnMajor;
}

int OneDnnMatmul::findOrMakePrimitive(int64_t rows, int64_t columns) {
  for (size_t i = 0; i < primitives_.size(); ++i)
    if (primitives_[i].rows == rows && primitives_[i].columns == columns)
      return static_cast<int>(i);

  dnnl::memory::desc a = describeMatrix(spec_.a, rows, spec_.k), b = describeMatrix(spec_.b, spec_.k, columns);
  dnnl::memory::desc c({rows, columns}, dataType(spec_.c.element), {std::max(spec_.c.strides[1], columns), 1});
  dnnl::memory::desc bias({1, columns}, dataType(spec_.bias), {columns, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (spec_.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  OneThreadScope oneThread;
  auto operation = spec_.hasBias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  dnnl::matmul::primitive_desc description(operation, attributes, engine_, /*allow_empty=*/true);
  if (!description)
    return -1;
  implementation_ = description.impl_info_str();
  if (implementation_.starts_with("ref"))
    return -1;

  PiecePrimitive made;
  made.rows = rows;
  made.columns = columns;
  made.primitive = dnnl::matmul(description);
  scratch_->reserve(description.scratchpad_desc().get_size());
  for (int t = 0; t < threads_.count(); ++t) {
    PiecePrimitive::Arguments arguments;
    arguments.a = dnnl::memory(a, engine_, nullptr);
    arguments.b = dnnl::memory(b, engine_, nullptr);
    arguments.c = dnnl::memory(c, engine_, nullptr);
    arguments.scratch = dnnl::memory(description.scratchpad_desc(), engine_, nullptr);
    arguments.list = {{DNNL_ARG_SRC, arguments.a.get()},
                      {DNNL_ARG_WEIGHTS, arguments.b.get()},
                      {DNNL_ARG_DST, arguments.c.get()},
                      {DNNL_ARG_SCRATCHPAD, arguments.scratch.get()}};
    if (spec_.hasBias) {
      arguments.bias = dnnl::memory(bias, engine_, nullptr);
      arguments.list.push_back({DNNL_ARG_BIAS, arguments.bias.get()});
    }
    made.perThread.push_back(std::move(arguments));
  }
  primitives_.push_back(std::move(made));
  return static_cast<int>(primitives_.size()) - 1;
}

bool OneDnnMatmul::build() {
  int64_t perItem = 1;
  if (spec_.flops() >= kSerialFlops && spec_.batch < threads_.count())
    perItem = (threads_.count() - 1) / spec_.batch + 1;
  // Along the longer side, in whole vectors.
  constexpr int64_t kUnit = 32;
  bool byRows = spec_.m >= spec_.n;
  int64_t extent = byRows ? spec_.m : spec_.n;
  int64_t step = ((extent + perItem - 1) / perItem + kUnit - 1) / kUnit * kUnit;
  for (int64_t item = 0; item < spec_.batch; ++item)
    for (int64_t begin = 0; begin < extent; begin += step) {
      int64_t count = std::min(step, extent - begin);
      Piece piece = byRows ? Piece{item, begin, count, 0, spec_.n, 0} : Piece{item, 0, spec_.m, begin, count, 0};
      piece.primitive = findOrMakePrimitive(piece.rows, piece.columns);
      if (piece.primitive < 0)
        return false;
      pieces_.push_back(piece);
    }
  return true;
}

void OneDnnMatmul::runPiece(const Piece &piece, const void *a, const void *b, void *c, const void *bias,
                            int64_t thread) const {
  OneThreadScope oneThread;
  PiecePrimitive &use = primitives_[piece.primitive];
  PiecePrimitive::Arguments &arguments = use.perThread[thread];
  auto at = [](const MatrixView &view, const void *base, int64_t item, int64_t row, int64_t column) {
    const auto &strides = view.strides;
    return const_cast<void *>(advance(base, view.element, item * strides[0] + row * strides[1] + column * strides[2]));
  };
  // oneDNN takes pointers to data that is not const, and only reads operands.
  arguments.a.set_data_handle(at(spec_.a, a, piece.item, piece.row, 0));
  arguments.b.set_data_handle(at(spec_.b, b, piece.item, 0, piece.column));
  arguments.c.set_data_handle(at(spec_.c, c, piece.item, piece.row, piece.column));
  arguments.scratch.set_data_handle(scratch_->area(thread));
  if (spec_.hasBias)
    arguments.bias.set_data_handle(const_cast<void *>(advance(bias, spec_.bias, piece.column)));
  dnnl_status_t status = dnnl_primitive_execute(use.primitive.get(), streams_[thread].get(),
                                                static_cast<int>(arguments.list.size()), arguments.list.data());
  // A primitive that was made runs: its arguments are complete.
  assert(status == dnnl_success);
  (void)status;
}

void OneDnnMatmul::run(const void *a, const void *b, void *c, const void *bias) const {
  auto lock = scratch_->lock();
  threads_.forEachItem(static_cast<int64_t>(pieces_.size()),
                       [&](int64_t index, int64_t thread) { runPiece(pieces_[index], a, b, c, bias, thread); });
}

std::shared_ptr<const MatmulPlan> segue::makeOneDnnMatmul(const MatmulSpec &spec, Threads threads,
                                                          std::shared_ptr<Scratch> scratch) {
  bool empty = spec.batch == 0 || spec.m == 0 || spec.n == 0 || spec.k == 0;
  if (empty || spec.a.element == ElementType::f16 || !isPlain(spec.a, spec.m, spec.k) ||
      !isPlain(spec.b, spec.k, spec.n))
    return nullptr;
  auto plan = std::make_shared<OneDnnMatmul>(spec, threads, std::move(scratch));
  return plan->build() ? plan : nullptr;
}
