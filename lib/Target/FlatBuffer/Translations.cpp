//===- Translations.cpp - .segue files in segue-translate -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/Tools/mlir-translate/Translation.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"
#include "llvm/Support/SourceMgr.h"

using namespace mlir;

void segue::registerFlatBufferTranslations() {
  static TranslateFromMLIRRegistration toFlatBuffer(
      "prog-to-flatbuffer", "Write a module of the prog dialect as a .segue file",
      [](ModuleOp module, raw_ostream &os) { return exportBinary(module, os); },
      [](DialectRegistry &registry) { registry.insert<prog::ProgDialect>(); });
  static TranslateToMLIRRegistration fromFlatBuffer(
      "flatbuffer-to-prog", "Read a .segue file as a module of the prog dialect",
      [](llvm::SourceMgr &sources, MLIRContext *context) -> OwningOpRef<Operation *> {
        const llvm::MemoryBuffer *buffer = sources.getMemoryBuffer(sources.getMainFileID());
        return importBinary(buffer->getBuffer(), context, buffer->getBufferIdentifier());
      },
      [](DialectRegistry &registry) { registry.insert<prog::ProgDialect>(); });
}
