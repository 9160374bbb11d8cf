//===- L1Compactor.cpp - moves tensors together in L1 ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/L1Compactor.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Tensor/Storage.h"

namespace segue::inline runtime {

/// The greatest alignment in bytes that a tensor asks for.
static constexpr uint64_t greatestAlignment = 512;

L1Compactor::L1Compactor(Device &device, L1Arena &arena, std::byte *base)
    : device_(device), arena_(arena), base_(base) {
  // Compaction is asked after everybody who can simply let go of something.
  roomMaker_ = device.memory().addRoomMaker("L1 compaction", 100, [this](Space space, uint64_t wanted) {
    return space == Space::DeviceL1 && makeRoom(wanted, greatestAlignment) ? wanted : uint64_t(0);
  });
}

bool L1Compactor::makeRoom(uint64_t bytes, uint64_t alignment) {
  std::lock_guard lock(mutex_);
  // Blocks that no storage stands for have an address that somebody keeps.
  std::vector<uint64_t> fixed = arena_.offsets();
  std::erase_if(fixed, [&](uint64_t offset) { return storages_.contains(base_ + offset); });
  std::vector<L1Arena::Move> moves = arena_.planCompaction(bytes, alignment, fixed);
  if (moves.empty())
    return false;
  uint64_t bounceBytes = 0;
  for (const L1Arena::Move &move : moves)
    if (move.bounces)
      bounceBytes += move.bytes;
  MemoryBlock bounce;
  if (bounceBytes) {
    if (!bounceAllowed_)
      return false;
    bounce = device_.memory().tryAllocate(Space::DeviceDram, bounceBytes, greatestAlignment,
                                          device_.memory().intern({.value = "(bounce of L1)"}), Lifetime::Short);
    if (!bounce.data)
      return false;
  }

  // Out first, then in: a move may go where another came from.
  auto copy = [&](void *target, const void *source, uint64_t size, const Fence &after, Storage &storage) {
    Work work{[&device = device_, target, source, size] { device.copy(target, source, size); },
              {.memoryBytes = 2 * size},
              "l1 compaction"};
    work.mayBegin = [outcome = storage.outcome()] { return !outcome->error(); };
    work.ended = [outcome = storage.outcome()](const Error *error) {
      if (error)
        outcome->fail(error->within("compaction of L1"));
    };
    return Fence(Queue::Compute, device_.enqueue(Queue::Compute, after, std::move(work)));
  };
  Fence moved;
  uint64_t used = 0;
  for (const L1Arena::Move &move : moves)
    if (move.bounces) {
      Storage &storage = *storages_.at(base_ + move.from);
      Fence after = storage.uses();
      after.join(bounce.after);
      moved.join(copy(static_cast<std::byte *>(bounce.data) + used, base_ + move.from, move.bytes, after, storage));
      used += move.bytes;
    }
  used = 0;
  std::map<uint64_t, Storage *> placed;
  for (const L1Arena::Move &move : moves) {
    Storage &storage = *storages_.at(base_ + move.from);
    Fence after = storage.uses();
    after.join(arena_.fenceOf(move.to, move.bytes));
    // Whoever left the place is behind his own queued work.
    for (const L1Arena::Move &other : moves)
      if (other.from < move.to + move.bytes && move.to < other.from + other.bytes)
        after.join(storages_.at(base_ + other.from)->uses());
    const void *source = move.bounces ? static_cast<std::byte *>(bounce.data) + used : base_ + move.from;
    moved.join(copy(base_ + move.to, source, move.bytes, after, storage));
    used += move.bounces ? move.bytes : 0;
    placed[move.to] = &storage;
    bounces_ += move.bounces;
    movedBytes_ += move.bytes;
    copiedBytes_ += move.bounces ? 2 * move.bytes : move.bytes;
  }
  for (const L1Arena::Move &move : moves)
    storages_.erase(base_ + move.from);
  for (auto &[offset, storage] : placed) {
    storages_[base_ + offset] = storage;
    Compactor::move(*storage, base_ + offset, moved);
  }
  arena_.apply(moves, moved);
  if (bounce.data)
    device_.memory().free(Space::DeviceDram, bounce.data, bounceBytes, greatestAlignment, bounce.account, moved);
  ++compactions_;
  return true;
}

} // namespace segue::inline runtime
