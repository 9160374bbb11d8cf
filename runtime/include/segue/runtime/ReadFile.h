//===- ReadFile.h - all bytes of a file -------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_READFILE_H
#define SEGUE_RUNTIME_READFILE_H

#include <filesystem>
#include <string>

namespace segue::inline runtime {

/// Returns what a file holds, or gives until its end, as a pipe. Throws IoFailed with the path and the system's reason,
/// also for a folder and for a disk that fails midway, of which a stream of the standard library tells neither.
std::string readFile(const std::filesystem::path &path);
/// Returns the rest of an open file; errors call it `name`.
std::string readFile(int descriptor, const std::string &name);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_READFILE_H
