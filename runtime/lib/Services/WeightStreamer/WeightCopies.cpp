//===- WeightCopies.cpp - loads, evictions and save-backs -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A load is queued whole: reads of files run on the queue of the link, so that
// no page fault stops the thread that submits, then copies into the slot, which
// wait there for whoever used it last. It is known to have ended at the next
// event; only then is its block used.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

void WeightStreamer::Impl::mark(Queue queue, const std::shared_ptr<Stopwatch> &watch, bool isEnd, const Fence &after) {
  // The queue's work keeps no handle of the device.
  Work work{[watch, isEnd, clock = device.get()] { (isEnd ? watch->end : watch->begin) = clock->seconds(); }, {}, {}};
  device->enqueue(queue, after, std::move(work));
}

/// What the policy sees is the memory of others and the blocks that it knows,
/// not the ring, which is always there.
int64_t WeightStreamer::Impl::usedBytes() const {
  int64_t used = int64_t(device->memory().liveBytes(Space::DeviceDram));
  for (const auto &slot : ring)
    used -= int64_t(slot->bytes());
  for (const auto &block : blocks)
    used += block->slot ? int64_t(block->storedBytes) : 0;
  return used;
}

void WeightStreamer::Impl::carryOut(const WeightActions &actions) {
  promised += size_t(std::ranges::count(actions, WeightAction::Kind::Load, &WeightAction::kind));
  for (const WeightAction &action : actions) {
    Block &block = *byId.at(action.block);
    if (action.kind == WeightAction::Kind::Load) {
      --promised;
      load(block, action.priority);
    } else {
      evict(block, action.saveBack);
    }
  }
}

//===----------------------------------------------------------------------===//
// Loads
//===----------------------------------------------------------------------===//

void WeightStreamer::Impl::load(Block &block, Priority priority) {
  block.slot = std::move(freeSlots.front());
  freeSlots.pop_front();
  if (!queueLoad(block, priority)) {
    release(block);
    return carryOut(policy->loadDenied(block.id));
  }
  loading.push_back(&block);
}

/// False, with nothing done, if it may not go now.
bool WeightStreamer::Impl::queueLoad(Block &block, Priority priority) {
  std::shared_ptr<void> leave;
  if (options.admit && !(leave = options.admit(Queue::HostToDevice, priority, block.storedBytes)))
    return false;
  block.error.reset();
  block.slot->forgetOutcome();
  block.copyWatch = std::make_shared<Stopwatch>();
  mark(Queue::HostToDevice, block.copyWatch, /*isEnd=*/false, {});
  TransferOptions how;
  how.priority = priority == Priority::Speculative ? TransferPriority::Speculative : TransferPriority::Required;
  try {
    uint64_t slabOffset = 0;
    queueWeights(block, how, slabOffset);
  } catch (const Error &error) {
    block.error = error;
  }
  block.copied = block.slot->uses();
  block.copied.join(Fence(Queue::HostToDevice, device->position(Queue::HostToDevice)));
  mark(Queue::HostToDevice, block.copyWatch, /*isEnd=*/true, {});
  return true;
}

/// A weight that its slab does not give is followed by all of the block again,
/// with its unit in the source's form.
void WeightStreamer::Impl::queueWeights(Block &block, TransferOptions how, uint64_t &slabOffset) {
  for (const Weight *weight : block.weights) {
    Tensor target = Tensor::in(block.slot, weight->desc);
    how.consumer = weight->consumer;
    if (weight->slab) {
      try {
        weight->slab->serveInto(weight->value.name, target, how);
      } catch (const Error &error) {
        giveUpForm(*weight, error);
        return queueWeights(block, how, slabOffset);
      }
    } else if (weight->source.inSlab) {
      options.slab->serveInto(weight->source.name, target, how);
    } else if (weight->file) {
      engine.copyInto(stage(block, *weight, slabOffset), target, how);
    } else {
      engine.copyInto(weight->source.host, target, how);
    }
  }
}

