//===- ContractionOps.cpp - verifies sums, products, attention, convolutions -===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Checks.h"
#include "llvm/Support/MathExtras.h"
#include <limits>

using namespace mlir;
using namespace segue;

LogicalResult ReduceOp::verify() {
  checks::Named input = {"input", getInput()};
  if (failed(checks::dimensions(*this, "dims", getDims(), input)) || // C1
      failed(checks::increasing(*this, "dims", getDims())))
    return failure();
  SmallVector<int64_t> shape;
  for (auto [k, extent] : llvm::enumerate(input.type().getShape()))
    if (!llvm::is_contained(getDims(), static_cast<int64_t>(k)))
      shape.push_back(extent);
  if (failed(checks::shape(*this, {"result", getResult()}, shape, "what is left of `input`")) || // C2
      failed(checks::sameElement(*this, {"result", getResult()}, input)))
    return failure();
  if (getKind() == ReduceKind::Mean && !isa<FloatType>(input.element())) // C3
    return emitOpError() << "takes the mean of " << input.element() << ", which must be a float";
  return success();
}

LogicalResult CumsumOp::verify() { return checks::dimension(*this, getDim(), {"input", getInput()}); } // C1
LogicalResult CummaxOp::verify() { return checks::dimension(*this, getDim(), {"input", getInput()}); } // C1
LogicalResult RecurrenceOp::verify() { return checks::dimension(*this, getDim(), {"input", getInput()}); } // C1

/// (C1) `batch` and `contract` together name distinct dimensions of `value`.
static LogicalResult distinct(Operation *op, checks::Named value, ArrayRef<int64_t> batch, ArrayRef<int64_t> contract) {
  std::string prefix = value.name.str();
  if (failed(checks::dimensions(op, prefix + "Batch", batch, value)) ||
      failed(checks::dimensions(op, prefix + "Contract", contract, value)))
    return failure();
  SmallVector<bool> seen(value.type().getRank(), false);
  for (int64_t dim : llvm::concat<const int64_t>(batch, contract))
    if (std::exchange(seen[dim], true))
      return op->emitOpError() << "names dimension " << dim << " of `" << value.name << "` twice: batch "
                               << checks::listed(batch) << ", contract " << checks::listed(contract);
  return success();
}

/// (C2) the lists pair dimensions of one extent.
static LogicalResult paired(Operation *op, StringRef what, checks::Named lhs, ArrayRef<int64_t> lhsDims,
                            checks::Named rhs, ArrayRef<int64_t> rhsDims) {
  if (lhsDims.size() != rhsDims.size())
    return op->emitOpError() << "has " << lhsDims.size() << " " << what << " dimensions of `lhs`, but "
                             << rhsDims.size() << " of `rhs`";
  for (auto [l, r] : llvm::zip_equal(lhsDims, rhsDims))
    if (lhs.type().getDimSize(l) != rhs.type().getDimSize(r))
      return op->emitOpError() << what << " dimension " << l << " of `lhs` is " << lhs.type().getDimSize(l)
                               << ", but dimension " << r << " of `rhs` is " << rhs.type().getDimSize(r);
  return success();
}

LogicalResult DotGeneralOp::verify() {
  checks::Named lhs = {"lhs", getLhs()}, rhs = {"rhs", getRhs()}, result = {"result", getResult()};
  if (failed(distinct(*this, lhs, getLhsBatch(), getLhsContract())) ||
      failed(distinct(*this, rhs, getRhsBatch(), getRhsContract())) ||
      failed(paired(*this, "batch", lhs, getLhsBatch(), rhs, getRhsBatch())) ||
      failed(paired(*this, "contracting", lhs, getLhsContract(), rhs, getRhsContract())) ||
      failed(checks::sameElement(*this, rhs, lhs))) // C3
    return failure();
  SmallVector<int64_t> shape;
  for (int64_t dim : llvm::concat<const int64_t>(getLhsBatch(), getLhsFree()))
    shape.push_back(lhs.type().getDimSize(dim));
  for (int64_t dim : getRhsFree())
    shape.push_back(rhs.type().getDimSize(dim));
  if (failed(checks::shape(*this, result, shape, "the shape of the product"))) // C4
    return failure();
  auto isLike = [](Type type, Type like) { return type == like || type == computeType(like); };
  if (!isLike(result.element(), lhs.element()))
    return emitOpError() << "`result` holds " << result.element() << ", which must be " << lhs.element()
                         << " as the operands" << (lhs.element().isF64() ? "" : ", or f32");
  if (!getBias())
    return success();
  checks::Named bias = {"bias", getBias()}; // C5
  if (shape.empty())
    return emitOpError("has a `bias`, but `result` has no dimension to add it along");
  if (failed(checks::shape(*this, bias, shape.back(), "the last dimension of `result`")))
    return failure();
  if (!isLike(bias.element(), result.element()))
    return emitOpError() << "`bias` holds " << bias.element() << ", which must be " << result.element()
                         << " as `result`" << (result.element().isF64() ? "" : ", or f32");
  return success();
}

