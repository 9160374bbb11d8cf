//===- FlatBuffer.h - .segue files ------------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Between modules of the prog dialect and the bytes of a file, both ways:
// importing what was exported gives the identical module, and the identical
// module gives the identical bytes. schemas/binary.fbs describes the file.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_FLATBUFFER_FLATBUFFER_H
#define SEGUE_TARGET_FLATBUFFER_FLATBUFFER_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/Support/raw_ostream.h"

namespace segue {

/// Writes the file of `module`. Errors are emitted as diagnostics, and nothing
/// is written: ops of other dialects, temporaries without an offset.
llvm::LogicalResult exportBinary(mlir::ModuleOp module, llvm::raw_ostream &os);

/// Reads a file. `bytes` are untrusted: the trailer and its hash, the
/// FlatBuffer, every index, offset and size are checked, and the module is
/// verified. Null after an error, which is emitted at `name`.
mlir::OwningOpRef<mlir::ModuleOp> importBinary(llvm::StringRef bytes, mlir::MLIRContext *context,
                                               llvm::StringRef name = "<binary>");

/// Registers `--prog-to-flatbuffer` and `--flatbuffer-to-prog`.
void registerFlatBufferTranslations();

} // namespace segue

#endif // SEGUE_TARGET_FLATBUFFER_FLATBUFFER_H
