//===- segue-translate.cpp - between MLIR and .segue files ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../MlirOutput.h"
#include "../ShortDiagnostics.h"
#include "../ToolCompletion.h"
#include "../ToolVersion.h"
#include "mlir/Support/LogicalResult.h"
#include "mlir/Tools/mlir-translate/MlirTranslateMain.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"

int main(int argc, char **argv) {
  segue::tool::setVersion("segue-translate");
  segue::tool::addCompletion("segue-translate");
  segue::tool::shortenDiagnostics();
  segue::registerFlatBufferTranslations();
  return segue::tool::withOutputFile(argc, argv, [](int count, char **arguments) {
    return succeeded(mlir::mlirTranslateMain(count, arguments, "Segue translation driver\n"));
  });
}
