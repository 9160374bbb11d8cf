//===- QuantizedProducts.cpp - products of a GPU that read codes ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "QuantizedProducts.h"
#include <algorithm>

namespace segue::inline runtime::cuda {

/// A product has that many terms at least for each byte of the workspace that it may use: smaller ones do without it.
static constexpr double termsPerByte = 16;
/// The columns of panels and of the tiles of multiplyCodes, and the elements that rows of a panel are padded to:
/// groups are not cut, and cuBLASLt reads 16 bytes at once.
static constexpr int64_t tileColumns = 64, rowPadding = 64;

static int64_t roundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

namespace {
/// What a workspace holds of a product.
struct PanelShape {
  /// The columns of a panel. None where the product is not by panels.
  int64_t columns = 0;
  /// The extent of a row of codes, or the number of rows, in a panel.
  int64_t depth = 0;
  /// True where a panel has codes, and the scale of a column is multiplied behind the last term.
  bool scalesLast = false;
  /// True where sums in f32 lie behind the panel.
  bool sumsApart = false;
};
} // namespace

static PanelShape shapeOf(const QuantizedMatmulSpec &spec, uint64_t bytes) {
  PanelShape shape{.depth = spec.transposed ? spec.out : roundUp(spec.in, rowPadding)};
  auto columnsIn = [&](int64_t sumBytes) {
    int64_t perColumn = shape.depth * int64_t(byteSize(spec.x)) + sumBytes;
    return std::min(int64_t(bytes) / perColumn / tileColumns * tileColumns, roundUp(spec.columns(), tileColumns));
  };
  if (spec.rows <= CodesArgs::fewRows || spec.flops() < 2 * termsPerByte * double(bytes) || !bytes)
    return {};
  if (!spec.transposed && isRowStorage(spec.storage)) {
    bool isApart = spec.y != ElementType::f32;
    if ((shape.columns = columnsIn(isApart ? spec.rows * int64_t(sizeof(float)) : 0))) {
      shape.scalesLast = true;
      shape.sumsApart = isApart;
      return shape;
    }
  }
  shape.columns = spec.x == ElementType::f16 ? 0 : columnsIn(0);
  return shape;
}

static CodesArgs argsOf(const QuantizedMatmulSpec &spec, const QuantizedMatmulArgs &args) {
  return {.x = args.x, .codes = args.codes, .scales = args.scales,
          .zeroPoints = spec.hasZeroPoints ? static_cast<const float *>(args.zeroPoints) : nullptr,
          .bias = spec.hasBias ? args.bias : nullptr, .y = args.y, .rows = spec.rows, .out = spec.out, .in = spec.in,
          .codeStride = spec.codeStride, .xStride = spec.xStride, .yStride = spec.yStride, .xElement = spec.x,
          .yElement = spec.y, .biasElement = spec.bias, .storage = spec.storage, .transposed = spec.transposed};
}

//===----------------------------------------------------------------------===//
// By a kernel
//===----------------------------------------------------------------------===//

class QuantizedProducts::ByKernel final : public QuantizedMatmulPlan {
public:
  ByKernel(QuantizedProducts &products, const QuantizedMatmulSpec &spec)
      : products_(products), spec_(spec), fewRows_(!spec.transposed && spec.rows <= CodesArgs::fewRows) {}

  void run(const QuantizedMatmulArgs &operands) const override {
    products_.kernels_.streams().count(products_.calls_);
    CodesArgs args = argsOf(spec_, operands);
    if (fewRows_ && spec_.rows)
      products_.kernels_.launch(Builtin::multiplyFewRows, args, spec_.out, 8); // a warp each
    else
      products_.kernels_.launch(Builtin::multiplyCodes, args,
                                roundUp(spec_.rows, tileColumns) / tileColumns *
                                    (roundUp(spec_.columns(), tileColumns) / tileColumns),
                                1);
  }

  std::string describe() const override { return fewRows_ ? "codes, few rows" : "codes by tiles"; }

private:
  QuantizedProducts &products_;
  QuantizedMatmulSpec spec_;
  bool fewRows_;
};

//===----------------------------------------------------------------------===//
// By panels
//===----------------------------------------------------------------------===//

/// A panel is columns of the result: for y = x W'ᵀ rows of the weight, for dx = dy W' columns of all its rows. The
/// products of panels are those of cuBLASLt. Where the scales come last, their sums are f32 in the workspace, or in y
/// if that is f32, until finishColumns.
class QuantizedProducts::ByPanels final : public QuantizedMatmulPlan {
public:
  ByPanels(QuantizedProducts &products, const QuantizedMatmulSpec &spec, const PanelShape &shape);

  void run(const QuantizedMatmulArgs &operands) const override;

