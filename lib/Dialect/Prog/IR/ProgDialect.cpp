//===- ProgDialect.cpp - the prog dialect ---------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Prog/IR/ProgDialect.h"

using namespace mlir;
using namespace segue::prog;

#include "segue/Dialect/Prog/IR/ProgDialect.cpp.inc"
#include "segue/Dialect/Prog/IR/ProgEnums.cpp.inc"

void ProgDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "segue/Dialect/Prog/IR/ProgOps.cpp.inc"
      >();
  registerAttributes();
}

LogicalResult ProgDialect::verifyOperationAttribute(Operation *op, NamedAttribute attr) {
  if (!isa<ModuleOp>(op))
    return op->emitError() << "`" << attr.getName().getValue() << "` belongs on the module";
  if (attr.getName() == kVersionAttr) {
    auto version = dyn_cast<DenseI32ArrayAttr>(attr.getValue());
    if (!version || version.size() != 2 || version[0] < 0 || version[1] < 0)
      return op->emitError() << "`prog.version` is " << attr.getValue() << ", but must be array<i32: major, minor>";
    return success();
  }
  if (attr.getName() == kProducerAttr) {
    if (!isa<StringAttr>(attr.getValue()))
      return op->emitError() << "`prog.producer` is " << attr.getValue() << ", but must be a string";
    return success();
  }
  if (attr.getName() == kOptionsAttr) {
    auto options = dyn_cast<DictionaryAttr>(attr.getValue());
    if (!options || !llvm::all_of(options, [](NamedAttribute option) { return isa<StringAttr>(option.getValue()); }))
      return op->emitError() << "`prog.options` must be a dictionary of strings";
    return success();
  }
  return op->emitError() << "`" << attr.getName().getValue() << "` is no attribute of the prog dialect; known are "
                         << "`prog.version`, `prog.producer` and `prog.options`";
}
