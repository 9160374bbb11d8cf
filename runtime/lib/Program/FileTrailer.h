//===- FileTrailer.h - the last bytes of a .segue file ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_FILETRAILER_H
#define SEGUE_LIB_PROGRAM_FILETRAILER_H

#include <cstdint>
#include <string_view>

namespace segue::inline runtime {

/// Little-endian; schemas/binary.fbs says what the numbers are.
struct FileTrailer {
  uint64_t hash, fileBytes, flatBufferBytes;
  char magic[8];
};
static_assert(sizeof(FileTrailer) == 32);

inline constexpr std::string_view trailerMagic = "SEGUEEND";

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_FILETRAILER_H
