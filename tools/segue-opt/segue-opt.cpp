//===- segue-opt.cpp - runs passes on a module ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "segue/Compiler/Registration.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  mlir::registerAllPasses();
  segue::registerAllSegue(registry);
  segue::registerAllSeguePasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "Segue optimizer driver\n", registry));
}
