//===- BuiltinPtx.h - the PTX of the runtime's own kernels ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Texts of the .ptx files of the folder Builtin, which CMake writes into BuiltinPtx.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTINPTX_H
#define SEGUE_LIB_CUDA_BUILTINPTX_H

#include "Builtin/BuiltinArgs.h"

namespace segue::inline runtime::cuda {

#define SEGUE_BUILTIN_TEXT(file, flushes) extern const char *const ptxOf##file;
SEGUE_BUILTIN_FILES(SEGUE_BUILTIN_TEXT)
#undef SEGUE_BUILTIN_TEXT

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_BUILTINPTX_H
