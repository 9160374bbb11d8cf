//===- LentRanges.h - memory of others, by its addresses --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Which addresses outside of a device's own ranges commands may compute on. Any thread
// may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_LENTRANGES_H
#define SEGUE_LIB_DRIVERS_LENTRANGES_H

#include <cstdint>
#include <map>
#include <shared_mutex>

namespace segue::inline runtime {

class LentRanges {
public:
  void lend(const void *data, uint64_t bytes);
  void takeBack(const void *data, uint64_t bytes) noexcept;
  /// Returns true if `address` is in what somebody has lent.
  bool holds(const void *address) const;

private:
  mutable std::shared_mutex mutex_;
  /// The ranges by their ends, with their begins: some may lie in others.
  std::multimap<uintptr_t, uintptr_t> ranges_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_LENTRANGES_H
