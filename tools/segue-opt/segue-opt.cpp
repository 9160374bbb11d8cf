//===- segue-opt.cpp - runs passes on a module ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../MlirOutput.h"
#include "../ShortDiagnostics.h"
#include "../ToolCompletion.h"
#include "../ToolVersion.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "segue/Compiler/Registration.h"

int main(int argc, char **argv) {
  segue::tool::setVersion("segue-opt");
  segue::tool::addCompletion("segue-opt");
  segue::tool::shortenDiagnostics();
  mlir::DialectRegistry registry;
  mlir::registerAllPasses();
  segue::registerAllSegue(registry);
  segue::registerAllSeguePasses();
  return segue::tool::withOutputFile(argc, argv, [&](int count, char **arguments) {
    return succeeded(mlir::MlirOptMain(count, arguments, "Segue optimizer driver\n", registry));
  });
}
