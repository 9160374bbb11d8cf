//===- Commands.h - ops that become commands --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_CONVERSION_SEGUETOPROG_COMMANDS_H
#define SEGUE_CONVERSION_SEGUETOPROG_COMMANDS_H

#include "mlir/IR/OpDefinition.h"
#include <optional>

namespace mlir {
class DialectRegistry;
}

namespace segue {

// Defined in lib/Conversion/SegueToProg, which answers CommandOpInterface.
class FunctionLowering;
struct Window;

/// Attaches CommandOpInterface to the ops of the segue dialect that have it.
void registerCommands(mlir::DialectRegistry &registry);

} // namespace segue

#include "segue/Conversion/SegueToProg/Commands.h.inc"

#endif // SEGUE_CONVERSION_SEGUETOPROG_COMMANDS_H
