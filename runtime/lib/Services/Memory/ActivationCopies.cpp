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

/// As zlib and zip have it; over the bytes in layout order.
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

void ActivationActor::poll() {
  Device &device = *context_.device;
  if (figures_.isBetweenNeeds())
    figures_.see(occupied());
  while (!spills_.empty() && device.isDone(spills_.front()->fence)) {
    Held &held = *spills_.front();
    if (!isGood(held) && retrySpill(held))
      continue;
    std::string id = held.id;
    finishSpill(held);
    issue(policy_.transferDone(id, used()).issued);
  }
  settleQueued(/*all=*/false);
  while (!restores_.empty() && device.isDone(restores_.front()->fence)) {
    Held &held = *restores_.front();
    restores_.pop_front();
    held.copy = Held::Copy::None;
    if (!held.outcome || !held.outcome->error()) {
      tellRestore(held.id, *held.retries, /*failed=*/false);
      issue(policy_.transferDone(held.id, used()).issued);
      continue;
    }
    noteFailedRestore(held);
    if (held.recompute)
      continue;
    held.putOff = true;
    putOff_.push_front(&held);
  }
  issuePutOff();
}

void ActivationActor::makeRoom(uint64_t wanted) {
  if (makingRoom_)
    return;
  makingRoom_ = true;
  int64_t goal = used() - int64_t(wanted);
  try {
    while (!spills_.empty() && used() > goal) {
      waitFor(spills_.front()->fence);
      Held &held = *spills_.front();
      if (!isGood(held) && retrySpill(held))
        continue;
      std::string id = held.id;
      finishSpill(held);
      issue(policy_.transferDone(id, used()).issued);
    }
    if (used() > goal)
      for (const std::string &id : policy_.dropRestored(used() - goal)) {
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

/// What was made again before its need, to make another from or along with it,
/// and can be once more; the one needed last first.
void ActivationActor::dropMade(int64_t goal) {
  std::vector<Held *> made;
  for (const auto &[id, held] : held_)
    if (held->recompute && held->isIdle && held->device.storage().use_count() == 1)
      made.push_back(held.get());
  std::ranges::sort(made, {}, [](const Held *held) { return std::pair(held->place.submit, ~held->order); });
  for (Held *held : made)
    if (used() > goal)
      dropDevice(*held);
}

//===----------------------------------------------------------------------===//
// Out
//===----------------------------------------------------------------------===//

/// Memory of the host as the policy's book has it. Where a slab that the book
/// has free is not, other memory serves. False if there is none at all.
bool ActivationActor::takeHost(Held &held, const HostBuffer &buffer) {
  TensorDesc desc = *held.deviceDesc;
  desc.layout.offset = 0;
  std::shared_ptr<Storage> storage;
  desc.layout.space = buffer.poolClass ? Space::HostPinned : Space::Host;
  if (buffer.poolClass) {
    auto slab = pool_->tryTake(*buffer.poolClass);
    if (!slab) {
      reclaimLent();
      slab = pool_->tryTake(*buffer.poolClass);
    }
    if (slab) {
      held.slab = std::move(*slab);
      storage = held.slab.storage;
      storage->renew();
      storage->forgetOutcome();
    }
  }
  try {
    if (!storage)
      storage = Storage::allocate(context_.device, desc.layout.space, desc.spanBytes(), desc.layout.alignment, owner_);
  } catch (const OutOfMemory &) {
    return false;
  }
  held.host = Tensor::in(std::move(storage), std::make_shared<const TensorDesc>(std::move(desc)));
  return true;
}

void ActivationActor::spill(Held &held, const HostBuffer &buffer, Tensor &saved) {
  held.device = saved;
  setIdle(held, true);
  bool started = takeHost(held, buffer) && startSpill(held);
  while (!started) {
    if (policy_.transferFailed(held.id, used()).kind != TransferDecision::Kind::Retry) {
      giveHost(held);
      dropDevice(held); // the program's handle is enough
      setIdle(held, true);
      return;
    }
    started = (held.host || takeHost(held, buffer)) && startSpill(held);
  }
  if (!buffer.poolClass)
    settleSpill(held);
  if (!held.host) // the copy failed while it was waited for
    return;
  know(held, held.host);
  saved = held.host;
}

/// Copies held.device over held.host.
bool ActivationActor::startSpill(Held &held) {
  ConductorGate::As as(context_.gate, service_);
  // Where the host may read the source, its sum is that of what was saved.
  Device &device = *context_.device;
  if (policy_.config().debugChecksums && device.runsInline() && device.hasUnifiedMemory())
    held.checksum = checksumOf(held.device);
  try {
    held.host.storage()->forgetOutcome();
    context_.engine().copyInto(held.device, held.host, {.owner = owner_});
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw;
    return false;
  }
  held.copy = Held::Copy::Out;
  held.fence = held.host.storage()->writes();
  held.outcome = held.host.storage()->outcomeIfAny();
  spills_.push_back(&held);
  return true;
}

/// Whether what a copy that has ended brought is what left.
bool ActivationActor::isGood(Held &held) {
  if (held.outcome && held.outcome->error())
    return false;
  if (!policy_.config().debugChecksums || !context_.device->hasBytes())
    return true;
  uint32_t found = checksumOf(held.host);
  if (held.checksum && *held.checksum != found)
    return false;
  held.checksum = found;
  return true;
}

bool ActivationActor::retrySpill(Held &held) {
  takeOut(spills_, held);
  held.copy = Held::Copy::None;
  while (policy_.transferFailed(held.id, used()).kind == TransferDecision::Kind::Retry)
    if (startSpill(held))
      return true;
  context_.warn(nameOf(held.id, held.block) + " could not be copied to the host and stays on the device");
  giveHost(held);
  return false;
}

/// The copy is good, or was given up: then the host's memory is gone and the
/// device's stays.
void ActivationActor::finishSpill(Held &held) {
  takeOut(spills_, held);
  held.copy = Held::Copy::None;
  bool rescued = held.needed || held.uses == 0;
  if (rescued)
    giveHost(held);
  else if (held.host)
    dropDevice(held);
  if (held.uses == 0)
    held_.erase(held.id);
}

void ActivationActor::settleSpill(Held &held) {
  do {
    waitFor(held.fence);
  } while (!isGood(held) && retrySpill(held));
  finishSpill(held);
}

void ActivationActor::giveHost(Held &held) {
  held.host = Tensor();
  PinnedSlab slab = std::move(held.slab);
  held.slab = {};
  if (!slab.storage)
    return;
  if (slab.storage.use_count() == 1)
    pool_->give(std::move(slab));
  else
    lent_.push_back(std::move(slab));
}

/// Whoever held a tensor in them may have dropped it since.
void ActivationActor::reclaimLent() {
  for (PinnedSlab &slab : lent_)
    if (slab.storage.use_count() == 1)
      pool_->give(std::move(slab));
  std::erase_if(lent_, [](const PinnedSlab &slab) { return !slab.storage; });
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

/// In the order of needs: what cannot start holds up what is needed later.
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
  uint32_t found = checksumOf(held.host);
  if (found == *held.checksum)
    return true;
  if (policy_.checksumFailed(held.id)) {
    loseHost(held);
    return false;
  }
  throw Error(ErrorCode::ChecksumMismatch,
              nameOf(held.id, held.block) + ": CRC-32 " + inHex(found) + " on the host, " + inHex(*held.checksum) +
                  " when it left the device; the bytes were not used, the step is aborted");
}

/// Conductor's leave to hold the returned bytes. What is needed goes on without.
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
  held.retries = std::make_shared<TransferRetries>(uint32_t(policy_.config().transferRetries));
  TransferOptions options{.retries = held.retries, .owner = owner_};
  options.priority = ahead && !next ? TransferPriority::Speculative : TransferPriority::Required;
  // What is needed next is next in its queue: for a slot the host would have to
  // wait, and compute for the host.
  options.isPlanned = options.priority == TransferPriority::Required;
  options.consumer = std::make_shared<const TransferConsumer>(TransferConsumer{{}, nameOf(held.id, held.block), {}});
  if (!reserve(held, urgency, ahead && !next ? Priority::Speculative : Priority::Required))
    return false;
  ConductorGate::As as(context_.gate, service_);
  // To make room for what is only ahead would take it from what is nearer.
  bool before = std::exchange(makingRoom_, makingRoom_ || ahead);
  try {
    held.device = context_.engine().toLayout(context_.device, held.host, held.deviceDesc, options);
    makingRoom_ = before;
  } catch (const Error &error) {
    makingRoom_ = before;
    dropDevice(held);
    if (error.code() == ErrorCode::DeviceOom && ahead)
      return false;
    if (error.code() == ErrorCode::DeviceOom && context_.conductor.isEnabled())
      throw error.within("activation \"" + held.id + "\" cannot return; Conductor's reservations:\n" +
                         context_.conductor.holdersTable());
    throw;
  }
  if (!held.device) {
    dropDevice(held);
    return false;
  }
  setIdle(held, true);
  if (held.reservation)
    context_.conductor.commit(held.reservation, int64_t(held.bytes));
  held.copy = Held::Copy::In;
  held.fence = held.device.storage()->writes();
  held.outcome = held.device.storage()->outcomeIfAny();
  restores_.push_back(&held);
  return true;
}

void ActivationActor::noteFailedRestore(Held &held) {
  std::string cause = held.outcome->error()->what();
  dropDevice(held);
  TransferDecision decision = tellRestore(held.id, *held.retries, /*failed=*/true);
  if (decision.kind == TransferDecision::Kind::Recompute) {
    loseHost(held);
    issue(decision.issued);
    return;
  }
  if (decision.kind != TransferDecision::Kind::Retry)
    throw notBack(held.id, held.block, cause);
}

void ActivationActor::settleRestore(Held &held) {
  if (std::exchange(held.putOff, false))
    takeOut(putOff_, held);
  while (true) {
    if (held.copy == Held::Copy::None)
      startRestore(held, Urgency::Needed);
    if (held.recompute) // whoever waits for it makes it
      return;
    if (!held.depth) // nothing else could make it
      return leaveToQueue(held);
    waitFor(held.fence);
    takeOut(restores_, held);
    held.copy = Held::Copy::None;
    if (!held.outcome || !held.outcome->error()) {
      tellRestore(held.id, *held.retries, /*failed=*/false);
      return;
    }
    noteFailedRestore(held);
    if (held.recompute)
      return;
  }
}

/// Its readers wait in the compute queue; if it fails, so do they, and nothing of
/// theirs is used.
void ActivationActor::leaveToQueue(Held &held) {
  takeOut(restores_, held);
  held.copy = Held::Copy::None;
  queued_.push_back({held.id, held.block, held.fence, held.outcome, held.retries});
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

TransferDecision ActivationActor::tellRestore(const std::string &id, const TransferRetries &retries, bool failed) {
  for (uint32_t i = 0; i < retries.used; ++i)
    policy_.transferFailed(id, used());
  return failed ? policy_.transferFailed(id, used()) : TransferDecision();
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
  policy_.addStall(seconds * 1e3);
  return seconds;
}

/// As the link has carried what it carried so far.
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

void ActivationActor::dropDevice(Held &held) {
  held.device = Tensor();
  setIdle(held, false);
  if (uint64_t id = std::exchange(held.reservation, 0))
    context_.conductor.release(id);
}

} // namespace segue::inline runtime
