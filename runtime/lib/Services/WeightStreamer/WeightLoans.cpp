//===- WeightLoans.cpp - weights for programs beside the order ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A saved value that is computed again reads weights in the midst of another program,
// often those of a block that is open then. One that is not is loaded into a slot, as
// if the step had come to it, and stays for that run alone.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include <algorithm>
#include <set>

namespace segue::inline runtime {

WeightStreamer::Impl::Weight *WeightStreamer::Impl::weightAt(const Tensor &home) const {
  auto found = byHome.find(home.storage()->id());
  return found == byHome.end() ? nullptr : found->second;
}

/// The blocks of `homes` that no program has open, each once.
std::vector<WeightStreamer::Impl::Block *>
WeightStreamer::Impl::blocksToOpen(std::span<const Tensor> homes) const {
  std::vector<Block *> blocks;
  for (const Tensor &home : homes)
    if (Block *block = weightAt(home)->block;
        stagehand().useCount(block->id) == 0 && std::ranges::find(blocks, block) == blocks.end())
      blocks.push_back(block);
  return blocks;
}

/// Returns the number of blocks of `homes`, each of which may have to be opened at its need, whichever are open now.
static int64_t countBlocks(std::span<const Tensor> homes, auto &&blockAt) {
  std::set<const void *> blocks;
  for (const Tensor &home : homes)
    blocks.insert(blockAt(home));
  return int64_t(blocks.size());
}

bool WeightStreamer::canLend(std::span<const Tensor> homes) const {
  const Impl &s = *impl_;
  if (!s.policy || !s.inStep || s.ranks ||
      !std::ranges::all_of(homes, [&](const Tensor &home) { return s.weightAt(home); }))
    return false;
  const WeightStagehand &policy = s.stagehand();
  int64_t kept = policy.ring().openAtOnce - int64_t(s.leastSlots);
  return policy.spareSlots() + kept >= countBlocks(homes, [&](const Tensor &home) { return s.weightAt(home)->block; });
}

void WeightStreamer::keepRoom(std::span<const Tensor> homes) {
  Impl &s = *impl_;
  int64_t open =
      int64_t(s.leastSlots) + countBlocks(homes, [&](const Tensor &home) { return s.weightAt(home)->block; });
  s.changeRing({.openAtOnce = std::max(open, s.stagehand().ring().openAtOnce)});
}

uint64_t WeightStreamer::bytesToBring(std::span<const Tensor> homes) const {
  uint64_t bytes = 0;
  for (const Impl::Block *block : impl_->blocksToOpen(homes))
    if (impl_->stagehand().state(block->id) == BlockState::Unloaded)
      bytes += block->storedBytes;
  return bytes;
}

std::vector<Tensor> WeightStreamer::lend(std::span<const Tensor> homes) {
  Impl &s = *impl_;
  std::vector<Tensor> weights;
  try {
    for (Impl::Block *block : s.blocksToOpen(homes)) {
      s.bring(*block, Impl::Opens::Beside);
      block->isUsed = s.inStep;
      s.lent.push_back(block);
    }
  } catch (...) {
    giveBack();
    throw;
  }
  for (const Tensor &home : homes) {
    const Impl::Weight &weight = *s.weightAt(home);
    weights.push_back(Tensor::in(weight.block->slot, weight.desc));
  }
  return weights;
}

void WeightStreamer::giveBack() {
  Impl &s = *impl_;
  for (Impl::Block *block : std::exchange(s.lent, {}))
    s.carryOut(s.policy->tell(weight_calls::afterBlock, block->id, s.usedBytes(), BlockOutput()));
}

} // namespace segue::inline runtime