/// (C1) to (C5) of attention, but the shape of the result; its gradient has them, too.
template <typename OpTy> static LogicalResult verifyAttention(OpTy op) {
  checks::Named q = {"q", op.getQ()}, k = {"k", op.getK()}, v = {"v", op.getV()};
  for (checks::Named value : {q, k, v}) // C1
    if (value.type().getRank() != 4)
      return op.emitOpError() << "`" << value.name << "` has shape " << checks::listed(value.type().getShape())
                              << "; it must have 4 dimensions: batch, heads, rows and dim";
  static constexpr StringLiteral kNames[] = {"batch", "heads", "rows", "dim"};
  for (int64_t dim : {0, 1, 3})
    if (q.type().getDimSize(dim) != k.type().getDimSize(dim))
      return op.emitOpError() << "`q` has " << kNames[dim] << " = " << q.type().getDimSize(dim) << " (dimension "
                              << dim << "), but `k` has " << k.type().getDimSize(dim);
  ArrayRef<int64_t> rows = q.type().getShape().drop_back();
  if (op.getMask()) { // C2
    checks::Named mask = {"mask", op.getMask()};
    SmallVector<int64_t> scores(rows);
    scores.push_back(k.type().getDimSize(2));
    bool fits = mask.type().getRank() == 4;
    for (auto [extent, full] : llvm::zip(mask.type().getShape(), scores))
      fits &= extent == 1 || extent == full;
    if (!fits)
      return op.emitOpError() << "`mask` has shape " << checks::listed(mask.type().getShape())
                              << ", but the scores have shape " << checks::listed(scores)
                              << "; each of its 4 dimensions must be equal or 1";
    if (!mask.element().isInteger(1) && !isa<FloatType>(mask.element()))
      return op.emitOpError() << "`mask` holds " << mask.element() << ", which must be i1 or a float";
  }
  if (failed(checks::sameElement(op, k, q)) || failed(checks::sameElement(op, v, q)) || // C3
      failed(checks::shape(op, {"lse", op.getLse()}, rows, "[batch, heads, rows] of `q`"))) // C4
    return failure();
  std::optional<APFloat> dropout = op.getDropout(); // C5
  bool drops = dropout.has_value();
  if (drops != bool(op.getSeed()) || drops != bool(op.getStep()) || drops != op.getId().has_value())
    return op.emitOpError("has only some of `dropout`, `seed`, `step` and `id`; they come together");
  if (float asked = drops ? float(dropout->convertToDouble()) : 0; !(asked >= 0 && asked < 1))
    return op.emitOpError() << "has `dropout` " << dropout->convertToDouble()
                            << ", which must be at least 0 and less than 1";
  return success();
}

LogicalResult AttentionOp::verify() { return verifyAttention(*this); }

LogicalResult AttentionGradOp::verify() { return verifyAttention(*this); }

