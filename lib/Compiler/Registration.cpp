//===- Registration.cpp - everything that our tools know ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Compiler/Registration.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "segue/Compiler/Pipelines.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Conversion/SegueToProg/Commands.h"
#include "segue/Conversion/SegueToProg/SegueToProg.h"
#include "segue/Dialect/Check/IR/CheckDialect.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Dialect/Prog/Transforms/Passes.h"
#include "segue/Dialect/Segue/Derivatives/Derivatives.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/Passes.h"
#include "segue/Dialect/Segue/Lowerings/Lowerings.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"

void segue::registerAllSegue(mlir::DialectRegistry &registry) {
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  registry.insert<check::CheckDialect, prog::ProgDialect, SegueDialect>();
  registerCommands(registry);
  registerDerivatives(registry);
  registerKernelModels(registry);
  registerLowerings(registry);
}

void segue::registerAllSeguePasses() {
  prog::registerProgTransformsPasses();
  registerSegueInterpreterPasses();
  registerSeguePipelines();
  registerSegueToProgPasses();
  registerSegueTransformsPasses();
}
