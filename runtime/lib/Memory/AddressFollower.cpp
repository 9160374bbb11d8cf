//===- AddressFollower.cpp - steps at their planned addresses -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AddressFollower.h"
#include <algorithm>

namespace segue::inline runtime {

AddressFollower::AddressFollower(AddressPlan plan, std::span<const OwnerId> owners)
    : plan_(std::move(plan)), taken_(plan_.lines.size()) {
  for (uint32_t line = 0; line < owners.size(); ++line) {
    if (owners[line] >= lineOf_.size())
      lineOf_.resize(owners[line] + 1, none);
    lineOf_[owners[line]] = line;
  }
}

void AddressFollower::restart() {
  begun_ = 0;
  isInStep_ = false;
}

void AddressFollower::beginStep() {
  // Steps come again: this is the one whose turn it is.
  uint32_t first = plan_.steps - plan_.period;
  step_ = begun_ < first ? begun_ : first + (begun_ - first) % plan_.period;
  begun_ = begun_ + 1 < plan_.steps + plan_.period ? begun_ + 1 : begun_ + 1 - plan_.period;
  std::ranges::fill(taken_, 0);
  isInStep_ = true;
  thread_ = std::this_thread::get_id();
}

const AddressPlan::Block *AddressFollower::next(OwnerId owner, uint64_t bytes) const {
  uint32_t line = lineOf(owner);
  if (line == none)
    return nullptr;
  const std::vector<AddressPlan::Block> &blocks = plan_.lines[line].steps[step_];
  uint32_t index = taken_[line];
  return index < blocks.size() && blocks[index].bytes == bytes ? &blocks[index] : nullptr;
}

void AddressFollower::advance(OwnerId owner) {
  if (uint32_t line = lineOf(owner); line != none)
    ++taken_[line];
}

const AddressPlan::Block *
AddressFollower::elsewhere(OwnerId owner, uint64_t bytes,
                           const std::function<bool(const AddressPlan::Block &)> &serves) const {
  uint32_t line = lineOf(owner);
  if (line == none)
    return nullptr;
  for (const auto &blocks : plan_.lines[line].steps)
    for (const AddressPlan::Block &block : blocks)
      if (block.bytes == bytes && serves(block))
        return &block;
  return nullptr;
}

bool AddressFollower::contains(uint64_t offset) const {
  auto after = std::ranges::upper_bound(plan_.ranges, offset, {}, &AddressRange::begin);
  return after != plan_.ranges.begin() && offset < std::prev(after)->end();
}

} // namespace segue::inline runtime