/// (C1) to (C5) of conv2d and conv3d, for them and their gradients.
template <typename OpTy>
static LogicalResult verifyConvolution(OpTy op, checks::Named input, checks::Named weight, checks::Named output) {
  constexpr int64_t dims = OpTy::kDims;
  for (checks::Named value : {input, weight, output}) // C1
    if (value.type().getRank() != 2 + dims)
      return op.emitOpError() << "`" << value.name << "` has shape " << checks::listed(value.type().getShape())
                              << "; it must have " << 2 + dims << " dimensions";
  std::pair<StringRef, ArrayRef<int64_t>> lists[] = { // C2
      {"strides", op.getStrides()}, {"dilations", op.getDilations()}, {"low", op.getLow()}, {"high", op.getHigh()}};
  for (auto [name, values] : lists) {
    int64_t least = name == "strides" || name == "dilations" ? 1 : 0;
    if (values.size() != dims)
      return op.emitOpError() << "`" << name << "` has " << values.size() << " entries, but there are " << dims
                              << " dimensions";
    for (int64_t value : values)
      if (value < least || value > std::numeric_limits<int32_t>::max())
        return op.emitOpError() << "`" << name << "` is " << checks::listed(values) << "; each must be at least "
                                << least << " and below 2^31";
  }
  int64_t groups = op.getGroups();
  if (groups < 1)
    return op.emitOpError() << "has " << groups << " groups; there must be one at least";
  ArrayRef<int64_t> image = input.type().getShape(), kernel = weight.type().getShape();
  if (image[1] % groups || kernel[0] % groups) // C3
    return op.emitOpError() << "has " << groups << " groups, which must divide the " << image[1] << " channels of `"
                            << input.name << "` and the " << kernel[0] << " outputs of `" << weight.name << "`";
  if (kernel[1] != image[1] / groups)
    return op.emitOpError() << "`" << weight.name << "` has " << kernel[1] << " channels, but a group of `"
                            << input.name << "` has " << image[1] / groups;
  if (weight.type().getNumElements() == 0) // C5
    return op.emitOpError() << "`" << weight.name << "` has shape " << checks::listed(kernel)
                            << "; no extent may be 0";
  SmallVector<int64_t> shape = {image[0], kernel[0]}; // C4
  for (int64_t dim = 0; dim < dims; ++dim) {
    uint64_t padded = uint64_t(image[2 + dim]) + op.getLow()[dim] + op.getHigh()[dim];
    uint64_t spread = llvm::SaturatingMultiplyAdd<uint64_t>(kernel[2 + dim] - 1, op.getDilations()[dim], 1);
    if (spread > padded)
      return op.emitOpError() << "`" << weight.name << "` spans " << spread << " elements of dimension " << 2 + dim
                              << ", but the padded `" << input.name << "` has " << padded;
    shape.push_back(int64_t((padded - spread) / op.getStrides()[dim] + 1));
  }
  if (failed(checks::shape(op, output, shape, "what the weight passes")))
    return failure();
  return failure(failed(checks::sameElement(op, weight, input)) || failed(checks::sameElement(op, output, input))); // C5
}

/// The checks of a convolution with its bias.
template <typename OpTy> static LogicalResult verifyForward(OpTy op) {
  checks::Named weight = {"weight", op.getWeight()};
  if (failed(verifyConvolution(op, {"input", op.getInput()}, weight, {"result", op.getResult()})))
    return failure();
  if (!op.getBias())
    return success();
  checks::Named bias = {"bias", op.getBias()}; // C6
  return failure(failed(checks::shape(op, bias, weight.type().getDimSize(0), "one per output")) ||
                 failed(checks::sameElement(op, bias, weight)));
}

template <typename OpTy> static LogicalResult verifyInputGrad(OpTy op) {
  return verifyConvolution(op, {"result", op.getResult()}, {"weight", op.getWeight()}, {"gradient", op.getGradient()});
}

template <typename OpTy> static LogicalResult verifyWeightGrad(OpTy op) {
  return verifyConvolution(op, {"input", op.getInput()}, {"result", op.getResult()}, {"gradient", op.getGradient()});
}

LogicalResult Conv2dOp::verify() { return verifyForward(*this); }
LogicalResult Conv3dOp::verify() { return verifyForward(*this); }
LogicalResult Conv2dInputGradOp::verify() { return verifyInputGrad(*this); }
LogicalResult Conv3dInputGradOp::verify() { return verifyInputGrad(*this); }
LogicalResult Conv2dWeightGradOp::verify() { return verifyWeightGrad(*this); }
LogicalResult Conv3dWeightGradOp::verify() { return verifyWeightGrad(*this); }

/// `value` has `rank` dimensions.
static LogicalResult verifyRank(Operation *op, checks::Named value, int64_t rank) {
  if (value.type().getRank() == rank)
    return success();
  return op->emitOpError() << "`" << value.name << "` has shape " << checks::listed(value.type().getShape())
                           << "; it must have " << rank << (rank == 1 ? " dimension" : " dimensions");
}

