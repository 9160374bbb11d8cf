//===- BlockItems.h - items that come with a block --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Parameters, gradients and optimizer states whose home is the host, as items that
// come to the device with the block of a program that touches them. Whoever decides
// when they leave and return asks here which item an event is about:
//
//   void on(const event::OfferInput &offer) { blocks.offer(offer); }
//   void on(const event::BlockInput &need) {
//     if (Item *item = blocks.find(need))
//       blocks.bring(need, *item);
//   }
//   void on(const event::BlockEnd &end) {
//     for (auto [input, id] : blocks.end(end))     // no later block touches them
//       if (Item *item = residency.find(id)) ...
//   }
//
// One program runs at a time. All calls come from the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_RESIDENCY_BLOCKITEMS_H
#define SEGUE_RUNTIME_RESIDENCY_BLOCKITEMS_H

#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Residency/Residency.h"
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace segue::inline runtime {

class BlockItems {
public:
  /// Makes no item yet. `residency` must outlive this.
  BlockItems(DeviceRef device, Residency &residency) : device_(std::move(device)), residency_(residency) {}

  /// With false, somebody else brings parameters.
  void bringParameters(bool brings) { bringsParameters_ = brings; }

  /// Returns true if `value` lives on the host and is an item here.
  bool brings(const Program &program, uint32_t input, const Tensor &value) const;
  void offer(const event::OfferInput &offer);
  /// Returns the item that the block needs, made if there is none yet; null for what
  /// somebody else brings.
  Item *find(const event::BlockInput &need);
  /// Puts the item's copy on the device in the event. In an optimizer, which writes in
  /// place, blocks until the copy has arrived: an optimizer that lacks one halfway would
  /// leave a step half done.
  void bring(const event::BlockInput &need, Item &item);

  void beginPhase(Phase phase) { isOptimizing_ = phase == Phase::Optimizer; }
  /// Returns the block as an index into usesOf(program).blocks.
  size_t begin(const event::BlockBegin &begin) { return cursor_.begin(begin.program); }
  struct Touched {
    uint32_t input;
    Item::Id item;
  };
  /// Returns the items that no later block of the program touches; valid until the next call.
  std::span<const Touched> end(const event::BlockEnd &end);
  /// Returns the index of the block that ended last.
  size_t lastBlock() const { return lastBlock_; }
  const BlockUses &usesOf(const Program &program) { return cursor_.usesOf(program); }

  /// Makes a sum of gradients, and what is added to it, the program's own, on the device.
  void take(const event::Accumulate &addition);
  /// Forgets whatever ran and was given up.
  void reset();

private:
  DeviceRef device_;
  Residency &residency_;
  BlockCursor cursor_;
  bool bringsParameters_ = true, isOptimizing_ = false;
  /// The items of the program that runs, by input.
  std::map<uint32_t, Item::Id> brought_;
  std::vector<Touched> touched_;
  size_t lastBlock_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_RESIDENCY_BLOCKITEMS_H
