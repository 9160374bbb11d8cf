//===- SegueOps.cpp - ops of the segue dialect ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/PatternMatch.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

#define GET_OP_CLASSES
#include "segue/Dialect/Segue/IR/SegueOps.cpp.inc"

OpFoldResult NegOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult NotOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult AddOp::fold(FoldAdaptor adaptor) { return {}; }
void AddOp::getCanonicalizationPatterns(RewritePatternSet &, MLIRContext *) {}
OpFoldResult SubOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult MulOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult DivOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult PowOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult SelectOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult CastOp::fold(FoldAdaptor adaptor) { return {}; }
OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }
LogicalResult IotaOp::verify() { return success(); }
LogicalResult ReshapeOp::verify() { return success(); }
OpFoldResult ReshapeOp::fold(FoldAdaptor adaptor) { return {}; }
LogicalResult TransposeOp::verify() { return success(); }
OpFoldResult TransposeOp::fold(FoldAdaptor adaptor) { return {}; }
LogicalResult BroadcastOp::verify() { return success(); }
OpFoldResult BroadcastOp::fold(FoldAdaptor adaptor) { return {}; }
LogicalResult SliceOp::verify() { return success(); }
OpFoldResult SliceOp::fold(FoldAdaptor adaptor) { return {}; }
LogicalResult PadOp::verify() { return success(); }
OpFoldResult PadOp::fold(FoldAdaptor adaptor) { return {}; }
LogicalResult ConcatOp::verify() { return success(); }
OpFoldResult ConcatOp::fold(FoldAdaptor adaptor) { return {}; }
LogicalResult ReduceOp::verify() { return success(); }
OpFoldResult ReduceOp::fold(FoldAdaptor adaptor) { return {}; }
void ReduceOp::getCanonicalizationPatterns(RewritePatternSet &, MLIRContext *) {}
LogicalResult DotGeneralOp::verify() { return success(); }
void DotGeneralOp::getCanonicalizationPatterns(RewritePatternSet &, MLIRContext *) {}
LogicalResult AttentionOp::verify() { return success(); }
LogicalResult AttentionGradOp::verify() { return success(); }
LogicalResult LayerNormOp::verify() { return success(); }
LogicalResult RmsNormOp::verify() { return success(); }
LogicalResult SoftmaxOp::verify() { return success(); }
LogicalResult LogSoftmaxOp::verify() { return success(); }
LogicalResult CrossEntropyOp::verify() { return success(); }
LogicalResult GatherOp::verify() { return success(); }
LogicalResult ScatterAddOp::verify() { return success(); }
LogicalResult AdamWOp::verify() { return success(); }
LogicalResult ToLayoutOp::verify() { return success(); }
OpFoldResult ToLayoutOp::fold(FoldAdaptor adaptor) { return {}; }
LogicalResult FusedOp::verify() { return success(); }

ParseResult FusedOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::Argument> arguments;
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SmallVector<Type> types, results;
  SMLoc loc = parser.getCurrentLocation();
  auto pair = [&]() -> ParseResult {
    return failure(parser.parseArgument(arguments.emplace_back()) || parser.parseEqual() ||
                   parser.parseOperand(operands.emplace_back()) || parser.parseColonType(types.emplace_back()));
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, pair) || parser.parseArrowTypeList(results) ||
      parser.parseOptionalAttrDictWithKeyword(result.attributes))
    return failure();
  for (auto [argument, type] : llvm::zip_equal(arguments, types))
    argument.type = type;
  result.addTypes(results);
  return failure(parser.resolveOperands(operands, types, loc, result.operands) ||
                 parser.parseRegion(*result.addRegion(), arguments));
}

void FusedOp::print(OpAsmPrinter &printer) {
  printer << "(";
  llvm::interleaveComma(llvm::zip_equal(getBody().getArguments(), getInputs()), printer, [&](auto pair) {
    printer << std::get<0>(pair) << " = " << std::get<1>(pair) << " : " << std::get<1>(pair).getType();
  });
  printer << ") -> (" << getResultTypes() << ")";
  printer.printOptionalAttrDictWithKeyword((*this)->getAttrs());
  printer << " ";
  printer.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}
