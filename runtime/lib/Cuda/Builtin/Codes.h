//===- Codes.h - numbers of codes in kernels of a GPU -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_CODES_H
#define SEGUE_LIB_CUDA_BUILTIN_CODES_H

#include "Numbers.h"

#include "segue/runtime/Layout/GroupStorage.h"

namespace gpu {
/// Returns what a code of a row storage stands for, before zero point and scale.
GPU_FUNCTION float codeValue(uint8_t code, segue::StorageType storage) {
  using namespace segue::elements;
  return storage == segue::StorageType::Int8Row      ? Int8Code::value(code)
         : storage == segue::StorageType::Fp8E4M3Row ? E4M3Code::value(code)
                                                     : E5M2Code::value(code);
}

/// The same for the lowest half byte of a word, a code of a group storage.
GPU_FUNCTION float halfByteValue(uint32_t word) { return float(int32_t(word << 28) >> 28); }
} // namespace gpu

#endif // SEGUE_LIB_CUDA_BUILTIN_CODES_H
