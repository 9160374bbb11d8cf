//===- Hash.cpp - the hash of bytes ---------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Hash.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace segue::inline runtime {

uint64_t hashOf(const void *data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed); // of seed 0 it is XXH3_64bits
}

struct HashOfPieces::State {
  XXH3_state_t state;
};

HashOfPieces::HashOfPieces(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_64bits_reset_withSeed(&state_->state, seed);
}

HashOfPieces::HashOfPieces(HashOfPieces &&) noexcept = default;
HashOfPieces::~HashOfPieces() = default;

void HashOfPieces::add(const void *data, size_t bytes) { XXH3_64bits_update(&state_->state, data, bytes); }

uint64_t HashOfPieces::value() const { return XXH3_64bits_digest(&state_->state); }

} // namespace segue::inline runtime
