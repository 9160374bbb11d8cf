//===- ProgAttrs.cpp - attributes of the prog dialect ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/DialectImplementation.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue;
using namespace segue::prog;

#define GET_ATTRDEF_CLASSES
#include "segue/Dialect/Prog/IR/ProgAttrs.cpp.inc"

void ProgDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "segue/Dialect/Prog/IR/ProgAttrs.cpp.inc"
      >();
}

LogicalResult ValueAttr::verify(function_ref<InFlightDiagnostic()> emitError, StringAttr name, Role role,
                                RankedTensorType type, StringAttr of, ArrayRef<LayoutAttr> alternatives) {
  if (name.getValue().empty()) // C1
    return emitError() << "a value of a signature has an empty name";
  MemRefType buffer = bufferType(type);
  if (!buffer || !viewBytes(buffer)) // C2
    return emitError() << "value \"" << name.getValue() << "\" has type " << type
                       << ", which cannot be stored: a static shape of f64, f32, bf16, f16, i64, i32, i8 or i1 "
                          "with a `#segue.layout` or none is needed";
  for (LayoutAttr layout : alternatives)
    if (failed(layout.verifyEncoding(type.getShape(), type.getElementType(), [&] {
          InFlightDiagnostic diag = emitError();
          diag << "alternative " << layout << " of value \"" << name.getValue() << "\": ";
          return diag;
        })))
      return failure();
  return success();
}

LogicalResult ArenaAttr::verify(function_ref<InFlightDiagnostic()> emitError, Space space, uint64_t bytes,
                                uint64_t lowerBound, uint32_t alignment) {
  if (!llvm::isPowerOf2_32(alignment))
    return emitError() << "arena alignment " << alignment << " is not a power of two";
  if (lowerBound > bytes)
    return emitError() << "arena has " << bytes << " bytes, less than its lower bound " << lowerBound;
  return success();
}

/// `<output 0 = input 2 required>`
void AliasAttr::print(AsmPrinter &printer) const {
  printer << "<output " << getOutput() << " = input " << getInput() << (getRequired() ? " required>" : ">");
}

Attribute AliasAttr::parse(AsmParser &parser, Type) {
  uint32_t output = 0, input = 0;
  if (parser.parseLess() || parser.parseKeyword("output") || parser.parseInteger(output) || parser.parseEqual() ||
      parser.parseKeyword("input") || parser.parseInteger(input))
    return {};
  bool required = succeeded(parser.parseOptionalKeyword("required"));
  if (parser.parseGreater())
    return {};
  return AliasAttr::get(parser.getContext(), output, input, required);
}