LogicalResult GroupedDotOp::verify() {
  checks::Named rows = {"rows", getRows()}, matrices = {"matrices", getMatrices()}, ends = {"ends", getEnds()};
  if (failed(verifyRank(*this, rows, 2)) || failed(verifyRank(*this, matrices, 3)) || // C1
      failed(verifyRank(*this, ends, 1)))
    return failure();
  ArrayRef<int64_t> shape = matrices.type().getShape();
  if (failed(checks::shape(*this, ends, shape[0], "one per matrix"))) // C2
    return failure();
  int64_t depth = shape[getTransposed() ? 2 : 1], columns = shape[getTransposed() ? 1 : 2];
  if (rows.type().getDimSize(1) != depth) // C3
    return emitOpError() << "`rows` has " << rows.type().getDimSize(1) << " columns, but `matrices` of shape "
                         << checks::listed(shape) << (getTransposed() ? " transposed" : "") << " has " << depth
                         << " there";
  checks::Named result = {"result", getResult()};
  return failure(failed(checks::sameElement(*this, matrices, rows)) || // C4
                 failed(checks::sameElement(*this, result, rows)) ||
                 failed(checks::shape(*this, result, {rows.type().getDimSize(0), columns}, "[rows, columns]"))); // C5
}

LogicalResult GroupedOuterOp::verify() {
  checks::Named lhs = {"lhs", getLhs()}, rhs = {"rhs", getRhs()}, ends = {"ends", getEnds()};
  if (failed(verifyRank(*this, lhs, 2)) || failed(verifyRank(*this, rhs, 2)) || // C1
      failed(verifyRank(*this, ends, 1)))
    return failure();
  if (lhs.type().getDimSize(0) != rhs.type().getDimSize(0)) // C2
    return emitOpError() << "`lhs` has " << lhs.type().getDimSize(0) << " rows, but `rhs` has "
                         << rhs.type().getDimSize(0);
  checks::Named result = {"result", getResult()};
  return failure(failed(checks::sameElement(*this, rhs, lhs)) || // C3
                 failed(checks::sameElement(*this, result, lhs)) ||
                 failed(checks::shape(*this, result, // C4
                                      {ends.type().getDimSize(0), lhs.type().getDimSize(1), rhs.type().getDimSize(1)},
                                      "[ends, columns of `lhs`, columns of `rhs`]")));
}

LogicalResult ArgsortOp::verify() {
  checks::Named input = {"input", getInput()}, result = {"result", getResult()};
  if (input.type().getRank() == 0) // C1
    return emitOpError() << "`input` is a scalar; it must have a dimension at least";
  int64_t length = input.type().getShape().back();
  if (length < 1 || length >= int64_t(1) << 31) // C2
    return emitOpError() << "has rows of " << length << " elements; they must have one or more, and fewer than 2^31";
  SmallVector<int64_t> shape(input.type().getShape());
  if (result.type().getRank() != 0)
    shape.back() = result.type().getShape().back();
  if (failed(checks::shape(*this, result, shape, "`input` with the wanted places"))) // C3
    return failure();
  int64_t first = getFirst();
  if (first < 0 || first > length || shape.back() > length - first) // C4
    return emitOpError() << "wants " << shape.back() << " places from " << first << " on of rows with " << length
                         << " elements";
  return success();
}

LogicalResult DotGeluOp::verify() {
  checks::Named lhs = {"lhs", getLhs()}, rhs = {"rhs", getRhs()}, result = {"result", getResult()};
  if (lhs.type().getRank() == 0) // C1
    return emitOpError() << "`lhs` is a scalar; it must have a dimension at least";
  if (failed(verifyRank(*this, rhs, 2)))
    return failure();
  int64_t depth = rhs.type().getDimSize(getTransposed() ? 1 : 0);
  if (lhs.type().getShape().back() != depth) // C2
    return emitOpError() << "`lhs` has rows of " << lhs.type().getShape().back() << ", but `rhs` of shape "
                         << checks::listed(rhs.type().getShape()) << (getTransposed() ? " transposed" : "") << " has "
                         << depth << " there";
  SmallVector<int64_t> shape(lhs.type().getShape());
  shape.back() = rhs.type().getDimSize(getTransposed() ? 0 : 1);
  if (failed(checks::sameElement(*this, rhs, lhs)) || // C3
      failed(checks::sameElement(*this, result, lhs)) ||
      failed(checks::shape(*this, result, shape, "rows of `lhs` with the columns of `rhs`"))) // C4
    return failure();
  if (getSums() && getSums().getType() != getResult().getType())
    return emitOpError() << "`sums` has type " << getSums().getType() << ", but the result has "
                         << getResult().getType();
  if (!getBias())
    return success();
  checks::Named bias = {"bias", getBias()}; // C5
  return failure(failed(checks::sameElement(*this, bias, result)) ||
                 failed(checks::shape(*this, bias, shape.back(), "one per column")));
}