  std::string describe() const override {
    return "codes by panels of " + std::to_string(columns_) + ", " + product_->describe();
  }

private:
  MatmulSpec productOf(int64_t columns) const;
  void runPanel(const QuantizedMatmulArgs &operands, int64_t first, std::byte *memory) const;

  QuantizedProducts &products_;
  QuantizedMatmulSpec spec_;
  bool scalesLast_, sumsApart_;
  /// The columns of a panel, and the elements from one of its rows to the next.
  int64_t columns_, panelStride_;
  /// Where sums apart begin.
  uint64_t sumsOffset_;
  /// The product of a panel, and that of the last one, which may be narrower.
  std::shared_ptr<const MatmulPlan> product_, last_;
};

QuantizedProducts::ByPanels::ByPanels(QuantizedProducts &products, const QuantizedMatmulSpec &spec,
                                      const PanelShape &shape)
    : products_(products), spec_(spec), scalesLast_(shape.scalesLast), sumsApart_(shape.sumsApart),
      columns_(std::min(shape.columns, spec.columns())),
      panelStride_(spec.transposed ? shape.columns : shape.depth),
      sumsOffset_(uint64_t(shape.columns * shape.depth) * byteSize(spec.x)) {
  product_ = products.products_.plan(productOf(columns_));
  if (int64_t rest = spec.columns() % columns_)
    last_ = products.products_.plan(productOf(rest));
  products.panels_.takeForPlans(products.panelBytes_);
}

/// The spec of the product of so many columns.
MatmulSpec QuantizedProducts::ByPanels::productOf(int64_t columns) const {
  MatmulSpec product{.m = spec_.rows, .n = columns, .k = spec_.depth()};
  product.a = {spec_.x, {0, spec_.xStride, 1}};
  product.b = {spec_.x, {0, spec_.transposed ? panelStride_ : 1, spec_.transposed ? 1 : panelStride_}};
  product.c = {scalesLast_ ? ElementType::f32 : spec_.y, {0, sumsApart_ ? columns_ : spec_.yStride, 1}};
  product.hasBias = spec_.hasBias && !scalesLast_;
  product.bias = spec_.bias;
  return product;
}

void QuantizedProducts::ByPanels::runPanel(const QuantizedMatmulArgs &operands, int64_t first,
                                           std::byte *memory) const {
  int64_t columns = std::min(columns_, spec_.columns() - first);
  auto advance = [](auto *base, ElementType type, int64_t index) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(base)>>, const std::byte, std::byte>;
    return static_cast<Byte *>(base) + index * int64_t(byteSize(type));
  };
  const void *bias = spec_.hasBias ? advance(operands.bias, spec_.bias, first) : nullptr;
  void *y = advance(operands.y, spec_.y, first);

  WidenArgs widen{.codes = argsOf(spec_, operands)};
  widen.scaled = !scalesLast_;
  widen.codes.y = memory;
  widen.codes.yElement = spec_.x;
  widen.codes.yStride = panelStride_;
  widen.firstRow = spec_.transposed ? 0 : first;
  widen.rows = spec_.transposed ? spec_.out : columns;
  widen.firstColumn = spec_.transposed ? first : 0;
  widen.columns = spec_.transposed ? columns : spec_.in;
  products_.kernels_.launch(Builtin::widenCodes, widen, widen.rows * ((widen.columns + 3) / 4));

  void *sums = sumsApart_ ? memory + sumsOffset_ : y;
  const MatmulPlan &product = columns == columns_ ? *product_ : *last_;
  product.run(operands.x, memory, sums, scalesLast_ ? nullptr : bias);
  if (!scalesLast_)
    return;
  CodesArgs finish = argsOf(spec_, operands);
  finish.x = sums;
  finish.xStride = sumsApart_ ? columns_ : spec_.yStride;
  finish.scales = static_cast<const float *>(operands.scales) + first;
  finish.bias = bias;
  finish.y = y;
  finish.out = columns;
  products_.kernels_.launch(Builtin::finishColumns, finish, spec_.rows * columns);
}

void QuantizedProducts::ByPanels::run(const QuantizedMatmulArgs &operands) const {
  products_.kernels_.streams().count(products_.calls_);
  products_.panels_.use(products_.panelBytes_, "panels of a weight in codes", [&](std::byte *memory) {
    for (int64_t first = 0; first < spec_.columns(); first += columns_)
      runPanel(operands, first, memory);
  });
}

std::shared_ptr<const QuantizedMatmulPlan> QuantizedProducts::plan(const QuantizedMatmulSpec &spec) {
  std::lock_guard lock(mutex_);
  return plans_.findOrMake(spec, [&]() -> std::shared_ptr<const QuantizedMatmulPlan> {
    if (PanelShape shape = shapeOf(spec, panelBytes_); shape.columns)
      return std::make_shared<const ByPanels>(*this, spec, shape);
    return std::make_shared<const ByKernel>(*this, spec);
  });
}

} // namespace segue::inline runtime::cuda