/// Queues the read of a weight into page-locked memory, or, where that has no
/// room for it in one piece, into other memory of the host.
Tensor WeightStreamer::Impl::stage(Block &block, const Weight &weight, uint64_t &slabOffset) {
  TensorDesc desc(weight.entry->shape, *weight.entry->element, Layout{.space = Space::HostPinned});
  uint64_t bytes = desc.spanBytes(), slabBytes = pool ? pool->classBytes(0) : 0;
  Tensor tensor;
  bool fits = !block.slabs.empty() && slabOffset + bytes <= slabBytes;
  if (!fits && bytes <= slabBytes)
    if (auto slab = pool->tryTake(0)) {
      slab->storage->forgetOutcome();
      block.slabs.push_back(std::move(*slab));
      slabOffset = 0;
      fits = true;
    }
  if (fits) {
    desc.layout.offset = slabOffset;
    desc.layout.alignment = 64;
    slabOffset = (slabOffset + bytes + 511) / 512 * 512;
    tensor = Tensor::in(block.slabs.back().storage, std::make_shared<const TensorDesc>(std::move(desc)));
  } else {
    tensor = Tensor::onHost(device, weight.entry->shape, *weight.entry->element);
    block.unpinned.push_back(tensor);
  }
  readInto(weight, tensor);
  return tensor;
}

void WeightStreamer::Impl::readInto(const Weight &weight, const Tensor &target) {
  Storage &storage = *target.storage();
  auto read = [file = weight.file, entry = weight.entry, data = target.bytes(), outcome = storage.outcome()] {
    try {
      file->checkUnchanged();
      file->read(*entry, 0, {data, entry->bytes});
      file->checkUnchanged();
    } catch (const Error &error) {
      outcome->fail(error);
    }
  };
  uint64_t entry = device->enqueue(Queue::HostToDevice, storage.uses(), Work{std::move(read), {}, "read weights"});
  storage.addWrite(Fence(Queue::HostToDevice, entry));
}

static bool isWorthRetrying(ErrorCode code) {
  return code != ErrorCode::SourceChanged && code != ErrorCode::ChecksumMismatch && code != ErrorCode::FileCorrupt;
}

/// The copies of a load have ended, well or not.
void WeightStreamer::Impl::finishLoad(Block &block, bool isNeeded) {
  std::optional<Error> error = block.error;
  if (const Error *failure = block.slot->failure(); failure && !error)
    error = *failure;
  for (PinnedSlab &slab : block.slabs)
    pool->give(std::move(slab));
  block.slabs.clear();
  block.unpinned.clear();
  std::erase(loading, &block);
  if (!error) {
    countServed(block);
    carryOut(policy->loaded(block.id, {.copyMs = block.copyWatch->milliseconds()}));
    return;
  }
  LoadFailure failure = policy->loadFailed(block.id);
  if (failure.retry && isWorthRetrying(error->code())) {
    queueLoad(block, Priority::Required);
    loading.push_back(&block);
    return;
  }
  if (failure.retry)
    failure = policy->loadFailed(block.id);
  release(block);
  carryOut(failure.actions);
  if (!isNeeded)
    return; // it is loaded again when its turn comes, and fails then
  throw error->within("block \"" + block.id + "\"");
}

void WeightStreamer::Impl::release(Block &block) {
  block.slot->forgetOutcome();
  freeSlots.push_back(std::move(block.slot));
  block.slot = nullptr;
}

//===----------------------------------------------------------------------===//
// Leaving
//===----------------------------------------------------------------------===//

void WeightStreamer::Impl::evict(Block &block, bool saveBack) {
  if (saveBack && queueSaveBack(block)) {
    saving.push_back(&block);
    return;
  }
  if (saveBack)
    return carryOut(policy->saveBackFailed(block.id));
  release(block);
  carryOut(policy->evicted(block.id));
}

