//===- WeightCopies.cpp - loads, evictions and save-backs -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A load is queued whole: reads of files run on the queue of the link, so that
// no page fault stops the thread that submits, then copies into the slot, which
// wait there for whoever used it last, and are tried once more there. What reads
// the block waits in the compute queue, and fails there if the load has; that the
// load has ended, and how, is heard at a later event, and before the optimizer.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

void WeightStreamer::Impl::mark(Queue queue, const std::shared_ptr<Stopwatch> &watch, bool isEnd, const Fence &after) {
  device->enqueueStamp(queue, after, TimestampRef(watch, isEnd ? &watch->end : &watch->begin));
}

/// All that is allocated, the ring included.
int64_t WeightStreamer::Impl::usedBytes() const { return int64_t(device->memory().liveBytes(Space::DeviceDram)); }

/// Returns the bytes that cannot be given out in one piece: what is allocated and the holes
/// between.
int64_t WeightStreamer::Impl::reservedBytes() const {
  for (const SpaceInfo &info : device->spaces())
    if (info.space == Space::DeviceDram)
      return int64_t(info.capacityBytes - std::min(info.capacityBytes, device->freeMemory(info.space).largestRange));
  return usedBytes();
}

void WeightStreamer::Impl::carryOut(const WeightActions &actions) {
  promised += size_t(std::ranges::count(actions, WeightAction::Kind::Load, &WeightAction::kind));
  for (const WeightAction &action : actions) {
    if (action.kind == WeightAction::Kind::GiveSlot) {
      giveSlot();
      continue;
    }
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
  fetch(block, priority, /*retries=*/1);
}

/// Fetches a block. `retries` is the number for each weight, in the queue, so that readers may be queued behind them.
void WeightStreamer::Impl::fetch(Block &block, Priority priority, uint32_t retries) {
  TransferOptions how;
  how.priority = priority == Priority::Speculative ? TransferPriority::Speculative : TransferPriority::Required;
  how.retries = std::make_shared<TransferRetries>(retries);
  if (residency->fetchInto(*block.item, Tensor::in(block.slot, block.desc), how))
    return;
  release(block);
  carryOut(policy->tell(weight_calls::loadDenied, block.id));
}

bool WeightStreamer::Impl::Block::fetchInto(const Tensor &place, const TransferOptions &how) {
  std::shared_ptr<void> leave;
  Priority priority = how.priority == TransferPriority::Speculative ? Priority::Speculative : Priority::Required;
  // A block that other ranks send already cannot be denied.
  if (ring.options.admit && !ring.ranks && !(leave = ring.options.admit(Queue::HostToDevice, priority, storedBytes)))
    return false;
  lost.reset();
  retries.clear();
  copyWatch = std::make_shared<LoadWatch>();
  uint64_t slabOffset = 0;
  std::optional<Error> error;
  // The plan was made of a step in which no weight is staged on the device.
  DeviceMemory::BesidePlan beside(ring.device->memory());
  try {
    ring.queueWeights(*this, how, slabOffset);
  } catch (const Error &thrown) {
    error = thrown;
  }
  try { // in any case, as others wait for it
    if (ring.ranks)
      ring.gather(*this);
  } catch (const Error &thrown) {
    error = thrown;
  }
  TimestampRef end(copyWatch, &copyWatch->end);
  uint64_t copied = ring.device->enqueueStamp(Queue::HostToDevice, {}, end);
  place.storage()->addWrite(Fence(Queue::HostToDevice, copied));
  isQueued = !error;
  if (error)
    throw *error;
  return true;
}

/// Starts the clock of a load's copies; `after`: when the first of them could begin.
void WeightStreamer::Impl::startClock(Block &block, const Fence &after) {
  if (std::exchange(block.copyWatch->isStarted, true))
    return;
  device->enqueueStamp(Queue::HostToDevice, after, TimestampRef(block.copyWatch, &block.copyWatch->begin));
}

/// A weight that its slab does not give is followed by all of the block again,
/// with its unit in the source's form. Not where the step has used the block: what
/// forward has read, backward reads too, or the step is aborted.
void WeightStreamer::Impl::queueWeights(Block &block, TransferOptions how, uint64_t &slabOffset) {
  Fence free = block.slot->uses();
  uint32_t retries = how.retries->allowed;
  for (const Weight *weight : block.weights)
    if (!weight->file && weight->source.host && !isElsewhere(weight->source))
      free.join(weight->source.host.storage()->writes());
  for (const Weight *weight : block.weights) {
    if (isElsewhere(weight->source))
      continue;
    Tensor target = Tensor::in(block.slot, weight->desc);
    how.consumer = weight->consumer;
    how.retries = block.retries.emplace_back(std::make_shared<TransferRetries>(retries));
    if (weight->slab) {
      startClock(block, {}); // its codes lie elsewhere first
      try {
        serve(*weight->slab, weight->value.name, target, how, block.isUsed);
      } catch (const Error &error) {
        if (block.isUsed) {
          block.lost.emplace(weight, error.within("\"" + weight->unit +
                                                  "\" was used in this step as its slab has it, and cannot be read "
                                                  "from there again; the next step has it from its source"));
          throw block.lost->second;
        }
        giveUpForm(*weight, error);
        return queueWeights(block, how, slabOffset);
      }
    } else if (weight->source.inSlab) {
      startClock(block, {});
      serve(*options.slab, weight->source.name, target, how, /*isNeeded=*/true);
    } else if (weight->file) {
      queueFile(block, *weight, how, slabOffset, free);
    } else {
      startClock(block, free);
      engine.copyInto(weight->source.host, target, how);
    }
  }
}

/// Has each rank send what it has of the block, one rank after the other. What is no run of dense rows goes by way of a
/// copy that is.
Fence WeightStreamer::Impl::gather(Block &block, bool keeps) {
  if (keeps)
    toldOfGathering(block.id);
  Fence all;
  for (int rank = 0; rank < ranks->ranks(); ++rank) {
    std::vector<Tensor> sent;
    std::vector<std::pair<Tensor, Tensor>> arriving; // from, to
    for (const Weight *weight : block.weights) {
      if (weight->source.rank != rank)
        continue;
      Tensor place = !isElsewhere(weight->source) ? weight->source.host
                     : keeps                       ? Tensor::in(block.slot, weight->desc)
                                                   : Tensor::onHost(device, weight->desc->shape, weight->desc->element);
      if (weight->desc->isDense() && place.desc().isDense()) {
        sent.push_back(std::move(place));
        continue;
      }
      sent.push_back(Tensor::onHost(device, place.shape(), place.element()));
      if (isElsewhere(weight->source))
        arriving.emplace_back(sent.back(), std::move(place));
      else
        engine.copyInto(place, sent.back());
    }
    if (!sent.empty())
      all.join(ranks->broadcast(sent, rank));
    for (const auto &[from, to] : arriving)
      engine.copyInto(from, to);
  }
  return all;
}

/// Returns true if the bytes of the file are those of the device.
static bool isStoredAsWanted(const SafetensorsEntry &entry, const TensorDesc &wanted) {
  const Layout &layout = wanted.layout;
  return *entry.element == wanted.element && !isQuantized(layout.storage) && layout.tile.empty() &&
         (layout.strides.empty() || layout.strides == denseStrides(wanted.shape));
}

/// Returns the bytes of the file that are copied together: a weight that is not converted
/// is cut anywhere, one that is converted between rows, and one that lies in another order
/// not at all.
static uint64_t unitOf(const SafetensorsEntry &entry, const TensorDesc &wanted) {
  if (isStoredAsWanted(entry, wanted))
    return 1;
  bool hasRows = !isQuantized(wanted.layout.storage) && wanted.layout.tile.empty() && !entry.shape.empty() &&
                 entry.shape.front() > 0;
  return hasRows ? std::max<uint64_t>(entry.bytes / uint64_t(entry.shape.front()), 1) : entry.bytes;
}

/// Returns bytes [from, from + bytes) of a weight, as they are in the file and as they are
/// in the slot.
static std::pair<TensorDesc, TensorDesc> partOf(const SafetensorsEntry &entry, const TensorDesc &wanted, uint64_t from,
                                                uint64_t bytes) {
  TensorDesc stored(entry.shape, *entry.element), placed = wanted;
  if (bytes == entry.bytes)
    return {stored, placed};
  if (isStoredAsWanted(entry, wanted)) {
    stored = placed = TensorDesc({int64_t(bytes)}, ElementType::i8);
    placed.layout.space = wanted.layout.space;
    placed.layout.offset = wanted.layout.offset + from;
    placed.layout.alignment = 1;
    return {stored, placed};
  }
  uint64_t row = entry.bytes / uint64_t(entry.shape.front());
  stored.shape.front() = placed.shape.front() = int64_t(bytes / row);
  placed.layout.strides = wanted.strides();
  placed.layout.offset += from / row * uint64_t(wanted.strides().front()) * byteSize(wanted.element);
  placed.layout.alignment = 1;
  return {stored, placed};
}

/// Queues the reads of a weight into page-locked memory and their copies, one after
/// the other: what does not fit into a slab goes through several. What has no place in
/// any, as there is no pool or one row is more than a slab, goes through other memory
/// of the host.
void WeightStreamer::Impl::queueFile(Block &block, const Weight &weight, const TransferOptions &how,
                                     uint64_t &slabOffset, const Fence &free) {
  static constexpr uint64_t alignment = 64; // of what is converted
  const SafetensorsEntry &entry = *weight.entry;
  uint64_t unit = unitOf(entry, *weight.desc), slabBytes = pool ? pool->classBytes(0) : 0;
  if (unit > 1)
    slabOffset = (slabOffset + alignment - 1) / alignment * alignment;
  for (uint64_t from = 0, bytes = 0; from < entry.bytes; from += bytes) {
    uint64_t left = block.slabs.empty() || slabOffset >= slabBytes ? 0 : slabBytes - slabOffset;
    if (left < unit && unit <= slabBytes)
      if (auto slab = pool->tryTake(0)) {
        slab->storage->forgetOutcome();
        block.slabs.push_back(std::move(*slab));
        slabOffset = 0;
        left = slabBytes;
      }
    bool fits = left >= unit;
    bytes = std::min(fits ? left / unit * unit : UINT64_MAX, entry.bytes - from);
    auto [stored, placed] = partOf(entry, *weight.desc, from, bytes);
    Tensor staged;
    if (fits) {
      stored.layout.space = Space::HostPinned;
      stored.layout.offset = slabOffset;
      stored.layout.alignment = 1;
      slabOffset += bytes;
      staged = Tensor::in(block.slabs.back().storage, std::make_shared<const TensorDesc>(std::move(stored)));
    } else {
      staged = Tensor::onHost(device, stored.shape, stored.element);
      block.unpinned.push_back(staged);
    }
    readInto(block, weight, from, staged);
    startClock(block, free);
    engine.copyInto(staged, Tensor::in(block.slot, std::make_shared<const TensorDesc>(std::move(placed))), how);
  }
}

static bool isWorthRetrying(ErrorCode code) {
  return code != ErrorCode::SourceChanged && code != ErrorCode::ChecksumMismatch && code != ErrorCode::FileCorrupt;
}

void WeightStreamer::Impl::readInto(const Block &block, const Weight &weight, uint64_t from, const Tensor &target) {
  Storage &storage = *target.storage();
  auto read = [file = weight.file, entry = weight.entry, from, data = target.bytes(), bytes = target.desc().spanBytes(),
               outcome = storage.outcome(), watch = block.copyWatch, retries = block.retries.back(),
               clock = device.get()] {
    double begin = clock->seconds();
    for (bool again = true; std::exchange(again, false);)
      try {
        file->checkUnchanged();
        file->read(*entry, from, {data, size_t(bytes)});
        file->checkUnchanged();
      } catch (const Error &error) {
        again = isWorthRetrying(error.code()) && retries->used < retries->allowed;
        if (again)
          ++retries->used;
        else
          outcome->fail(error);
      }
    watch->addRead(clock->seconds() - begin);
  };
  uint64_t entry = device->enqueueCall(Queue::HostToDevice, storage.uses(), std::move(read), "read weights");
  storage.addWrite(Fence(Queue::HostToDevice, entry));
}

/// Ranks that have sent do not send again.
bool WeightStreamer::Impl::Block::mayFetchAgain(const Error &error) const {
  return !ring.ranks && isWorthRetrying(error.code());
}

/// The copies of a load have ended, well or not.
void WeightStreamer::Impl::finishLoad(Block &block, const Residency::End &end) {
  for (PinnedSlab &slab : block.slabs)
    pool->give(std::move(slab));
  block.slabs.clear();
  block.unpinned.clear();
  bool isAwaited = std::erase(awaited, &block) > 0;
  if (std::ranges::any_of(block.retries, [](const auto &each) { return each->used > 0; }))
    policy->tell(weight_calls::loadFailed, block.id); // and tried again at once
  if (!end.failure) {
    countServed(block);
    return carryOut(policy->tell(weight_calls::loaded, block.id, block.copyWatch->times()));
  }
  LoadFailure failure = policy->tell(weight_calls::loadFailed, block.id);
  if (failure.retry && !isAwaited && end.mayFetchAgain)
    return fetch(block, Priority::Required, /*retries=*/0);
  if (failure.retry)
    failure = policy->tell(weight_calls::loadFailed, block.id);
  bool isNeeded = isAwaited || stagehand().useCount(block.id) > 0;
  release(block);
  carryOut(failure.actions);
  if (isNeeded) // else it is loaded again when its turn comes, and fails then
    throw end.failure->within("block \"" + block.id + "\"");
  if (ranks && !lostGathering)
    lostGathering = end.failure->within("block \"" + block.id + "\"");
}

void WeightStreamer::Impl::release(Block &block) {
  block.slot->forgetOutcome();
  freeSlots.push_back(std::move(block.slot));
  block.slot = nullptr;
  if (owedSlots && freeSlots.size() > promised) {
    --owedSlots;
    giveSlot();
  }
}

//===----------------------------------------------------------------------===//
// Leaving
//===----------------------------------------------------------------------===//

void WeightStreamer::Impl::evict(Block &block, bool saveBack) {
  try {
    residency->leave(*block.item);
  } catch (const Error &) { // what it was to save back, the host shall not have
    return carryOut(policy->tell(weight_calls::saveBackFailed, block.id));
  }
  if (saveBack)
    return; // until its end is heard
  release(block);
  carryOut(policy->tell(weight_calls::evicted, block.id));
}

/// Keeps away what a program failed to write: the host has the values of the last finished
/// step.
Fence WeightStreamer::Impl::Block::saveFrom(const Tensor &place, uint64_t since) {
  auto isChanged = [&](const Weight *weight) { return weight->version > since; };
  ring.device->wait(place.storage()->writes());
  for (const Weight *weight : weights)
    if (isChanged(weight))
      weight->source.host.storage()->requireUsable("weight \"" + weight->key + "\"");
  Fence copied;
  std::shared_ptr<void> leave;
  if (ring.options.admit)
    leave = ring.options.admit(Queue::DeviceToHost, Priority::Required, storedBytes);
  try {
    for (const Weight *weight : weights) {
      if (!isChanged(weight))
        continue;
      TransferOptions how;
      how.consumer = weight->consumer;
      ring.engine.copyInto(Tensor::in(place.storage(), weight->desc), weight->source.host, how);
      sent.push_back(weight);
      copied.join(weight->source.host.storage()->writes());
    }
  } catch (const Error &) {
    ring.device->wait(copied);
    takeSaveFailure();
    throw;
  }
  return copied;
}

std::optional<Error> WeightStreamer::Impl::Block::takeSaveFailure() {
  std::optional<Error> cause;
  for (const Weight *weight : std::exchange(sent, {}))
    if (const Error *failure = weight->source.host.storage()->failure()) {
      if (!cause)
        cause = *failure;
      weight->source.host.storage()->forgetOutcome(); // the next copy replaces it
    }
  return cause;
}

bool WeightStreamer::isSavingBack(const Tensor &host) const {
  return std::ranges::any_of(impl_->blocks, [&](const auto &block) {
    return std::ranges::any_of(
        block->sent, [&](const Impl::Weight *weight) { return weight->source.host.storage() == host.storage(); });
  });
}

/// A copy home has ended: the block has left, or is kept, or stayed as it was needed again.
void WeightStreamer::Impl::finishSaveBack(Block &block) {
  const Item &item = *block.item;
  BlockState state = stagehand().state(block.id);
  if (state == BlockState::GpuReady && item.device().state == CopyState::Present && !item.isStale(Tier::Host))
    return policy->tell(weight_calls::savedBack, block.id);
  if (state != BlockState::Evicting || item.device().state == CopyState::Leaving)
    return; // what was changed since is on its way
  if (item.device().exists())
    return carryOut(policy->tell(weight_calls::saveBackFailed, block.id));
  release(block);
  carryOut(policy->tell(weight_calls::evicted, block.id));
}

/// Throws if the block cannot be saved back; it stays as it is then.
void WeightStreamer::Impl::flush(Block &block) {
  while (block.item->device().state == CopyState::Leaving)
    finish(*residency->awaitEnd(*block.item));
  if (!block.item->device().exists() || !block.item->isStale(Tier::Host))
    return;
  residency->writeBack(*block.item);
  policy->tell(weight_calls::savedBack, block.id);
}

//===----------------------------------------------------------------------===//
// The ring
//===----------------------------------------------------------------------===//

/// One slot more; false if there is no memory for it. Nobody makes room for it but
/// for what programs need at once.
bool WeightStreamer::Impl::takeSlot() {
  bool isNeeded = ring.size() < leastSlots;
  DeviceMemory &memory = device->memory();
  if (!isNeeded && (memory.liveBytes(Space::DeviceDram) + slotBytes > memory.budget(Space::DeviceDram) ||
                    device->freeMemory(Space::DeviceDram).largestRange < slotBytes))
    return false;
  if (options.reserve && !options.reserve(Space::DeviceDram, slotBytes))
    return false;
  OwnerId owner =
      memory.intern({.program = {}, .value = "(weights)", .role = "parameter", .block = {}, .location = {}});
  try {
    ring.push_back(Storage::allocate(device, Space::DeviceDram, slotBytes, slotAlignment, owner));
  } catch (const Error &error) {
    if (options.release)
      options.release(Space::DeviceDram, slotBytes);
    if (error.code() != ErrorCode::DeviceOom || isNeeded)
      throw;
    return false;
  }
  freeSlots.push_back(ring.back());
  return true;
}

/// Gives a slot back whose last user may still run: its memory is given out after that.
void WeightStreamer::Impl::giveSlot() {
  if (freeSlots.size() <= promised) {
    ++owedSlots;
    return;
  }
  std::erase(ring, freeSlots.back());
  if (options.release)
    options.release(Space::DeviceDram, slotBytes);
  freeSlots.pop_back();
}

void WeightStreamer::Impl::growRing(const Block &next) {
  if (stagehand().ring().slots == stagehand().ring().most)
    return;
  policy->tell(weight_calls::measure, usedBytes(), std::nullopt);
  while (stagehand().wantsSlot(next.id) && takeSlot()) {
    policy->tell(weight_calls::ring, weight_calls::RingChange{.slots = stagehand().ring().slots + 1});
  }
}

uint64_t WeightStreamer::makeRoom(uint64_t bytes) {
  Impl &s = *impl_;
  if (!s.policy || s.isMakingRoom || s.ranks)
    return 0;
  struct Scope {
    bool &is;
    explicit Scope(bool &is) : is(is) { is = true; }
    ~Scope() { is = false; }
  } scope(s.isMakingRoom);
  uint64_t before = ringBytes();
  auto mayLeaveOnceThere = [&](const Impl::Block &block) {
    // A load that is only being queued asks for this room, maybe, and has no slot or no end yet.
    if (!block.slot || s.stagehand().useCount(block.id) > 0)
      return;
    s.device->wait(block.slot->writes());
    if (block.slot->failure())
      return; // the next event says so
    if (std::optional<Residency::End> end = s.residency->awaitEnd(*block.item))
      s.finish(*end);
  };
  auto freed = [&] { return before - ringBytes(); };
  auto ask = [&] {
    s.carryOut(s.policy->tell(weight_calls::makeRoom, int64_t(std::min<uint64_t>(bytes - freed(), INT64_MAX))));
    while (s.hear(Tier::Host, /*waits=*/true))
      continue;
  };
  // A block that has run, as far as the policy knows.
  for (const auto &block : s.blocks)
    if (std::ranges::find(s.awaited, block.get()) != s.awaited.end())
      mayLeaveOnceThere(*block);
  ask();
  // What comes ahead of its need gives way only where all else was not enough.
  for (const auto &block : s.blocks)
    if (freed() < bytes && s.stagehand().state(block->id) == BlockState::Prefetching) {
      mayLeaveOnceThere(*block);
      ask();
    }
  return freed();
}

void WeightStreamer::giveUpRoom() {
  if (impl_->policy)
    impl_->changeRing({.openAtOnce = int64_t(impl_->leastSlots)});
}

void WeightStreamer::settle(int64_t openAtOnce) {
  if (!impl_->policy)
    return;
  int64_t open = std::max(impl_->stagehand().ring().openAtOnce, openAtOnce);
  // What a watermark takes depends on when copies end, and the plan's addresses are of one order.
  impl_->changeRing({.most = impl_->stagehand().ring().slots, .openAtOnce = open, .isKept = true});
}

/// Tells the policy, unless the ring is like that; it keeps its slots.
void WeightStreamer::Impl::changeRing(weight_calls::RingChange change) {
  const WeightRing &ring = stagehand().ring();
  change.slots = ring.slots;
  if (change.most.value_or(ring.most) != ring.most || change.openAtOnce.value_or(ring.openAtOnce) != ring.openAtOnce ||
      change.isKept.value_or(ring.isKept) != ring.isKept)
    policy->tell(weight_calls::ring, change);
}

void WeightStreamer::flush() {
  Impl &s = *impl_;
  if (!s.policy)
    return;
  while (s.hear(Tier::Host, /*waits=*/true))
    continue;
  for (const auto &block : s.blocks)
    s.flush(*block);
}

void WeightStreamer::wait() {
  if (!impl_->computed.empty())
    impl_->device->wait(impl_->computed);
}

void WeightStreamer::Impl::drop(Block &block) {
  while (std::optional<Residency::End> end = residency->awaitEnd(*block.item))
    finish(*end);
  if (stagehand().state(block.id) != BlockState::GpuReady)
    return;
  WeightActions actions = policy->tell(weight_calls::drop, block.id);
  residency->homeWritten(*block.item);
  carryOut(actions);
}

/// Returns true if somebody else may see the weight. A third handle beside the owner's and
/// ours may be used to read or to write, and so may memory of the caller. Files are checked
/// apart.
bool WeightStreamer::Impl::isSeenOutside(const Weight &weight) const {
  const Tensor &host = weight.source.host;
  return host && !weight.file && !weight.source.inSlab &&
         (host.storage()->isExternal() || host.storage().use_count() > 2);
}

void WeightStreamer::Impl::dropStale() {
  for (const auto &block : blocks)
    if (ranks || std::ranges::any_of(block->weights, [this](const Weight *weight) { return isSeenOutside(*weight); }))
      drop(*block);
}

void WeightStreamer::Impl::flushSeenOutside() {
  for (const auto &block : blocks)
    if (std::ranges::any_of(block->weights, [this](const Weight *weight) { return isSeenOutside(*weight); }))
      flush(*block);
}

void WeightStreamer::hostChanged(const Tensor &host) {
  if (impl_->ranks) // other ranks do not hear of it, and bring everything anew all the same
    return;
  for (const auto &[key, weight] : impl_->weights)
    if (weight->block && weight->source.host && weight->source.host.storage() == host.storage())
      impl_->drop(*weight->block);
}

void WeightStreamer::checkFiles() const {
  for (const auto &file : impl_->files)
    file->checkUnchanged();
}

//===----------------------------------------------------------------------===//
// Ends of copies
//===----------------------------------------------------------------------===//

void WeightStreamer::Impl::poll() {
  takeObservations(/*all=*/false);
  if (ranks)
    return;
  // Ending one may start others; those are looked at in the next round.
  while (hear(Tier::Host, /*waits=*/false) || hear(Tier::Device, /*waits=*/false))
    continue;
}

/// Hears of the end of the oldest copy to `to`, and waits for it if `waits`; false if there
/// is none.
bool WeightStreamer::Impl::hear(Tier to, bool waits) {
  std::optional<Residency::End> end = residency->takeEnd(to, waits);
  if (end)
    finish(*end);
  return end.has_value();
}

void WeightStreamer::Impl::finish(const Residency::End &end) {
  Block &block = *byItem.at(end.item);
  end.tier == Tier::Device ? finishLoad(block, end) : finishSaveBack(block);
}

/// Returns true if the program that runs writes a weight of `block`.
bool WeightStreamer::Impl::isWritten(const Block &block) const {
  for (size_t i = 0; i < current->inputs.size(); ++i)
    if (const Weight *weight = current->inputs[i]; weight && weight->block == &block && current->uses.written[i])
      return true;
  return false;
}

/// A block that begins: its program may be queued when this returns. What reads it
/// waits in the compute queue. The thread waits until the block before has its
/// weights and runs, so that what it decides is decided by what is on the device then.
/// Brings a block; one that is written in place is waited for, since a step that is given up
/// must not have begun to write.
void WeightStreamer::Impl::bring(Block &block, Opens how) {
  bool isQueued = device->hasBytes() && !device->runsInline() && (how == Opens::Beside || !isWritten(block));
  poll();
  if (stagehand().state(block.id) == BlockState::Evicting && residency->stay(*block.item))
    carryOut(policy->tell(weight_calls::rescued, block.id)); // it is there still, and is not given up
  BlockState state = stagehand().state(block.id);
  if (ranks) {
    device->wait(isQueued ? started : computed);
    settleAwaited();
    if (lostGathering)
      throw *std::exchange(lostGathering, std::nullopt);
  } else if (isQueued ? state != BlockState::GpuReady : state == BlockState::Prefetching) {
    // Compute has something to do meanwhile, and the load may end.
    device->wait(isQueued ? started : computed);
    poll();
  }
  growRing(block);
  BeforeBlock before = policy->tell(weight_calls::beforeBlock, block.id, usedBytes(),
                                    how == Opens::Beside ? std::optional(true) : std::nullopt);
  carryOut(before.actions);
  if (before.use == BeforeBlock::Use::Hit)
    return;
  if (!isQueued) {
    device->wait(computed);
    double from = device->seconds();
    awaitLoad(block, /*isQueued=*/false);
    return policy->tell(weight_calls::stall, 1000 * (device->seconds() - from));
  }
  auto watch = std::make_shared<CopyWait>();
  bool isLate = before.use == BeforeBlock::Use::Late;
  Work need;
  need.label = "need";
  Fence copied = block.slot ? block.slot->writes() : Fence();
  need.run = [watch, isLate, copied, clock = device.get()] { // keeps no handle of the device
    clock->call([watch, isLate, copied, clock] { watch->isLate = !isLate || !clock->isDone(copied); });
    clock->stamp(TimestampRef(watch, &watch->begin));
  };
  device->enqueue(Queue::Compute, {}, std::move(need));
  awaitLoad(block, /*isQueued=*/true);
  if (stagehand().state(block.id) == BlockState::Prefetching)
    awaited.push_back(&block);
  Fence done(Queue::Compute, device->enqueueStamp(Queue::Compute, block.slot->writes(),
                                                  TimestampRef(watch, &watch->end), "needed"));
  waits.push_back({&block, isLate, watch, done});
}

/// Waits until the block is there, or its load is queued if `isQueued`, one copy after
/// another.
void WeightStreamer::Impl::awaitLoad(Block &block, bool isQueued) {
  auto isThere = [&] {
    BlockState state = stagehand().state(block.id);
    return state == BlockState::GpuReady || (isQueued && state == BlockState::Prefetching && block.isQueued);
  };
  bool waitsForSlabs = stagehand().slabs().waits(block.id);
  double from = device->seconds();
  auto noteSlabs = [&] {
    if (waitsForSlabs && !stagehand().slabs().waits(block.id)) {
      waitsForSlabs = false;
      double waitedMs = 1000 * (device->seconds() - from);
      if (std::string text = policy->tell(weight_calls::poolWait, block.id, waitedMs); !text.empty())
        options.warn(text);
    }
  };
  for (; !isThere(); noteSlabs()) {
    if (stagehand().state(block.id) == BlockState::Prefetching)
      finish(*residency->awaitEnd(*block.item));
    else if (!hear(Tier::Host, /*waits=*/true) && !hear(Tier::Device, /*waits=*/true))
      throw Error(ErrorCode::DeviceOom, "weight streamer: block \"" + block.id +
                                            "\" waits for room that nobody gives: " + stagehand().describe());
  }
}

/// Loads that queued work waits for have ended. Throws if one has failed.
void WeightStreamer::Impl::settleAwaited() {
  while (!awaited.empty())
    finish(*residency->awaitEnd(*awaited.front()->item));
}

void WeightStreamer::settleLoads() { impl_->settleAwaited(); }

} // namespace segue::inline runtime
