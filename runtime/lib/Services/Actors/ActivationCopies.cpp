//===- ActivationCopies.cpp - copies of activations out and back ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ActivationActor.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstdio>
#include <zlib.h>

namespace segue::inline runtime {

bool ActivationActor::takeOut(std::deque<Held *> &queue, Held &held) {
  auto it = std::ranges::find(queue, &held);
  if (it == queue.end())
    return false;
  queue.erase(it);
  return true;
}

/// The CRC-32 of zlib, over the bytes in layout order.
static uint32_t checksumOf(const Tensor &tensor) {
  return uint32_t(crc32_z(0, reinterpret_cast<const Bytef *>(tensor.bytes()), tensor.desc().spanBytes()));
}

static std::string inHex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

static std::string nameOf(const std::string &id, const std::string &block) {
  return "activation \"" + id + "\"" + (block.empty() ? "" : " of block \"" + block + "\"");
}

static Error notBack(const std::string &id, const std::string &block, const std::string &cause) {
  return Error(ErrorCode::TransferFailed,
               nameOf(id, block) + " could not be copied back to the device; the step is aborted (" + cause + ")");
}

//===----------------------------------------------------------------------===//
// Copies that end
//===----------------------------------------------------------------------===//

void ActivationActor::on(const event::Poll &) {
  if (figures_.isBetweenNeeds())
    figures_.see(occupied());
  residency_.poll();
  noteEnds();
  settleQueued(/*all=*/false);
  issuePutOff();
}

ActivationActor::Held *ActivationActor::findItem(Item::Id item) {
  auto found = byItem_.find(item);
  return found == byItem_.end() ? nullptr : found->second;
}

std::optional<Residency::End> ActivationActor::takeEnd(const Held &held) {
  std::ranges::move(residency_.takeEnds(), std::back_inserter(ends_));
  auto found = std::ranges::find_if(ends_, [&](const Residency::End &end) { return findItem(end.item) == &held; });
  if (found == ends_.end())
    return std::nullopt;
  Residency::End end = std::move(*found);
  ends_.erase(found);
  return end;
}

void ActivationActor::noteEnds(Hears hears) {
  std::ranges::move(residency_.takeEnds(), std::back_inserter(ends_));
  auto concerns = [&](const Residency::End &end) { return hears != Hears::ToHost || end.tier == Tier::Host; };
  for (auto found = ends_.end(); (found = std::ranges::find_if(ends_, concerns)) != ends_.end();) {
    Residency::End end = std::move(*found);
    ends_.erase(found);
    if (Held *held = findItem(end.item))
      noteEnd(*held, end, hears != Hears::Nothing);
    std::ranges::move(residency_.takeEnds(), std::back_inserter(ends_));
  }
}

void ActivationActor::noteEnd(Held &held, const Residency::End &end, bool tellsPolicy) {
  std::string id = held.id;
  if (end.tier == Tier::Host) {
    if (finishSpill(held, end.failure.has_value()) && tellsPolicy)
      issue(policy_.tell(activation_calls::transferDone, id, used()).issued);
  } else if (!tellsPolicy) {
    return;
  } else if (!end.failure) {
    tellRestore(id, *held.retries, /*failed=*/false);
    issue(policy_.tell(activation_calls::transferDone, id, used()).issued);
  } else {
    noteFailedRestore(held, *end.failure);
    if (!held.recompute) {
      held.putOff = true;
      putOff_.push_front(&held);
    }
  }
}

void ActivationActor::on(const event::Pressure &pressure) {
  if (makingRoom_)
    return;
  makingRoom_ = true;
  int64_t goal = used() - int64_t(pressure.bytes);
  try {
    while (used() > goal) {
      const Item *oldest = residency_.oldest(Tier::Host);
      if (!oldest)
        break;
      waitFor(oldest->host().tensor.storage()->writes());
      residency_.poll();
      noteEnds(Hears::ToHost);
    }
    if (used() > goal)
      for (const std::string &id : policy_.tell(activation_calls::dropRestored, used() - goal)) {
        std::erase_if(queued_, [&](const Queued &queued) { return queued.id == id; });
        dropDevice(find(id));
      }
    if (used() > goal)
      dropMade(goal);
  } catch (...) {
    makingRoom_ = false;
    throw;
  }
  makingRoom_ = false;
}

/// Drops tensors that were made again before their need, to make others from or along with
/// them, and can be made once more: the one needed last first.
void ActivationActor::dropMade(int64_t goal) {
  std::vector<Held *> made;
  for (const auto &[id, held] : held_)
    if (held->recompute && held->isIdle && held->item->device().tensor.storage().use_count() == 1)
      made.push_back(held.get());
  std::ranges::sort(made, {}, [](const Held *held) { return std::pair(held->place.submit, ~held->order); });
  for (Held *held : made)
    if (used() > goal)
      forgetItem(*held);
}

//===----------------------------------------------------------------------===//
// Out
//===----------------------------------------------------------------------===//

/// Returns memory of the host as the policy's book has it. If a slab that the book has free
/// is not free, other memory serves. Returns null if there is none at all.
Tensor ActivationActor::takeHost(Held &held, const HostBuffer &buffer) {
  TensorDesc desc = *held.deviceDesc;
  desc.layout.offset = 0;
  std::shared_ptr<Storage> storage;
  bool hasDisk = context_.device->hasSpace(Space::Disk);
  desc.layout.space = hasDisk ? Space::Disk : buffer.poolClass ? Space::HostPinned : Space::Host;
  if (buffer.poolClass) {
    auto slab = pool_->tryTake(*buffer.poolClass);
    if (!slab) {
      reclaimSlabs();
      slab = pool_->tryTake(*buffer.poolClass);
    }
    if (slab) {
      storage = slab->storage;
      storage->renew();
      desc.layout.space = storage->space();
      slabs_.push_back(std::move(*slab));
    }
  }
  try {
    if (!storage)
      storage = Storage::allocate(context_.device, desc.layout.space, desc.spanBytes(), desc.layout.alignment, held.owner);
  } catch (const OutOfMemory &) {
    return Tensor();
  }
  return Tensor::in(std::move(storage), std::make_shared<const TensorDesc>(std::move(desc)));
}

void ActivationActor::holdItem(Held &held, const Tensor &device) {
  held.item = &residency_.hold(device, nameOf(held.id, held.block), held.owner, ItemLifetime::Step);
  held.itemId = held.item->id;
  byItem_[held.itemId] = &held;
}

void ActivationActor::forgetItem(Held &held) {
  freeDevice(held);
  if (!held.item)
    return;
  byItem_.erase(held.itemId);
  residency_.forget(*std::exchange(held.item, nullptr));
}

void ActivationActor::spill(Held &held, const HostBuffer &buffer, Tensor &saved) {
  holdItem(held, saved);
  setIdle(held, true);
  Tensor home;
  auto start = [&] {
    if (!home)
      home = takeHost(held, buffer);
    return home && startSpill(held, home);
  };
  while (!start()) {
    if (policy_.tell(activation_calls::transferFailed, held.id, used()).kind != TransferDecision::Kind::Retry) {
      forgetItem(held); // the program's handle is enough
      setIdle(held, true);
      return;
    }
  }
  if (!buffer.poolClass)
    settleSpill(held);
  if (!held.host()) // the copy failed while it was waited for
    return;
  know(held, home);
  saved = std::move(home);
}

/// Copies the device's bytes over `home`. False: there is no memory to stage them in.
bool ActivationActor::startSpill(Held &held, const Tensor &home) {
  ConductorGate::As as(context_.gate, service_);
  // If the host may read the source, its sum is taken here: that of the bytes that were saved.
  Device &device = *context_.device;
  if (policy_->config().debugChecksums && device.runsInline() && device.hasUnifiedMemory())
    held.checksum = checksumOf(held.device());
  try {
    residency_.leaveTo(*held.item, home, {.owner = held.owner});
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw;
    return false;
  }
  return true;
}

/// Returns true if a copy that has ended brought what left.
bool ActivationActor::isGood(Held &held) {
  if (!policy_->config().debugChecksums || !context_.device->hasBytes())
    return true;
  uint32_t found = checksumOf(held.host());
  if (held.checksum && *held.checksum != found)
    return false;
  held.checksum = found;
  return true;
}

/// The copy is good, or is given up: then the host's memory is gone and the
/// device's stays.
bool ActivationActor::finishSpill(Held &held, bool failed) {
  if (held.uses == 0) { // it was freed meanwhile
    byItem_.erase(held.itemId);
    held_.erase(held.id);
    return true;
  }
  if (failed) {
    Tensor home = held.host();
    while (policy_.tell(activation_calls::transferFailed, held.id, used()).kind == TransferDecision::Kind::Retry)
      if (startSpill(held, home))
        return false;
    context_.warn(nameOf(held.id, held.block) + " could not be copied to the host and stays on the device");
    giveHost(held);
  } else if (held.needed) { // it was rescued
    giveHost(held);
  } else {
    freeDevice(held);
  }
  return true;
}

void ActivationActor::settleSpill(Held &held) {
  while (true) {
    if (held.host())
      waitFor(held.host().storage()->writes());
    else // it was freed meanwhile
      residency_.settle();
    residency_.poll();
    std::optional<Residency::End> end = takeEnd(held);
    if (!end || finishSpill(held, end->failure.has_value()))
      return;
  }
}

void ActivationActor::giveHost(Held &held) {
  residency_.drop(*held.item, Tier::Host);
  reclaimSlabs();
}

/// Takes slabs back, since whoever held a tensor in them may have dropped it.
void ActivationActor::reclaimSlabs() {
  for (PinnedSlab &slab : slabs_)
    if (slab.storage.use_count() == 1)
      pool_->give(std::move(slab));
  std::erase_if(slabs_, [](const PinnedSlab &slab) { return !slab.storage; });
}

//===----------------------------------------------------------------------===//
// Back
//===----------------------------------------------------------------------===//

void ActivationActor::issue(const std::vector<std::string> &ids) {
  for (const std::string &id : ids) {
    find(id).putOff = true;
    putOff_.push_back(&find(id));
  }
  issuePutOff();
}

/// Restores start in the order of needs: one that cannot holds up what is needed later.
void ActivationActor::issuePutOff() {
  if (makingRoom_)
    return;
  while (!putOff_.empty() && startRestore(*putOff_.front(), Urgency::Ahead)) {
    putOff_.front()->putOff = false;
    putOff_.pop_front();
  }
}

bool ActivationActor::verifyHost(Held &held) {
  if (!held.checksum || !context_.device->hasBytes())
    return true;
  uint32_t found = checksumOf(held.host());
  if (found == *held.checksum)
    return true;
  Error lost(ErrorCode::ChecksumMismatch,
             nameOf(held.id, held.block) + ": CRC-32 " + inHex(found) + " on the host, " + inHex(*held.checksum) +
                 " when it left the device; the bytes were not used, the step is aborted");
  if (!policy_.tell(activation_calls::checksumFailed, held.id))
    throw lost;
  loseHost(held, std::move(lost));
  return false;
}

/// Asks Conductor for leave to hold the returned bytes. A tensor that is needed goes on without it.
bool ActivationActor::reserve(Held &held, Urgency urgency, Priority priority) {
  if (!context_.conductor.isEnabled())
    return true;
  Conductor &conductor = context_.conductor;
  uint64_t id = context_.newId();
  conductor.measure(used());
  Grant grant = conductor.reserve({.id = id,
                                   .owner = service_,
                                   .bytes = int64_t(held.bytes),
                                   .mode = urgency == Urgency::Needed ? BudgetMode::Burst : BudgetMode::Hard,
                                   .priority = priority,
                                   .scope = BudgetScope::Manual});
  if (grant.status == GrantStatus::Denied)
    return urgency == Urgency::Needed;
  held.reservation = id;
  return true;
}

/// False, with nothing done, if a copy ahead of its need finds no token, no
/// leave or no memory now.
bool ActivationActor::startRestore(Held &held, Urgency urgency) {
  bool ahead = urgency == Urgency::Ahead;
  DeviceMemory &memory = context_.device->memory();
  if (ahead && uint64_t(used()) + held.bytes > memory.budget(Space::DeviceDram))
    return false;
  if (!verifyHost(held))
    return true; // at its need
  bool next = !order_.empty() && order_.front() == &held;
  held.retries = std::make_shared<TransferRetries>(uint32_t(policy_->config().transferRetries));
  TransferOptions options{.retries = held.retries, .owner = held.owner};
  options.priority = ahead && !next ? TransferPriority::Speculative : TransferPriority::Required;
  // The tensor that is needed next is next in its queue: if it waited for a slot, the host
  // would have to wait, and compute for the host.
  options.isPlanned = options.priority == TransferPriority::Required;
  options.consumer = std::make_shared<const TransferConsumer>(TransferConsumer{{}, nameOf(held.id, held.block), {}});
  if (!reserve(held, urgency, ahead && !next ? Priority::Speculative : Priority::Required))
    return false;
  ConductorGate::As as(context_.gate, service_);
  // Room for a tensor that is only ahead would be taken from one that is nearer.
  bool before = std::exchange(makingRoom_, makingRoom_ || ahead), started = false;
  try {
    started = residency_.tryFetch(*held.item, options);
    makingRoom_ = before;
  } catch (const Error &error) {
    makingRoom_ = before;
    freeDevice(held);
    if (error.code() == ErrorCode::DeviceOom && ahead)
      return false;
    if (error.code() == ErrorCode::DeviceOom && context_.conductor.isEnabled())
      throw error.within("activation \"" + held.id + "\" cannot return; Conductor's reservations:\n" +
                         context_.conductor.holdersTable());
    throw;
  }
  if (!started) {
    freeDevice(held);
    return false;
  }
  setIdle(held, true);
  if (held.reservation)
    context_.conductor.commit(held.reservation, int64_t(held.bytes));
  return true;
}

/// The device's copy came to nothing, and the host's is whole.
void ActivationActor::noteFailedRestore(Held &held, const Error &cause) {
  freeDevice(held);
  TransferDecision decision = tellRestore(held.id, *held.retries, /*failed=*/true);
  if (decision.kind == TransferDecision::Kind::Retry)
    return;
  Error lost = notBack(held.id, held.block, cause.what());
  if (decision.kind != TransferDecision::Kind::Recompute)
    throw lost;
  loseHost(held, std::move(lost));
  issue(decision.issued);
}

void ActivationActor::settleRestore(Held &held) {
  if (std::exchange(held.putOff, false))
    takeOut(putOff_, held);
  while (true) {
    if (!held.device())
      startRestore(held, Urgency::Needed);
    if (held.recompute) // whoever waits for it makes it
      return;
    if (!held.depth) // nothing else could make it
      return leaveToQueue(held);
    waitFor(held.device().storage()->writes());
    residency_.poll();
    std::optional<Residency::End> end = takeEnd(held);
    if (!end || !end->failure) {
      tellRestore(held.id, *held.retries, /*failed=*/false);
      return;
    }
    noteFailedRestore(held, *end->failure);
    if (held.recompute)
      return;
  }
}

/// Leaves the copy back to its queue: its readers wait in the compute queue; if it fails,
/// so do they, and nothing of theirs is used.
void ActivationActor::leaveToQueue(Held &held) {
  const Storage &storage = *residency_.need(*held.item).storage();
  queued_.push_back({held.id, held.block, storage.writes(), storage.outcomeIfAny(), held.retries});
}

void ActivationActor::settleQueued(bool all) {
  while (!queued_.empty() && (all || context_.device->isDone(queued_.front().fence))) {
    Queued copy = std::move(queued_.front());
    queued_.pop_front();
    context_.device->wait(copy.fence);
    const Error *error = copy.outcome ? copy.outcome->error() : nullptr;
    tellRestore(copy.id, *copy.retries, error != nullptr);
    if (error)
      throw notBack(copy.id, copy.block, error->what());
  }
}

TransferDecision ActivationActor::tellRestore(const std::string &id, TransferRetries &retries, bool failed) {
  // An event of the step and the wait for its readers both hear of the copy's end: the first tells.
  for (uint32_t untold = retries.used.exchange(0); untold > 0; --untold)
    policy_.tell(activation_calls::transferFailed, id, used());
  return failed ? policy_.tell(activation_calls::transferFailed, id, used()) : TransferDecision();
}

void ActivationActor::noteStall(std::shared_ptr<const CopyWait> wait) {
  if (wait)
    stalls_.push_back(std::move(wait));
}

void ActivationActor::waitFor(const Fence &copy) { noteStall(waitForCopy(*context_.device, copy, lastStall_)); }

double ActivationActor::settleStalls() {
  if (stalls_.empty())
    return 0;
  context_.device->wait(Fence(Queue::Compute, lastStall_));
  double seconds = 0;
  for (const auto &wait : stalls_)
    seconds += wait->seconds();
  stalls_.clear();
  policy_.tell(activation_calls::stall, seconds * 1e3);
  return seconds;
}

/// The rates at which the link has carried what it carried so far.
LinkRates ActivationActor::linkRates() const {
  if (context_.twin)
    return {context_.twin->link.d2hBytesPerSecond, context_.twin->link.h2dBytesPerSecond};
  const TransferCounters &counters = context_.device->transfer().counters();
  auto rate = [](uint64_t bytes, uint64_t nanoseconds) {
    return nanoseconds ? double(bytes) / (double(nanoseconds) * 1e-9) : 0;
  };
  return {rate(counters.d2hCarriedBytes, counters.d2hCarriedNanoseconds),
          rate(counters.h2dCarriedBytes, counters.h2dCarriedNanoseconds)};
}

/// Gives up the device's bytes, where another tier has them or nobody needs them.
void ActivationActor::dropDevice(Held &held) {
  if (held.item && held.item->device().exists())
    residency_.drop(*held.item, Tier::Device);
  freeDevice(held);
}

/// The device's bytes are in use no more.
void ActivationActor::freeDevice(Held &held) {
  setIdle(held, false);
  if (uint64_t id = std::exchange(held.reservation, 0))
    context_.conductor.release(id);
}

} // namespace segue::inline runtime