/// False if what wrote the block has failed: the host keeps the values of the
/// last step that was finished.
bool WeightStreamer::Impl::queueSaveBack(Block &block) {
  device->wait(block.slot->writes());
  for (const Weight *weight : block.weights)
    if (weight->isChanged && weight->source.host.storage()->failure())
      return false;
  Fence copied;
  std::shared_ptr<void> leave;
  if (options.admit)
    leave = options.admit(Queue::DeviceToHost, Priority::Required, block.storedBytes);
  for (const Weight *weight : block.weights) {
    if (!weight->isChanged)
      continue;
    TransferOptions how;
    how.consumer = weight->consumer;
    try {
      engine.copyInto(Tensor::in(block.slot, weight->desc), weight->source.host, how);
    } catch (const Error &) {
      return false;
    }
    copied.join(weight->source.host.storage()->writes());
  }
  block.copied = copied;
  return true;
}

/// Why a save-back that was queued has failed, if it has: the device has the
/// values, and what became of the copy is forgotten, as the next replaces it.
std::optional<Error> WeightStreamer::Impl::takeSaveBackFailure(Block &block) {
  std::optional<Error> cause;
  for (const Weight *weight : block.weights)
    if (const Error *failure = weight->isChanged ? weight->source.host.storage()->failure() : nullptr) {
      if (!cause)
        cause = *failure;
      weight->source.host.storage()->forgetOutcome();
    }
  return cause;
}

bool WeightStreamer::isSavingBack(const Tensor &host) const {
  return std::ranges::any_of(impl_->saving, [&](const Impl::Block *block) {
    return std::ranges::any_of(block->weights, [&](const Impl::Weight *weight) {
      return weight->isChanged && weight->source.host.storage() == host.storage();
    });
  });
}

void WeightStreamer::Impl::finishSaveBack(Block &block) {
  std::erase(saving, &block);
  if (std::optional<Error> cause = takeSaveBackFailure(block)) {
    options.warn("block \"" + block.id + "\" could not be saved back and stays on the device: " + cause->what());
    return carryOut(policy->saveBackFailed(block.id));
  }
  for (Weight *weight : block.weights)
    weight->isChanged = false;
  release(block);
  carryOut(policy->evicted(block.id));
}

/// Throws if the block cannot be saved back; it stays as it is then.
void WeightStreamer::Impl::flush(Block &block) {
  if (std::ranges::none_of(block.weights, &Weight::isChanged))
    return;
  bool queued = queueSaveBack(block);
  auto throwWithin = [&](const Error &cause) { throw cause.within("block \"" + block.id + "\" cannot be saved back"); };
  if (!queued) {
    for (const Weight *weight : block.weights)
      if (const Error *failure = weight->isChanged ? weight->source.host.storage()->failure() : nullptr)
        throwWithin(*failure);
    throw Error(ErrorCode::TransferFailed, "block \"" + block.id + "\" cannot be saved back");
  }
  device->wait(block.copied);
  if (std::optional<Error> cause = takeSaveBackFailure(block))
    throwWithin(*cause);
  for (Weight *weight : block.weights)
    weight->isChanged = false;
  policy->savedBack(block.id);
}

void WeightStreamer::Impl::endSaves() {
  while (!saving.empty()) {
    device->wait(saving.front()->copied);
    finishSaveBack(*saving.front());
  }
}

/// One slot less, of a block that leaves by score; false if none can.
bool WeightStreamer::Impl::tryShrink() {
  policy->setRing(int64_t(ring.size()) - 1);
  if (freeSlots.size() <= promised) {
    carryOut(policy->makeRoom(1));
    endSaves();
  }
  if (freeSlots.size() <= promised) {
    policy->setRing(int64_t(ring.size()));
    return false;
  }
  std::erase(ring, freeSlots.back());
  if (options.release)
    options.release(Space::DeviceDram, freeSlots.back()->bytes());
  freeSlots.pop_back();
  return true;
}

