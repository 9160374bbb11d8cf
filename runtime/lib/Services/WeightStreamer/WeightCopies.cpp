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

/// What cannot be given out in one piece: what is allocated and the holes between.
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
  block.isRetry = false;
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
  block.lost = nullptr;
  block.retries.clear();
  block.slot->forgetOutcome();
  block.copyWatch = std::make_shared<LoadWatch>();
  TransferOptions how;
  how.priority = priority == Priority::Speculative ? TransferPriority::Speculative : TransferPriority::Required;
  try {
    uint64_t slabOffset = 0;
    queueWeights(block, how, slabOffset);
  } catch (const Error &error) {
    block.error = error;
  }
  device->enqueueStamp(Queue::HostToDevice, {}, TimestampRef(block.copyWatch, &block.copyWatch->end));
  block.copied = block.slot->uses();
  block.copied.join(Fence(Queue::HostToDevice, device->position(Queue::HostToDevice)));
  return true;
}

/// Of the copies of a load; `after`: when the first of them could begin.
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
  for (const Weight *weight : block.weights)
    if (!weight->file && weight->source.host)
      free.join(weight->source.host.storage()->writes());
  for (const Weight *weight : block.weights) {
    Tensor target = Tensor::in(block.slot, weight->desc);
    how.consumer = weight->consumer;
    how.retries = block.retries.emplace_back(std::make_shared<TransferRetries>(block.isRetry ? 0 : 1));
    if (weight->slab) {
      startClock(block, {}); // its codes lie elsewhere first
      try {
        serve(*weight->slab, weight->value.name, target, how, block.isUsed);
      } catch (const Error &error) {
        if (block.isUsed) {
          block.lost = weight;
          throw error.within("\"" + weight->unit +
                             "\" was used in this step as its slab has it, and cannot be read "
                             "from there again; the next step has it from its source");
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

/// True if the bytes of the file are those of the device.
static bool isStoredAsWanted(const SafetensorsEntry &entry, const TensorDesc &wanted) {
  const Layout &layout = wanted.layout;
  return *entry.element == wanted.element && !isQuantized(layout.storage) && layout.tile.empty() &&
         (layout.strides.empty() || layout.strides == denseStrides(wanted.shape));
}

/// Bytes of the file that are copied together: what is not converted is cut
/// anywhere, what is converted between rows, and what lies in another order not at all.
static uint64_t unitOf(const SafetensorsEntry &entry, const TensorDesc &wanted) {
  if (isStoredAsWanted(entry, wanted))
    return 1;
  bool hasRows = !isQuantized(wanted.layout.storage) && wanted.layout.tile.empty() && !entry.shape.empty() &&
                 entry.shape.front() > 0;
  return hasRows ? std::max<uint64_t>(entry.bytes / uint64_t(entry.shape.front()), 1) : entry.bytes;
}

/// Bytes [from, from + bytes) of a weight, as they are in the file and as they are
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
  bool isAwaited = std::exchange(block.isAwaited, false);
  if (std::ranges::any_of(block.retries, [](const auto &each) { return each->used > 0; }))
    policy->loadFailed(block.id); // and tried again at once
  if (!error) {
    countServed(block);
    carryOut(policy->loaded(block.id, block.copyWatch->times()));
    return;
  }
  LoadFailure failure = policy->loadFailed(block.id);
  if (failure.retry && !isAwaited && isWorthRetrying(error->code())) {
    block.isRetry = true;
    queueLoad(block, Priority::Required);
    loading.push_back(&block);
    return;
  }
  if (failure.retry)
    failure = policy->loadFailed(block.id);
  release(block);
  carryOut(failure.actions);
  if (!isNeeded && !isAwaited)
    return; // it is loaded again when its turn comes, and fails then
  throw error->within("block \"" + block.id + "\"");
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

/// What used it last may still run: the memory is given out after that.
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
  const WeightStagehand &stagehand = policy->policy();
  if (stagehand.ring().slots == stagehand.ring().most)
    return;
  policy->measure(usedBytes());
  while (stagehand.wantsSlot(next.id) && takeSlot()) {
    WeightRing more = stagehand.ring();
    ++more.slots;
    policy->setRing(more);
  }
}

uint64_t WeightStreamer::makeRoom(uint64_t bytes) {
  Impl &s = *impl_;
  if (!s.policy || s.isMakingRoom)
    return 0;
  struct Scope {
    bool &is;
    explicit Scope(bool &is) : is(is) { is = true; }
    ~Scope() { is = false; }
  } scope(s.isMakingRoom);
  uint64_t before = ringBytes();
  // What has run, as far as the policy knows, may leave once it is there.
  for (const auto &block : s.blocks)
    if (block->isAwaited && s.policy->useCount(block->id) == 0) {
      s.device->wait(block->copied);
      if (!block->slot->failure()) // else the next event says so
        s.finishLoad(*block, /*isNeeded=*/true);
    }
  s.carryOut(s.policy->makeRoom(int64_t(std::min<uint64_t>(bytes, INT64_MAX))));
  s.endSaves();
  return before - ringBytes();
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
  for (const auto &file : impl_->files)
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

/// Of the program that runs.
bool WeightStreamer::Impl::isWritten(const Block &block) const {
  for (size_t i = 0; i < current->inputs.size(); ++i)
    if (const Weight *weight = current->inputs[i]; weight && weight->block == &block && current->uses.written[i])
      return true;
  return false;
}

/// A block that begins: its program may be queued when this returns. What reads it
/// waits in the compute queue. The thread waits until the block before has its
/// weights and runs, so that what it decides is decided by what is on the device then.
/// What is written in place is there before: a step that is given up must not have
/// begun to write.
void WeightStreamer::Impl::bring(Block &block) {
  bool isQueued = device->hasBytes() && !device->runsInline() && !isWritten(block);
  poll();
  BlockState state = policy->state(block.id);
  if (isQueued ? state != BlockState::GpuReady : state == BlockState::Prefetching) {
    // Compute has something to do meanwhile, and the load may end.
    device->wait(isQueued ? started : computed);
    poll();
  }
  growRing(block);
  BeforeBlock before = policy->beforeBlock(block.id, usedBytes());
  carryOut(before.actions);
  if (before.use == BeforeBlock::Use::Hit)
    return;
  if (!isQueued) {
    device->wait(computed);
    double from = device->seconds();
    awaitLoad(block, /*isQueued=*/false);
    return policy->addStall(1000 * (device->seconds() - from));
  }
  auto watch = std::make_shared<CopyWait>();
  bool isLate = before.use == BeforeBlock::Use::Late;
  Work need;
  need.label = "need";
  need.run = [watch, isLate, copied = block.copied, clock = device.get()] { // keeps no handle of the device
    clock->call([watch, isLate, copied, clock] { watch->isLate = !isLate || !clock->isDone(copied); });
    clock->stamp(TimestampRef(watch, &watch->begin));
  };
  device->enqueue(Queue::Compute, {}, std::move(need));
  awaitLoad(block, /*isQueued=*/true);
  block.isAwaited = policy->state(block.id) == BlockState::Prefetching;
  Fence done(Queue::Compute, device->enqueueStamp(Queue::Compute, block.copied,
                                                  TimestampRef(watch, &watch->end), "needed"));
  waits.push_back({&block, isLate, watch, done});
}

/// Until the block is there, or its load is queued if `isQueued`, one copy after
/// another.
void WeightStreamer::Impl::awaitLoad(Block &block, bool isQueued) {
  auto isThere = [&] {
    BlockState state = policy->state(block.id);
    return state == BlockState::GpuReady || (isQueued && state == BlockState::Prefetching && !block.error);
  };
  bool waitsForSlabs = policy->policy().slabs().waits(block.id);
  double from = device->seconds();
  auto noteSlabs = [&] {
    if (waitsForSlabs && !policy->policy().slabs().waits(block.id)) {
      waitsForSlabs = false;
      if (std::string text = policy->addPoolWait(block.id, 1000 * (device->seconds() - from)); !text.empty())
        options.warn(text);
    }
  };
  for (; !isThere(); noteSlabs()) {
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

/// Loads that queued work waits for have ended. Throws if one has failed.
void WeightStreamer::Impl::settleAwaited() {
  auto next = [this] { return std::ranges::find_if(loading, [](const Block *block) { return block->isAwaited; }); };
  for (auto it = next(); it != loading.end(); it = next()) {
    Block &block = **it;
    device->wait(block.copied);
    finishLoad(block, /*isNeeded=*/true);
  }
}

} // namespace segue::inline runtime
