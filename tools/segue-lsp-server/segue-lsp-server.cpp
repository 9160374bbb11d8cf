//===- segue-lsp-server.cpp - our dialects in an editor -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../ShortDiagnostics.h"
#include "../ToolVersion.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"
#include "segue/Compiler/Registration.h"

int main(int argc, char **argv) {
  segue::tool::setVersion("segue-lsp-server");
  segue::tool::shortenDiagnostics();
  mlir::DialectRegistry registry;
  segue::registerAllSegue(registry);
  return failed(mlir::MlirLspServerMain(argc, argv, registry));
}
