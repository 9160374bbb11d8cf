//===- Hash.h - the hash of bytes -------------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// XXH3-64, compiled once: each source that includes xxhash.h inline holds a copy
// of it, and a library that embedders link has no kilobytes for several.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_HASH_H
#define SEGUE_LIB_HASH_H

#include <cstddef>
#include <cstdint>
#include <memory>

namespace segue::inline runtime {

/// Returns the hash of `bytes` bytes at `data`, which may be null if there are none. Any thread may call.
uint64_t hashOf(const void *data, size_t bytes, uint64_t seed = 0);

/// Computes the hash of `hashOf` for bytes that come in pieces. One thread may use it.
class HashOfPieces {
public:
  explicit HashOfPieces(uint64_t seed = 0);
  HashOfPieces(HashOfPieces &&) noexcept;
  ~HashOfPieces();
  void add(const void *data, size_t bytes);
  /// Returns the hash of all pieces so far, one behind the other.
  uint64_t value() const;

private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_HASH_H
