//===- FileLayout.h - what surrounds the FlatBuffer -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// FlatBuffer with its size, padding, segments, trailer: see binary.fbs.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_FLATBUFFER_FILELAYOUT_H
#define SEGUE_LIB_TARGET_FLATBUFFER_FILELAYOUT_H

#include "llvm/ADT/StringRef.h"
#include <cstdint>

namespace segue {

/// The last bytes of a file, little-endian.
struct Trailer {
  /// XXH3-64 of all bytes before the trailer.
  uint64_t hash;
  /// Length of the file.
  uint64_t fileBytes;
  /// Length of the FlatBuffer with its prefix.
  uint64_t flatBufferBytes;
  char magic[8];
};
static_assert(sizeof(Trailer) == 32);

inline constexpr llvm::StringLiteral kMagic = "SEGUEEND";

/// The version of the vocabulary of layouts in types.fbs.
inline constexpr uint32_t kLayoutVocabulary = 3;

} // namespace segue

#endif // SEGUE_LIB_TARGET_FLATBUFFER_FILELAYOUT_H
