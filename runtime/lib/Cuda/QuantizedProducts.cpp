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

/// Returns whether a product has rows for more than a kernel that reads each code once, and terms for the workspace.
static bool isLarge(const QuantizedMatmulSpec &spec, uint64_t bytes) {
  return bytes && spec.rows > CodesArgs::fewRows && spec.flops() >= 2 * termsPerByte * double(bytes);
}

static PanelShape shapeOf(const QuantizedMatmulSpec &spec, uint64_t bytes) {
  PanelShape shape{.depth = spec.transposed ? spec.out : roundUp(spec.in, rowPadding)};
  auto columnsIn = [&](int64_t sumBytes) {
    int64_t perColumn = shape.depth * int64_t(byteSize(spec.x)) + sumBytes;
    return std::min(int64_t(bytes) / perColumn / tileColumns * tileColumns, roundUp(spec.columns(), tileColumns));
  };
  if (!isLarge(spec, bytes))
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

//===----------------------------------------------------------------------===//
// Codes with codes
//===----------------------------------------------------------------------===//

/// The library wants extents and strides of codes, and where they begin, to be multiples of so many.
static constexpr int64_t codesMultiple = 16;
/// The depth of INT8 up to which sums of products of [-127, 127] with [-128, 127] fit into 32 bits.
static constexpr int64_t mostInt8Depth = 1 << 17;
static_assert(mostInt8Depth * 127 * 128 < int64_t(1) << 31);
/// So many rows of x at most are rounded at a time, and no fewer than that where there are more. A panel has so many
/// columns of the result, or all.
static constexpr int64_t mostChunkRows = 2048, leastChunkRows = 128, leastChunkColumns = 512;

namespace {
/// A CodesShape says what a workspace holds of a product of codes with codes: a piece of x, [rows, depth] codes with their scales and
/// sums; of a transposed product [columns, depth] codes of the weight; and the sums [rows, columns].
struct CodesShape {
  /// No rows where the product is none of codes.
  int64_t rows = 0, columns = 0, depth = 0;
  uint64_t scales = 0, rowSums = 0, weight = 0, sums = 0, end = 0;

  void place(bool copiesWeight) {
    auto after = [](uint64_t begin, int64_t bytes) { return (begin + uint64_t(bytes) + 255) / 256 * 256; };
    scales = after(0, rows * depth);
    rowSums = after(scales, rows * int64_t(sizeof(float)));
    weight = after(rowSums, rows * int64_t(sizeof(float)));
    sums = after(weight, copiesWeight ? columns * depth : 0);
    end = after(sums, rows * columns * int64_t(sizeof(float)));
  }
};
} // namespace

/// Returns the largest pieces that the workspace holds; none where there are none, or for what the library does not
/// multiply as codes.
static CodesShape codesShapeOf(const QuantizedMatmulSpec &spec, uint64_t bytes) {
  bool isInt8 = spec.storage == StorageType::Int8Row;
  CodesShape shape{.depth = roundUp(spec.depth(), codesMultiple)};
  if (!isLarge(spec, bytes) || !isRowStorage(spec.storage) || spec.codeStride % codesMultiple ||
      (isInt8 && shape.depth > mostInt8Depth))
    return {};
  // As the codes lie, there are no rows behind the last, and those that pad a row may be no numbers of FP8.
  if (!spec.transposed && (spec.out % codesMultiple || (!isInt8 && spec.in % codesMultiple)))
    return {};
  int64_t columns = roundUp(spec.columns(), codesMultiple);
  for (int64_t most = mostChunkRows; most >= leastChunkRows; most /= 2) {
    shape.rows = std::min(spec.rows, most);
    shape.columns = 0;
    shape.place(spec.transposed);
    if (shape.end >= bytes)
      continue;
    int64_t perColumn = shape.rows * int64_t(sizeof(float)) + (spec.transposed ? shape.depth : 0);
    shape.columns = std::min(int64_t(bytes - shape.end) / perColumn / tileColumns * tileColumns, columns);
    shape.place(spec.transposed);
    if (shape.columns >= std::min(columns, leastChunkColumns) && shape.end <= bytes)
      return shape;
  }
  return {};
}

/// A piece of the rows of x becomes codes once, and is multiplied with panels of the weight. What is no piece of
/// the library's, a weight that begins at no multiple of 16 bytes, goes by a kernel.
class QuantizedProducts::ByCodes final : public QuantizedMatmulPlan {
public:
  ByCodes(QuantizedProducts &products, const QuantizedMatmulSpec &spec, const CodesShape &shape);

  /// Returns whether the library has all products that this is made of.
  bool isThere() const {
    return std::ranges::all_of(pieces_, [](const Piece &piece) { return piece.product != nullptr; });
  }
  void run(const QuantizedMatmulArgs &operands) const override;

  std::string describe() const override {
    return "codes by codes, " + std::to_string(shape_.rows) + " x " + std::to_string(shape_.columns) + ", " +
           pieces_.front().product->describe();
  }

private:
  struct Piece {
    int64_t rows, columns;
    std::shared_ptr<const MatmulPlan> product;
  };
  bool isInt8() const { return spec_.storage == StorageType::Int8Row; }
  const MatmulPlan &productOf(int64_t rows, int64_t columns) const {
    return *std::ranges::find_if(pieces_, [&](const Piece &each) {
              return each.rows == rows && each.columns == columns;
            })->product;
  }
  void quantize(const QuantizedMatmulArgs &operands, int64_t first, int64_t rows, std::byte *memory) const;
  void runPanel(const QuantizedMatmulArgs &operands, int64_t firstRow, int64_t rows, int64_t first,
                std::byte *memory) const;

  QuantizedProducts &products_;
  QuantizedMatmulSpec spec_;
  CodesShape shape_;
  ByKernel elsewhere_;
  /// The products of whole pieces, and of what is left at the end of rows and columns.
  std::vector<Piece> pieces_;
};

QuantizedProducts::ByCodes::ByCodes(QuantizedProducts &products, const QuantizedMatmulSpec &spec,
                                    const CodesShape &shape)
    : products_(products), spec_(spec), shape_(shape), elsewhere_(products, spec) {
  int64_t columns = roundUp(spec.columns(), codesMultiple);
  for (int64_t m : {shape.rows, spec.rows % shape.rows})
    for (int64_t n : {shape.columns, columns % shape.columns}) {
      if (!m || !n)
        continue;
      MatmulSpec product{.m = m, .n = n, .k = shape.depth};
      product.a = {ElementType::i8, {0, shape.depth, 1}};
      product.b = {ElementType::i8, {0, 1, spec.transposed ? shape.depth : spec.codeStride}};
      product.c = {isInt8() ? ElementType::i32 : ElementType::f32, {0, shape.columns, 1}};
      StorageType x = isInt8() ? StorageType::Int8Row : StorageType::Fp8E4M3Row;
      pieces_.push_back({m, n, products.products_.planCodes(product, x, spec.storage)});
    }
  if (isThere())
    products.panels_.takeForPlans(products.panelBytes_);
}

/// Writes rows of x as codes.
void QuantizedProducts::ByCodes::quantize(const QuantizedMatmulArgs &operands, int64_t first, int64_t rows,
                                          std::byte *memory) const {
  int64_t rowBytes = spec_.xStride * int64_t(byteSize(spec_.x));
  QuantizeRowsArgs args{.x = static_cast<const std::byte *>(operands.x) + first * rowBytes,
                        .codes = memory,
                        .scales = reinterpret_cast<float *>(memory + shape_.scales),
                        .rows = rows,
                        .columns = spec_.depth(),
                        .xStride = spec_.xStride,
                        .codeStride = shape_.depth,
                        .xElement = spec_.x,
                        .storage = isInt8() ? StorageType::Int8Row : StorageType::Fp8E4M3Row};
  if (spec_.transposed)
    args.factors = static_cast<const float *>(operands.scales);
  if (spec_.hasZeroPoints) {
    args.rowSums = reinterpret_cast<float *>(memory + shape_.rowSums);
    args.zeroPoints = spec_.transposed ? static_cast<const float *>(operands.zeroPoints) : nullptr;
  }
  products_.kernels_.launch(Builtin::quantizeRows, args, rows, 1);
}

/// Makes the columns of the result from `first` on, of rows that are codes.
void QuantizedProducts::ByCodes::runPanel(const QuantizedMatmulArgs &operands, int64_t firstRow, int64_t rows,
                                          int64_t first, std::byte *memory) const {
  int64_t columns = std::min(shape_.columns, roundUp(spec_.columns(), codesMultiple) - first);
  const std::byte *weight =
      static_cast<const std::byte *>(operands.codes) + (spec_.transposed ? first : first * spec_.codeStride);
  // A weight that is one panel is there from the rows before.
  if (spec_.transposed && (!firstRow || shape_.columns < spec_.columns()))
    products_.kernels_.launch(
        Builtin::transposeCodes,
        TransposeCodesArgs{.codes = weight, .target = memory + shape_.weight, .rows = spec_.out, .columns = columns,
                           .codeStride = spec_.codeStride, .targetStride = shape_.depth},
        roundUp(shape_.depth, tileColumns) / tileColumns * (roundUp(columns, tileColumns) / tileColumns), 1);
  std::byte *sums = memory + shape_.sums;
  productOf(rows, columns).run(memory, spec_.transposed ? memory + shape_.weight : weight, sums, nullptr);

  FinishCodesArgs finish{.sums = sums,
                         .rowScales = reinterpret_cast<const float *>(memory + shape_.scales),
                         .y = static_cast<std::byte *>(operands.y) +
                              (firstRow * spec_.yStride + first) * int64_t(byteSize(spec_.y)),
                         .rows = rows,
                         .columns = std::min(columns, spec_.columns() - first),
                         .sumStride = shape_.columns,
                         .yStride = spec_.yStride,
                         .biasElement = spec_.bias,
                         .yElement = spec_.y,
                         .isInteger = isInt8()};
  if (!spec_.transposed)
    finish.scales = static_cast<const float *>(operands.scales) + first;
  if (spec_.hasZeroPoints) {
    finish.rowSums = reinterpret_cast<const float *>(memory + shape_.rowSums);
    finish.zeroPoints = spec_.transposed ? nullptr : static_cast<const float *>(operands.zeroPoints) + first;
  }
  if (spec_.hasBias)
    finish.bias = static_cast<const std::byte *>(operands.bias) + first * int64_t(byteSize(spec_.bias));
  products_.kernels_.launch(Builtin::finishCodes, finish, finish.rows * finish.columns);
}

void QuantizedProducts::ByCodes::run(const QuantizedMatmulArgs &operands) const {
  if (uintptr_t(operands.codes) % codesMultiple)
    return elsewhere_.run(operands);
  products_.kernels_.streams().count(products_.calls_);
  products_.panels_.use(products_.panelBytes_, "codes of the rows of a product", [&](std::byte *memory) {
    for (int64_t firstRow = 0; firstRow < spec_.rows; firstRow += shape_.rows) {
      int64_t rows = std::min(shape_.rows, spec_.rows - firstRow);
      quantize(operands, firstRow, rows, memory);
      for (int64_t first = 0; first < spec_.columns(); first += shape_.columns)
        runPanel(operands, firstRow, rows, first, memory);
    }
  });
}

std::shared_ptr<const QuantizedMatmulPlan> QuantizedProducts::plan(const QuantizedMatmulSpec &spec) {
  std::lock_guard lock(mutex_);
  return plans_.findOrMake(spec, [&]() -> std::shared_ptr<const QuantizedMatmulPlan> {
    if (CodesShape shape = codesShapeOf(spec, roundsToCodes_ ? panelBytes_ : 0); shape.rows)
      if (auto codes = std::make_shared<const ByCodes>(*this, spec, shape); codes->isThere())
        return codes;
    if (PanelShape shape = shapeOf(spec, panelBytes_); shape.columns)
      return std::make_shared<const ByPanels>(*this, spec, shape);
    return std::make_shared<const ByKernel>(*this, spec);
  });
}

} // namespace segue::inline runtime::cuda
