//===- MlirInput.h - inputs of MLIR's drivers, aligned ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Resources of bytecode are read where they lie, each with its alignment: 64 bytes
// for the segments of a program. A large file is mapped at a page; what comes from
// a pipe, or is small, is read into memory that malloc aligns to 16, and MLIR's
// drivers refuse there what they have written.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_MLIRINPUT_H
#define SEGUE_TOOLS_MLIRINPUT_H

#include "mlir/Bytecode/BytecodeReader.h"
#include "mlir/Support/FileUtilities.h"
#include "llvm/Support/Alignment.h"
#include "llvm/Support/MemoryBuffer.h"
#include <cstring>

namespace segue::tool {

/// Opens a file, or standard input for -, as mlir::openInputFile does, with bytecode at the address of a page.
inline std::unique_ptr<llvm::MemoryBuffer> openAlignedInput(llvm::StringRef name, std::string *error) {
  const llvm::Align page(4096);
  std::unique_ptr<llvm::MemoryBuffer> buffer = mlir::openInputFile(name, error);
  if (!buffer || !mlir::isBytecode(buffer->getMemBufferRef()) || llvm::isAddrAligned(page, buffer->getBufferStart()))
    return buffer;
  std::unique_ptr<llvm::WritableMemoryBuffer> copy = llvm::WritableMemoryBuffer::getNewUninitMemBuffer(
      buffer->getBufferSize(), buffer->getBufferIdentifier(), page);
  std::memcpy(copy->getBufferStart(), buffer->getBufferStart(), buffer->getBufferSize());
  return copy;
}

} // namespace segue::tool

#endif // SEGUE_TOOLS_MLIRINPUT_H
