//===- Cubin.h - PTX to machine code of GPUs --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A driver compiles PTX when it loads it; a cubin it takes as it is. Cubins are made of the
// very PTX that stands beside them in a file, by NVIDIA's ptxas in a process of its own: the
// one thing of a toolkit that the compiler uses, where it is there.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_NVPTX_CUBIN_H
#define SEGUE_TARGET_NVPTX_CUBIN_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/SmallVector.h"
#include <string>

namespace segue {

struct CubinOptions {
  /// The program, which schemas/ToolkitFiles.h finds; empty for no cubins.
  std::string ptxas;
  /// The compute capabilities to make a cubin for, times ten: each once, none below that of the PTX.
  llvm::SmallVector<unsigned> capabilities;
  /// How long ptxas may take, in seconds.
  unsigned mostSeconds = 600;
};

/// Returns a cubin of `ptx` for each of the capabilities, in their order; they are made at the same time. The same PTX
/// and the same ptxas give the same bytes. What ptxas refuses, in its own words, is emitted as a diagnostic at `module`.
llvm::FailureOr<llvm::SmallVector<std::string>> assembleCubins(mlir::ModuleOp module, llvm::StringRef ptx,
                                                               const CubinOptions &options);

} // namespace segue

#endif // SEGUE_TARGET_NVPTX_CUBIN_H
