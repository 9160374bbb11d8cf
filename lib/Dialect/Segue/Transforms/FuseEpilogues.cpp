//===- FuseEpilogues.cpp - products take the gelu behind them -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"

using namespace mlir;
using namespace segue;

namespace segue {
#define GEN_PASS_DEF_SEGUEFUSEEPILOGUES
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

/// The library writes sums beside results in rows of a multiple of so many elements.
static constexpr int64_t kColumns = 8;

namespace {
/// Rows times a matrix, as `segue.dot_gelu` has them.
struct RowProduct {
  Value lhs, rhs;
  bool transposed;
};
} // namespace

/// Returns true if a program reads `value` from an input that is codes.
static bool isOfCodes(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<TransposeOp, ReshapeOp, ToLayoutOp>(op))
      return false;
    value = op->getOperand(0);
  }
  auto layout = dyn_cast_if_present<LayoutAttr>(cast<RankedTensorType>(value.getType()).getEncoding());
  return layout && layout.isQuantized();
}

/// Returns true if a kernel reads `value`, which would make it without reading or writing anything more.
static bool isReadByKernel(Value value) {
  return llvm::any_of(value.getUsers(), [](Operation *user) {
    if (isa<TransposeOp, ReshapeOp, ToLayoutOp>(user))
      return isReadByKernel(user->getResult(0));
    return !isa<DotGeneralOp, DotGeluOp, func::ReturnOp>(user);
  });
}

static std::optional<RowProduct> asRowProduct(DotGeneralOp dot) {
  RankedTensorType type = dot.getType();
  auto lhs = cast<RankedTensorType>(dot.getLhs().getType()), rhs = cast<RankedTensorType>(dot.getRhs().getType());
  Type element = type.getElementType();
  bool isKnown = (element.isF32() || element.isBF16() || element.isF16()) && lhs.getElementType() == element &&
                 rhs.getElementType() == element;
  if (!isKnown || dot.getBias() || !dot.getLhsBatch().empty() || rhs.getRank() != 2 ||
      dot.getLhsContract() != ArrayRef<int64_t>{lhs.getRank() - 1} || type.getShape().back() % kColumns != 0 ||
      type.getNumElements() == 0 || isOfCodes(dot.getRhs()))
    return std::nullopt;
  RowProduct product{dot.getLhs(), dot.getRhs(), dot.getRhsContract().front() == 1};
  // A library call reads dense tensors: a matrix that is shown turned is read as it lies.
  if (auto turned = product.rhs.getDefiningOp<TransposeOp>();
      turned && turned.getPermutation() == ArrayRef<int64_t>{1, 0}) {
    product.rhs = turned.getInput();
    product.transposed = !product.transposed;
  }
  return product;
}

/// Copies what says to which block of the model an op belongs.
static void copyBlock(Operation *from, Operation *to) {
  if (Attribute block = from->getAttr(SegueDialect::kBlockAttr))
    to->setAttr(SegueDialect::kBlockAttr, block);
}

static void eraseUnused(Operation *op) {
  if (op && op->use_empty())
    op->erase();
}

/// Makes the product that `gelu` follows, with or without a bias, one op with it. False if there is no such product.
static bool fuse(GeluOp gelu) {
  if (gelu.getKind() != GeluKind::Tanh || isReadByKernel(gelu.getResult()))
    return false;
  Value sums = gelu.getInput();
  auto dot = sums.getDefiningOp<DotGeneralOp>();
  auto add = sums.getDefiningOp<AddOp>();
  BroadcastOp repeated;
  for (bool swapped : {false, true}) {
    if (dot || !add)
      break;
    auto left = add->getOperand(swapped).getDefiningOp<DotGeneralOp>();
    repeated = add->getOperand(!swapped).getDefiningOp<BroadcastOp>();
    if (!left || !repeated || !left->hasOneUse())
      continue;
    RankedTensorType bias = repeated.getInput().getType(), type = left.getType();
    if (bias.getRank() == 1 && repeated.getDims().front() == type.getRank() - 1 &&
        bias.getElementType() == type.getElementType())
      dot = left;
  }
  if (!dot || dot->getBlock() != gelu->getBlock())
    return false;
  std::optional<RowProduct> product = asRowProduct(dot);
  if (!product)
    return false;
  Operation *last = sums.getDefiningOp();
  Type type = gelu.getType();
  bool isWanted = !sums.hasOneUse();
  OpBuilder builder(last);
  auto made = DotGeluOp::create(builder, last->getLoc(), type, isWanted ? type : Type(), product->lhs, product->rhs,
                                repeated ? repeated.getInput() : Value(), product->transposed);
  copyBlock(last, made);
  gelu.replaceAllUsesWith(made.getResult());
  gelu.erase();
  if (isWanted)
    sums.replaceAllUsesWith(made.getSums());
  eraseUnused(last);
  if (add) {
    eraseUnused(dot);
    eraseUnused(repeated);
  }
  return true;
}

namespace {
struct FuseEpiloguesPass : segue::impl::SegueFuseEpiloguesBase<FuseEpiloguesPass> {
  void runOnOperation() override {
    SmallVector<GeluOp> gelus;
    getOperation().walk([&](GeluOp gelu) { gelus.push_back(gelu); });
    for (GeluOp gelu : gelus)
      fused += fuse(gelu);
  }
};
} // namespace
