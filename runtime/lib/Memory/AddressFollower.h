//===- AddressFollower.h - steps at their planned addresses -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Counts the allocations of each owner in a step and says where the plan has the
// next one. Lookups by index alone: nothing is searched or allocated while a step
// goes as planned. Not thread-safe; only the thread that began the step is answered.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_MEMORY_ADDRESSFOLLOWER_H
#define SEGUE_LIB_MEMORY_ADDRESSFOLLOWER_H

#include "segue/runtime/Memory/AddressPlan.h"
#include <functional>
#include <span>
#include <thread>

namespace segue::inline runtime {

class AddressFollower {
public:
  /// Follows `plan`. `owners` holds the number of each line's owner.
  AddressFollower(AddressPlan plan, std::span<const OwnerId> owners);

  const AddressPlan &plan() const { return plan_; }

  /// Makes the step that begins next the first again.
  void restart();
  void beginStep();
  void endStep() { isInStep_ = false; }
  bool isInStep() const { return isInStep_; }
  /// Returns true on the thread that began the step that is under way.
  bool isAsked() const { return isInStep_ && std::this_thread::get_id() == thread_; }

  bool knows(OwnerId owner) const { return lineOf(owner) != none; }

  /// Returns the place of the next block of `owner`; null if the plan has none of these
  /// bytes now.
  const AddressPlan::Block *next(OwnerId owner, uint64_t bytes) const;
  /// Notes that the owner has taken the block, there or elsewhere.
  void advance(OwnerId owner);

  /// Tries the places that other steps have for such a block of `owner`, until one serves:
  /// a tensor that left out of turn comes again where it came first.
  const AddressPlan::Block *elsewhere(OwnerId owner, uint64_t bytes,
                                      const std::function<bool(const AddressPlan::Block &)> &serves) const;

  /// Returns true if a byte of the space is the plan's.
  bool contains(uint64_t offset) const;

private:
  static constexpr uint32_t none = UINT32_MAX;

  uint32_t lineOf(OwnerId owner) const { return owner < lineOf_.size() ? lineOf_[owner] : none; }

  AddressPlan plan_;
  /// The line of each owner, by the owner's number.
  std::vector<uint32_t> lineOf_;
  /// The number of blocks of each line that were taken in this step.
  std::vector<uint32_t> taken_;
  /// The index of the step under way in the plan, and the number of steps begun.
  uint32_t step_ = 0, begun_ = 0;
  bool isInStep_ = false;
  std::thread::id thread_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_MEMORY_ADDRESSFOLLOWER_H
