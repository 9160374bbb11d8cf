//===- ArenaPacking.h - places intervals in an arena ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The planner's core as plain data: sizes and lifetimes in, offsets out.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_TRANSFORMS_ARENAPACKING_H
#define SEGUE_DIALECT_PROG_TRANSFORMS_ARENAPACKING_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include <cstdint>

namespace segue::prog {

/// A number of bytes that are needed from command `first` to command `last`, both
/// inclusive.
struct Lifetime {
  uint64_t bytes = 0;
  uint32_t first = 0;
  uint32_t last = 0;
};

struct Packing {
  /// One per lifetime, multiples of the alignment.
  llvm::SmallVector<uint64_t> offsets;
  uint64_t bytes = 0;
};

/// The peak of the live bytes, each rounded up to `alignment`.
uint64_t lowerBound(llvm::ArrayRef<Lifetime> lifetimes, uint64_t alignment);

/// Places all lifetimes so that no two that overlap in time overlap in bytes.
/// The best of three greedy orders.
Packing pack(llvm::ArrayRef<Lifetime> lifetimes, uint64_t alignment);

} // namespace segue::prog

#endif // SEGUE_DIALECT_PROG_TRANSFORMS_ARENAPACKING_H
