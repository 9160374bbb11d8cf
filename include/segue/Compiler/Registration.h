//===- Registration.h - everything that our tools know ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One list of dialects, interfaces and passes for all tools. A new pass library
// or dialect adds its line in Registration.cpp and nowhere else.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_COMPILER_REGISTRATION_H
#define SEGUE_COMPILER_REGISTRATION_H

#include "mlir/IR/DialectRegistry.h"

namespace segue {

/// Registers our dialects, those of MLIR that they become, and all external models.
void registerAllSegue(mlir::DialectRegistry &registry);

/// Registers our passes and pipelines, by name. Called once per process.
void registerAllSeguePasses();

} // namespace segue

#endif // SEGUE_COMPILER_REGISTRATION_H
