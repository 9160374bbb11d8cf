//===- Workspaces.cpp - memory beside the operands of products ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Workspaces.h"
#include <algorithm>

namespace segue::inline runtime::cuda {

static constexpr uint32_t pieceAlignment = 256;

Workspaces::~Workspaces() {
  for (const auto &[block, bytes] : taken_)
    memory_.free(Space::DeviceDram, block.data, bytes, pieceAlignment, block.account, {});
}

Workspaces::Piece Workspaces::take(size_t lane, uint64_t bytes, bool makesRoom) {
  std::lock_guard lock(mutex_);
  Piece &piece = pieces_[lane];
  if (piece.bytes >= bytes)
    return piece;
  uint64_t wanted = bytesFor(bytes);
  OwnerId owner = memory_.intern({.value = owner_});
  MemoryBlock block = makesRoom ? memory_.allocate(Space::DeviceDram, wanted, pieceAlignment, owner)
                                : memory_.tryAllocate(Space::DeviceDram, wanted, pieceAlignment, owner);
  if (!block.data)
    return {};
  taken_.emplace_back(block, wanted);
  streams_.wait(block.after);
  return piece = {block.data, wanted};
}

} // namespace segue::inline runtime::cuda
