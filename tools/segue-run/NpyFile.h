//===- NpyFile.h - numpy's array files --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// numpy has no bf16: an array of uint16 stands for the bits of a bf16 tensor,
// in both directions.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_NPYFILE_H
#define SEGUE_TOOLS_SEGUERUN_NPYFILE_H

#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <filesystem>

namespace segue::tool {

/// Reads float64, float32, float16, int64, int32, int8, bool and uint16 (bf16), little
/// endian, in C or Fortran order. Throws IoFailed, FileCorrupt, Unsupported.
Tensor readNpy(const DeviceRef &device, const std::filesystem::path &path);

/// Writes the file whole or not at all. Throws IoFailed.
void writeNpy(const std::filesystem::path &path, const Tensor &tensor);

/// Appends all of it to `file`, which the caller commits. Throws IoFailed.
void writeNpy(OutputFile &file, const Tensor &tensor);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_NPYFILE_H