uint64_t WeightStreamer::makeRoom(uint64_t bytes) {
  Impl &s = *impl_;
  if (!s.policy || std::exchange(s.isMakingRoom, true))
    return 0;
  uint64_t freed = 0, slotBytes = s.ring.empty() ? 0 : s.ring.front()->bytes();
  while (freed < bytes && s.ring.size() > s.leastSlots && s.tryShrink())
    freed += slotBytes;
  s.isMakingRoom = false;
  return freed;
}

void WeightStreamer::flush() {
  Impl &s = *impl_;
  s.endSaves();
  for (const auto &block : s.blocks)
    s.flush(*block);
}

void WeightStreamer::wait() {
  if (!impl_->computed.empty())
    impl_->device->wait(impl_->computed);
}

void WeightStreamer::Impl::drop(Block &block) {
  if (std::ranges::find(saving, &block) != saving.end()) {
    device->wait(block.copied);
    finishSaveBack(block);
  }
  while (std::ranges::find(loading, &block) != loading.end()) {
    device->wait(block.copied);
    finishLoad(block, /*isNeeded=*/false);
  }
  if (policy->state(block.id) == BlockState::GpuReady)
    carryOut(policy->drop(block.id));
}

/// Beside the owner's handle and ours: a third may be used to read, or to write,
/// and memory of the caller by the caller. Files are checked apart.
bool WeightStreamer::Impl::isSeenOutside(const Weight &weight) const {
  const Tensor &host = weight.source.host;
  return host && !weight.file && !weight.source.inSlab &&
         (host.storage()->isExternal() || host.storage().use_count() > 2);
}

void WeightStreamer::Impl::dropSeenOutside() {
  for (const auto &block : blocks)
    if (std::ranges::any_of(block->weights, [this](const Weight *weight) { return isSeenOutside(*weight); }))
      drop(*block);
}

void WeightStreamer::Impl::flushSeenOutside() {
  for (const auto &block : blocks)
    if (std::ranges::any_of(block->weights, [this](const Weight *weight) { return isSeenOutside(*weight); }))
      flush(*block);
}

void WeightStreamer::hostChanged(const Tensor &host) {
  for (const auto &[key, weight] : impl_->weights)
    if (weight->block && weight->source.host && weight->source.host.storage() == host.storage())
      impl_->drop(*weight->block);
}

void WeightStreamer::checkFiles() const {
  for (const auto &[path, file] : impl_->files)
    file->checkUnchanged();
}

//===----------------------------------------------------------------------===//
// Ends of copies
//===----------------------------------------------------------------------===//

void WeightStreamer::Impl::poll() {
  takeObservations(/*all=*/false);
  // Ending one may start others; those are looked at in the next round.
  for (bool again = true; std::exchange(again, false);) {
    for (Block *block : saving)
      if (device->isDone(block->copied)) {
        finishSaveBack(*block);
        again = true;
        break;
      }
    for (Block *block : loading)
      if (!again && device->isDone(block->copied)) {
        finishLoad(*block, /*isNeeded=*/policy->useCount(block->id) > 0);
        again = true;
        break;
      }
  }
}

/// Until the block is there, one copy after another.
void WeightStreamer::Impl::awaitLoad(Block &block) {
  while (policy->state(block.id) != BlockState::GpuReady) {
    auto own = std::ranges::find(loading, &block);
    if (own != loading.end()) {
      device->wait(block.copied);
      finishLoad(block, /*isNeeded=*/true);
    } else if (!saving.empty()) {
      Block &first = *saving.front();
      device->wait(first.copied);
      finishSaveBack(first);
    } else if (!loading.empty()) {
      Block &first = *loading.front();
      device->wait(first.copied);
      finishLoad(first, /*isNeeded=*/false);
    } else {
      throw Error(ErrorCode::DeviceOom, "weight streamer: block \"" + block.id +
                                            "\" waits for room that nobody gives: " + policy->describe());
    }
  }
}

} // namespace segue::inline runtime
