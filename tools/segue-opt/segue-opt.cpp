//===- segue-opt.cpp - runs passes on a module ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "segue/Conversion/SegueToProg/SegueToProg.h"
#include "segue/Dialect/Check/IR/CheckDialect.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Dialect/Segue/Derivatives/Derivatives.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/Passes.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::registerAllPasses();
  registry.insert<segue::SegueDialect, segue::check::CheckDialect, segue::prog::ProgDialect>();
  segue::registerDerivatives(registry);
  segue::registerSegueInterpreterPasses();
  segue::registerSegueToProgPasses();
  segue::registerSegueTransformsPasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "Segue optimizer driver\n", registry));
}
