//===- segue-translate.cpp - between MLIR and .segue files ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/Support/LogicalResult.h"
#include "mlir/Tools/mlir-translate/MlirTranslateMain.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"

int main(int argc, char **argv) {
  segue::registerFlatBufferTranslations();
  return failed(mlir::mlirTranslateMain(argc, argv, "Segue translation driver\n"));
}
