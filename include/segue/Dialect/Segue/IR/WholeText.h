//===- WholeText.h - the text by which ops are compared ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels that print alike are stored once, and the hash of a kernel in a file
// is that of its text. The options with which people print IR
// (--mlir-print-skip-regions, --mlir-elide-elementsattrs-if-larger,
// --mlir-print-debuginfo, ...) are the defaults of OpPrintingFlags, so that a
// text that is compared needs flags that say everything.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_WHOLETEXT_H
#define SEGUE_DIALECT_SEGUE_IR_WHOLETEXT_H

#include "mlir/IR/OperationSupport.h"
#include <limits>

namespace segue {

/// Returns flags that print all of an op but its locations, whatever the command line asks of the printer.
inline mlir::OpPrintingFlags wholeText() {
  return mlir::OpPrintingFlags()
      .useLocalScope()
      .elideLargeElementsAttrs(std::numeric_limits<int64_t>::max())
      .printLargeElementsAttrWithHex()
      .enableDebugInfo(false)
      .printGenericOpForm(false)
      .skipRegions(false)
      .printValueUsers(false)
      .printUniqueSSAIDs(false)
      .printNameLocAsPrefix(false);
}

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_IR_WHOLETEXT_H
