//===- LayoutCosts.h - what a layout costs its readers ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All figures by which layouts are compared, in bytes moved in the memory of the
// device: what limits copies and most kernels. Not counted are launches, the link,
// flops, caches, and what a layout does to the size of an arena.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_TRANSFORMS_LAYOUTCOSTS_H
#define SEGUE_DIALECT_PROG_TRANSFORMS_LAYOUTCOSTS_H

#include <cstdint>

namespace segue::layout_costs {

/// A conversion reads each byte and writes it elsewhere.
constexpr uint64_t kMovedPerConvertedByte = 2;

/// A product packs its operands into panels as it reads them, along either
/// dimension. Across the rows one cache line in sixteen is fetched twice: enough
/// to prefer rows where all else is equal, never worth a conversion.
constexpr uint64_t kTurnedProductShare = 16;

/// A product whose operand is contiguous along neither dimension fetches a line
/// per element; its cost is that of another pass over the operand.
constexpr uint64_t kScatteredProductPasses = 1;

/// L1 pays where a temporary is touched again while it is there: each byte that is
/// read or written in L1 saves one in DRAM, and placing it costs nothing.
constexpr uint64_t kSavedPerByteInL1 = 1;

} // namespace segue::layout_costs

#endif // SEGUE_DIALECT_PROG_TRANSFORMS_LAYOUTCOSTS_H
