//===- StructureOps.cpp - layout changes, kernels and their calls ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Checks.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace segue;

LogicalResult ToLayoutOp::verify() {
  return checks::sameElement(*this, {"result", getResult()}, {"input", getInput()}); // C1
}

/// Returns true if storing in the layout of `type` loses nothing.
static bool isExact(RankedTensorType type) {
  auto layout = dyn_cast_or_null<LayoutAttr>(type.getEncoding());
  return !type.getEncoding() || (layout && layout.getStorage() == Storage::Element);
}

OpFoldResult ToLayoutOp::fold(FoldAdaptor adaptor) {
  if (getInput().getType() == getType())
    return getInput();
  // A detour over an exact layout is none; a narrowing one is kept.
  if (auto inner = getInput().getDefiningOp<ToLayoutOp>(); inner && isExact(inner.getType())) {
    getInputMutable().assign(inner.getInput());
    return getResult();
  }
  return {};
}

LogicalResult FusedOp::verify() {
  Block &body = getBody().front();
  if (body.getNumArguments() != getInputs().size()) // C1
    return emitOpError() << "has " << getInputs().size() << " operands, but its body has " << body.getNumArguments()
                         << " arguments";
  for (auto [i, argument, input] : llvm::enumerate(body.getArguments(), getInputs()))
    if (argument.getType() != input.getType())
      return emitOpError() << "operand " << i << " is " << input.getType() << ", but argument " << i
                           << " of the body is " << argument.getType();
  Operation *yield = body.getTerminator();
  if (yield->getOperandTypes() != getResultTypes()) // C2
    return emitOpError() << "gives (" << getResultTypes() << "), but its body yields (" << yield->getOperandTypes()
                         << ")";
  return success();
}

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
  printer << ")";
  printer.printArrowTypeList(getResultTypes());
  printer.printOptionalAttrDictWithKeyword((*this)->getAttrs());
  printer << " ";
  printer.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

LogicalResult LaunchOp::verify() {
  ArrayRef<int64_t> pairs = getInPlace();
  if (pairs.size() % 2) // C2
    return emitOpError() << "`inPlace` " << checks::listed(pairs) << " must hold pairs of an operand and a result";
  for (size_t i = 0; i < pairs.size(); i += 2) {
    int64_t operand = pairs[i], result = pairs[i + 1], inputs = getInputs().size();
    if (operand < 0 || operand >= inputs || result < 0 || result >= getNumResults())
      return emitOpError() << "`inPlace` pairs operand " << operand << " and result " << result << ", but there are "
                           << inputs << " operands and " << getNumResults() << " results";
    auto from = cast<RankedTensorType>(getInputs()[operand].getType());
    auto to = cast<RankedTensorType>(getResult(result).getType());
    if (from.getElementType() != to.getElementType() || from.getNumElements() != to.getNumElements())
      return emitOpError() << "`inPlace` pairs operand " << operand << ", which is " << getInputs()[operand].getType()
                           << ", and result " << result << ", which is " << getResult(result).getType();
  }
  if (static_cast<int64_t>(getRange()) < 1 || static_cast<int64_t>(getGrain()) < 1) // C3
    return emitOpError() << "has range " << static_cast<int64_t>(getRange()) << " and grain "
                         << static_cast<int64_t>(getGrain()) << ", which must be at least 1";
  return success();
}

/// Verifies that a kernel that is not lowered yet takes buffers of what a launch gives it and wants of it.
static LogicalResult verifyKernelTypes(LaunchOp launch, FunctionOpInterface kernel) {
  auto wrong = [&](const Twine &what, unsigned argument) {
    InFlightDiagnostic diag = launch.emitOpError();
    diag << what << ", but argument " << argument << " of `" << launch.getKernel() << "` is "
         << kernel.getArgumentTypes()[argument];
    diag.attachNote(kernel->getLoc()) << "kernel defined here";
    return diag;
  };
  unsigned inputs = launch.getInputs().size(), buffers = inputs + launch.getNumResults();
  for (unsigned i = 0; i < buffers; ++i) { // C4
    bool isInput = i < inputs;
    Value given = isInput ? launch.getInputs()[i] : launch.getResult(i - inputs);
    auto value = cast<RankedTensorType>(given.getType());
    Type element = value.getElementType();
    if (element.isInteger(1)) // a byte in memory
      element = IntegerType::get(launch.getContext(), 8);
    auto buffer = dyn_cast<MemRefType>(kernel.getArgumentTypes()[i]);
    bool fits = buffer && buffer.getElementType() == element &&
                (!buffer.hasStaticShape() || buffer.getNumElements() == value.getNumElements());
    if (!fits) {
      std::string what;
      llvm::raw_string_ostream(what) << (isInput ? "operand " : "result ") << (isInput ? i : i - inputs) << " is '"
                                     << value << "'";
      return wrong(what, i);
    }
  }
  for (unsigned i : {buffers, buffers + 1}) // C4
    if (!kernel.getArgumentTypes()[i].isIndex())
      return wrong("gives begin and end of its range as index", i);
  if (kernel.getResultTypes().size() != 1 || !kernel.getResultTypes()[0].isInteger(64)) // C4
    return (launch.emitOpError() << "needs a kernel that returns an i64, but `" << launch.getKernel() << "` returns ("
                                 << kernel.getResultTypes() << ")")
               .attachNote(kernel->getLoc())
           << "kernel defined here";
  return success();
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbolTable) {
  auto kernels = symbolTable.lookupNearestSymbolFrom<ModuleOp>(*this, StringAttr::get(getContext(), "kernels"));
  if (!kernels) // C1
    return emitOpError() << "calls `" << getKernel() << "`, but there is no module `@kernels`";
  Operation *kernel = symbolTable.lookupSymbolIn(kernels, getKernelAttr().getAttr());
  auto function = dyn_cast_or_null<FunctionOpInterface>(kernel);
  if (!function)
    return emitOpError() << "calls `" << getKernel() << "`, which is not a function in `@kernels`";
  int64_t arguments = getInputs().size() + getNumResults() + 2;
  if (function.getNumArguments() != arguments)
    return (emitOpError() << "needs a kernel of " << arguments << " arguments (" << getInputs().size() << " operands, "
                          << getNumResults() << " results, begin and end), but `" << getKernel() << "` takes "
                          << function.getNumArguments())
               .attachNote(function->getLoc())
           << "kernel defined here";
  if (isa<func::FuncOp>(kernel))
    return verifyKernelTypes(*this, function);
  return success(); // lowered: pointers, which say nothing of what they lead to
}
