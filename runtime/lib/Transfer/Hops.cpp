//===- Hops.cpp - the steps of a transfer as queued work ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All memory of a transfer is taken before its first step is queued, so that
// none has to be called back. Each step waits for the one before it, the first
// for what writes the source, the last for what uses the target. Memory in
// between goes back when the last step is queued, with the fence of its last
// use; work holds outcomes and addresses, never storages.
//
//===----------------------------------------------------------------------===//

#include "../Hash.h"
#include "TransferEngineImpl.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstring>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Memory between steps
//===----------------------------------------------------------------------===//

PassingMemory &PassingMemory::operator=(PassingMemory &&other) noexcept {
  std::swap(device_, other.device_);
  std::swap(space_, other.space_);
  std::swap(bytes_, other.bytes_);
  std::swap(block_, other.block_);
  std::swap(used_, other.used_);
  return *this;
}

PassingMemory::~PassingMemory() {
  if (device_ && block_.data)
    device_->memory().free(space_, block_.data, bytes_, alignment, block_.account, used_);
}

PassingMemory PassingMemory::take(Device &device, Space space, uint64_t bytes, OwnerId owner) {
  return {device, space, bytes, device.memory().allocate(space, bytes, alignment, owner, Lifetime::Short)};
}

PassingMemory PassingMemory::tryTake(Device &device, Space space, uint64_t bytes, OwnerId owner) {
  if (!device.hasSpace(space))
    return {};
  return {device, space, bytes, device.memory().tryAllocate(space, bytes, alignment, owner, Lifetime::Short)};
}

/// The least that a chunk is worth its latency on the link.
static constexpr uint64_t leastChunkBytes = 64 << 10;

/// Takes as many staging buffers as the options say and the memory has, but no more
/// than there are chunks. Where there is no room for two, chunks are smaller; none
/// if that does not help either.
TransferEngine::Impl::Staging TransferEngine::Impl::takeStaging(const TransferStep &step) {
  const StitchOptions &options = engine.options();
  Staging staging;
  staging.chunkBytes = std::min(options.stagingChunkBytes, step.bytes);
  for (;; staging.chunkBytes = staging.chunkBytes / 2) {
    uint64_t chunks = (step.bytes + staging.chunkBytes - 1) / staging.chunkBytes;
    uint64_t wanted = std::min<uint64_t>(chunks, options.stagingBuffers);
    for (uint64_t i = 0; i < wanted; ++i) {
      PassingMemory buffer = PassingMemory::tryTake(device, Space::HostPinned, staging.chunkBytes, stagingOwner);
      if (!buffer.data())
        break;
      staging.addresses.push_back(buffer.data());
      staging.memory.push_back(std::move(buffer));
    }
    if (staging.addresses.size() >= std::min<uint64_t>(wanted, 2) || staging.chunkBytes / 2 < leastChunkBytes)
      return staging;
    staging = {{}, {}, staging.chunkBytes};
  }
}

/// Of the page-locked memory above a disk, this part is buffers, in each direction; more than so many
/// bytes do not help. They let the disk read ahead of the link, and the link run ahead of the disk.
static constexpr uint64_t passingShare = 16, mostPassingBytes = 64 << 20;
/// So many chunks at least take turns.
static constexpr uint64_t passingChunks = 4;

void TransferEngine::Impl::takePassingBuffers() {
  uint64_t bytes = std::min(device.memory().budget(Space::HostPinned) / passingShare, mostPassingBytes);
  uint64_t most = StitchOptions().stagingChunkBytes, grain = 4096; // of disks
  passingChunkBytes = std::max(std::min(most, bytes / passingChunks) / grain * grain, grain);
  for (PassingBuffers *passing : {&toDeviceBuffers, &toDiskBuffers})
    for (uint64_t i = 0; i < std::max<uint64_t>(bytes / passingChunkBytes, 2); ++i) {
      MemoryBlock block =
          device.memory().tryAllocate(Space::HostPinned, passingChunkBytes, uint32_t(grain), stagingOwner);
      if (!block.data)
        throw Error(ErrorCode::DeviceOom, "device \"" + device.name() + "\" has no page-locked memory left for buffers "
                                          "between its link and its disk");
      passing->buffers.push_back({static_cast<std::byte *>(block.data), block.after});
    }
}

uint64_t TransferEngine::passingBytes() const {
  return impl_->toDeviceBuffers.buffers.size() * impl_->passingChunkBytes;
}

Space TransferEngine::homeFor(uint64_t bytes) const {
  bool isDiskBelowHost = device_.diskLink().has_value();
  if (device_.hasSpace(Space::Disk) && !isDiskBelowHost)
    return Space::Disk;
  if (device_.hasSpace(Space::HostPinned) && leavesRoomToStage(bytes))
    return Space::HostPinned;
  return isDiskBelowHost ? Space::Disk : Space::Host;
}

uint64_t TransferEngine::roomToKeep() const {
  DeviceMemory &memory = device_.memory();
  uint64_t budget = memory.budget(Space::HostPinned);
  uint64_t taken = memory.liveBytes(Space::HostPinned) +
                   std::min(2 * options_.stagingBuffers * options_.stagingChunkBytes, budget / 16) +
                   leftToMessages_ - std::min(leftToMessages_, heldByMessages_);
  return budget - std::min(budget, taken);
}

bool TransferEngine::leavesRoomToStage(uint64_t bytes) const { return bytes <= roomToKeep(); }

//===----------------------------------------------------------------------===//
// Tokens
//===----------------------------------------------------------------------===//

void TransferEngine::Impl::finishHops(bool all) {
  for (auto it = inFlight.begin(); it != inFlight.end();) {
    if (all)
      device.wait(it->fence);
    if (!device.isDone(it->fence)) {
      ++it;
      continue;
    }
    InFlight done = std::move(*it);
    it = inFlight.erase(it);
    bool succeeded = !done.target->error();
    if (done.token)
      gate->complete(*done.token, done.bytes, *done.seconds, succeeded);
    else
      gate->passed(done.queue, done.bytes, *done.seconds, succeeded);
  }
}

void TransferEngine::settle(bool all) { impl_->finishHops(all); }

bool TransferEngine::settleUntil(Queue direction, double seconds, const std::function<bool()> &isEnough) {
  Impl &s = *impl_;
  double until = device_.seconds() + seconds;
  for (s.finishHops(/*all=*/false); !isEnough(); s.finishHops(/*all=*/false)) {
    auto oldest = std::ranges::find(s.inFlight, direction, &Impl::InFlight::queue);
    if (oldest == s.inFlight.end() || !device_.waitFor(oldest->fence, until - device_.seconds()))
      return false;
  }
  return true;
}

void TransferEngine::setGate(TransferGate *gate) {
  impl_->finishHops(/*all=*/true);
  impl_->gate = gate;
}

TransferGate *TransferEngine::gate() const { return impl_->gate; }

std::optional<uint64_t> TransferEngine::Impl::acquire(const TransferStep &link, TransferPriority priority) {
  finishHops(/*all=*/false);
  TransferGate::Grant grant = gate->acquire(link.queue, priority, link.bytes);
  auto isAnswered = [&] {
    if (grant.answer == TransferGate::Answer::Wait)
      grant = gate->acquire(link.queue, priority, link.bytes);
    return grant.answer != TransferGate::Answer::Wait;
  };
  if (grant.answer == TransferGate::Answer::Wait && !engine.settleUntil(link.queue, grant.waitSeconds, isAnswered))
    return gate->overrun(link.queue, priority, link.bytes);
  return grant.answer == TransferGate::Answer::Go ? std::optional(grant.token) : std::nullopt;
}

//===----------------------------------------------------------------------===//
// The work of a step
//===----------------------------------------------------------------------===//

/// Returns a text such as `program "f", input 3 ("x"), bf16[8,8]`.
static std::string whatFor(const std::shared_ptr<const TransferConsumer> &consumer, const TransferPlan &plan) {
  std::string tensor = plan.steps.back().target.str();
  return consumer ? consumer->str() + ", " + tensor : "toLayout: " + tensor;
}

/// Copies over the link, and from and to a disk, are tried once more if they stumble, and then
/// as often as `more` allows.
class TransferEngine::Impl::Tries final : public CopyTries {
public:
  Tries(TransferCounters &counters, Queue queue, TransferRetries *more)
      : counters_(counters), copies_(isOfDisk(queue)                ? counters.diskCopies
                                     : queue == Queue::HostToDevice ? counters.h2dCopies
                                                                    : counters.d2hCopies),
        more_(more) {}

  void trying() noexcept override { ++copies_; }
  bool triesAgain(const Error &error, uint32_t failures) noexcept override {
    if (error.code() != ErrorCode::TransferFailed) // only a link that stumbled is worth a second try
      return false;
    if (failures % 2 == 0) {
      if (!more_ || more_->used >= more_->allowed)
        return false;
      ++more_->used;
    }
    ++counters_.retries;
    return true;
  }

private:
  TransferCounters &counters_;
  TransferCounters::Sum &copies_;
  TransferRetries *more_;
};

/// The steps of one transfer share a Chain while they run.
struct TransferEngine::Impl::Chain {
  Impl &impl;
  std::shared_ptr<const TransferPlan> plan;
  /// The outcome of the queued writes of the source; null if there were none.
  std::shared_ptr<Outcome> source;
  std::shared_ptr<Outcome> target;
  std::shared_ptr<const TransferConsumer> consumer;
  std::shared_ptr<TransferChecksum> checksum;
  std::shared_ptr<TransferRetries> retries;
  Staging staging; // addresses alone
  /// The tries of the step over the link, and of those to a disk below the host.
  std::optional<Tries> tries, diskTries;
  /// The hash of the chunks that passed the host so far, made with the first of them.
  std::optional<HashOfPieces> hash = {};

  std::string what() const { return whatFor(consumer, *plan); }

  /// False if something failed before the step.
  bool mayBegin(size_t index) {
    if (target->error())
      return false;
    const Error *error = index == 0 && source ? source->error() : nullptr;
    if (error)
      target->fail(error->within(what() + " is a copy of a tensor that was never written"));
    return !error;
  }

  void fail(size_t index, const Error &error) { fail(index, plan->steps[index].queue, error); }
  void fail(size_t index, Queue queue, const Error &error) {
    ++impl.engine.counters().failures;
    const TransferStep &step = plan->steps[index];
    target->fail(error.within(what() + ": " + std::to_string(step.bytes) + " bytes, " + step.hop() + " on queue " +
                              std::string(segue::name(queue))));
  }
};

void TransferEngine::Impl::countCarried(Queue queue, uint64_t bytes, double seconds) {
  TransferCounters &counters = engine.counters();
  bool down = queue == Queue::HostToDevice;
  (down ? counters.h2dCarriedBytes : counters.d2hCarriedBytes) += bytes;
  (down ? counters.h2dCarriedNanoseconds : counters.d2hCarriedNanoseconds) += uint64_t(seconds * 1e9);
}

static Error otherBytes(uint64_t found, const TransferChecksum &checksum) {
  return Error(ErrorCode::ChecksumMismatch, "the bytes to be brought back are not those that left (hash " +
                                                std::to_string(found) + ", not " + std::to_string(checksum.value()) +
                                                "); they were not used");
}

void TransferEngine::Impl::giveLink(const TransferStep &step, Chain &chain, std::byte *to, const std::byte *from) {
  bool down = step.queue == Queue::HostToDevice;
  TransferChecksum *checksum = chain.checksum.get();
  // Bytes of a disk are hashed in memory, where they left and where they came to: a device
  // with a disk has memory that the host reads.
  bool isAtDisk = step.from == Space::Disk || step.target.layout.space == Space::Disk;
  auto check = [&](const std::byte *bytes) {
    device.call([checksum, bytes, count = step.bytes] {
      uint64_t found = checksum->isSet() ? hashOf(bytes, count) : 0;
      if (checksum->isSet() && found != checksum->value())
        throw otherBytes(found, *checksum);
    });
  };
  if (checksum && down && !isAtDisk)
    check(from);
  if (chain.staging.addresses.empty() || !step.staged) {
    device.copy(to, from, step.bytes, &*chain.tries);
  } else {
    StagingBuffers staging{chain.staging.addresses, chain.staging.chunkBytes};
    StagingQueue queue{[this, &chain](void *target, const void *source, uint64_t bytes) {
                         device.copy(target, source, bytes, &*chain.tries);
                       },
                       [this](std::function<void()> function) { device.call(std::move(function)); }};
    if (down)
      stagedToDevice(to, from, step.bytes, staging, toDeviceCopier, queue);
    else
      stagedToHost(to, from, step.bytes, staging, toHostCopier, queue);
  }
  if (checksum && down && isAtDisk)
    check(to);
  if (checksum && !down)
    device.call([checksum, there = isAtDisk ? from : to, bytes = step.bytes] { checksum->set(hashOf(there, bytes)); });
}

TransferEngine::Impl::Edges TransferEngine::Impl::passHost(const std::shared_ptr<Chain> &chain, size_t index,
                                                           const std::byte *read, std::byte *written,
                                                           const Fence &source, const Fence &target,
                                                           const std::string &from,
                                                           const std::shared_ptr<double> &linkSeconds,
                                                           const TransferOptions &options) {
  const TransferStep &step = chain->plan->steps[index];
  bool down = step.queue == Queue::HostToDevice;
  Queue disk = down ? Queue::DiskRead : Queue::DiskWrite;
  chain->tries.emplace(engine.counters(), step.queue, chain->retries.get());
  chain->diskTries.emplace(engine.counters(), disk, chain->retries.get());
  auto linkRecord = traceStep(step, step.queue, from, options), diskRecord = traceStep(step, disk, from, options);

  // Each chunk is two entries, one of each queue; `checks` hashes it where it lies in the buffer.
  auto edge = [&](Queue queue, std::byte *to, const std::byte *at, uint64_t bytes, const Fence &after,
                  std::function<void()> checks) {
    auto begin = std::make_shared<Timestamp>(), end = std::make_shared<Timestamp>();
    bool isLink = !isOfDisk(queue);
    Work work;
    work.label = down ? (isLink ? "copy h2d" : "read") : (isLink ? "copy d2h" : "write");
    work.cost.linkBytes = bytes;
    work.mayBegin = [chain, index] { return chain->mayBegin(index); };
    work.run = [this, chain, to, at, bytes, begin, end, isLink, down, checks = std::move(checks)] {
      device.stamp(begin);
      if (checks && !down)
        device.call(checks);
      device.copy(to, at, bytes, &*(isLink ? chain->tries : chain->diskTries));
      if (checks && down)
        device.call(checks);
      device.stamp(end);
    };
    work.ended = [this, chain, index, queue, bytes, begin, end, isLink, linkSeconds,
                  record = isLink ? linkRecord : diskRecord](const Error *error) {
      if (error)
        chain->fail(index, queue, *error);
      double seconds = begin->isKnown() && end->isKnown() ? end->seconds() - begin->seconds() : 0;
      if (isLink && !chain->target->error())
        countCarried(queue, bytes, seconds);
      if (isLink && linkSeconds)
        *linkSeconds += seconds;
      if (!record)
        return;
      record->begin = record->begin || !begin->isKnown() ? record->begin : begin->seconds();
      record->seconds += seconds;
    };
    return Fence(queue, device.enqueue(queue, after, std::move(work)));
  };

  Edges edges;
  PassingBuffers &buffers = down ? toDeviceBuffers : toDiskBuffers;
  for (uint64_t done = 0, bytes = 0; done < step.bytes; done += bytes) {
    bytes = std::min(passingChunkBytes, step.bytes - done);
    PassingBuffers::Buffer &buffer = buffers.takeTurn();
    std::byte *between = buffer.data;
    std::function<void()> checks;
    if (chain->checksum)
      checks = [chain = chain.get(), between, bytes, down, isLast = done + bytes == step.bytes] {
        TransferChecksum &checksum = *chain->checksum;
        if (down && !checksum.isSet())
          return;
        if (!chain->hash)
          chain->hash.emplace();
        chain->hash->add(between, bytes);
        if (!isLast)
          return;
        if (!down)
          checksum.set(chain->hash->value());
        else if (uint64_t found = chain->hash->value(); found != checksum.value())
          throw otherBytes(found, checksum);
      };
    Fence first = source;
    first.join(buffer.used);
    edges.read = down ? edge(disk, between, read + done, bytes, first, std::move(checks))
                      : edge(step.queue, between, read + done, bytes, first, nullptr);
    Fence second = edges.read;
    second.join(target);
    edges.written = down ? edge(step.queue, written + done, between, bytes, second, nullptr)
                         : edge(disk, written + done, between, bytes, second, std::move(checks));
    buffer.used = edges.written;
  }
  return edges;
}

static std::string_view labelOf(const TransferStep &step) {
  switch (step.kind) {
  case TransferStep::Kind::HostRelayout:
    return "host relayout";
  case TransferStep::Kind::DeviceRelayout:
    return "relayout";
  case TransferStep::Kind::Link:
    break;
  }
  return step.queue == Queue::HostToDevice ? "copy h2d" : "copy d2h";
}

//===----------------------------------------------------------------------===//
// Running a plan
//===----------------------------------------------------------------------===//

/// Zero points that are all zero do not cross the link (rule R3).
static bool zeroPointsIdle(const Tensor &source) {
  const Storage &storage = *source.storage();
  const Device &device = *storage.device();
  if (!device.hasBytes() || !(storage.writes().empty() || device.isDone(storage.writes())))
    return false;
  LayoutParts parts = source.desc().parts();
  std::vector<float> zeroPoints(size_t(parts.rows));
  std::memcpy(zeroPoints.data(), source.bytes() + parts.zeroPoints, zeroPoints.size() * sizeof(float));
  return std::ranges::all_of(zeroPoints, [](float zeroPoint) { return zeroPoint == 0; });
}

std::shared_ptr<CopyRecord> TransferEngine::Impl::traceStep(const TransferStep &step, Queue queue,
                                                            const std::string &from, const TransferOptions &options) {
  if (!engine.tracesCopies())
    return nullptr;
  auto record = std::make_shared<CopyRecord>();
  record->from = from;
  record->to = step.target.str();
  record->hop = step.hop();
  record->bytes = step.bytes;
  record->queue = segue::name(queue);
  record->consumer = options.consumer;
  engine.addToTrace(record);
  return record;
}

void TransferEngine::Impl::count(const TransferPlan &plan) {
  TransferCounters &counters = engine.counters();
  counters.copies += 1;
  auto add = [](TransferCounters::Sum &sum, uint64_t bytes) {
    if (bytes)
      sum += bytes;
  };
  add(counters.h2dBytes, plan.h2dBytes);
  add(counters.d2hBytes, plan.d2hBytes);
  add(counters.d2dBytes, plan.d2dBytes);
  add(counters.hostBytes, plan.hostBytes);
  add(counters.diskReadBytes, plan.diskReadBytes);
  add(counters.diskWriteBytes, plan.diskWriteBytes);
  add(counters.bounces, plan.bounces);
}

bool TransferEngine::Impl::run(std::shared_ptr<const TransferPlan> plan, const Tensor &source, const Tensor &target,
                               const TransferOptions &options) {
  if (plan->steps.empty())
    return true;
  TransferCounters &counters = engine.counters();
  if (device.runsInline() && device.hasUnifiedMemory()) {
    // All but what is on its way to other ranks, or from them, is done.
    device.wait(source.storage()->writes());
    device.wait(target.storage()->uses());
    if (const Error *error = source.storage()->failure())
      throw error->within(whatFor(options.consumer, *plan));
    const TransferStep &step = plan->steps.front();
    auto record = traceStep(step, step.queue, source.desc().str(), options);
    double begin = device.seconds();
    try {
      device.relayout(*step.relayout, source.bytes(), target.bytes());
    } catch (const Error &error) {
      ++counters.failures;
      throw error.within(whatFor(options.consumer, *plan));
    }
    double seconds = device.seconds() - begin;
    counters.alignNanoseconds += uint64_t(seconds * 1e9);
    if (record)
      record->begin = begin, record->seconds = seconds;
    count(*plan);
    return true;
  }
  if (plan->withoutZeroPoints && zeroPointsIdle(source))
    plan = plan->withoutZeroPoints;
  size_t last = plan->steps.size() - 1;

  // Memory: of what may be missing, everything before anything is queued.
  std::array<PassingMemory, 2> between;
  Staging staging;
  bool pageable = false;
  const TransferStep *link = nullptr;
  for (size_t i = 0; i <= last; ++i) {
    const TransferStep &step = plan->steps[i];
    if (i != last) {
      Space space = step.target.layout.space;
      if (space == Space::HostPinned)
        between[i] = PassingMemory::tryTake(device, space, step.bytes, stagingOwner);
      if (!between[i].data()) {
        pageable |= space == Space::HostPinned;
        between[i] =
            PassingMemory::take(device, space == Space::HostPinned ? Space::Host : space, step.bytes, stagingOwner);
      }
    }
    if (step.kind == TransferStep::Kind::Link) {
      link = &step;
      if (step.staged)
        staging = takeStaging(step);
      pageable |= step.staged && staging.addresses.empty();
    }
  }
  std::optional<uint64_t> token;
  bool gated = link && gate;
  if (gated && !options.isPlanned && !(token = acquire(*link, options.priority)))
    return false;
  count(*plan);
  if (pageable)
    ++counters.pageableCopies;

  Storage &from = *source.storage(), &into = *target.storage();
  auto chain = std::make_shared<Chain>(Chain{.impl = *this,
                                             .plan = plan,
                                             .source = from.writes().empty() ? nullptr : from.outcome(),
                                             .target = into.outcome(),
                                             .consumer = options.consumer,
                                             .checksum = options.checksum,
                                             .retries = options.retries,
                                             .staging = {{}, staging.addresses, staging.chunkBytes}});
  std::shared_ptr<double> linkSeconds = gated ? std::make_shared<double>(0) : nullptr;
  std::string now = engine.tracesCopies() ? source.desc().str() : std::string();
  const std::byte *read = source.bytes();
  Fence before = from.writes();
  for (size_t i = 0; i <= last; ++i) {
    const TransferStep &step = plan->steps[i];
    std::byte *written = i == last ? target.bytes() : between[i].data();
    Fence after = before;
    after.join(i == last ? into.uses() : between[i].used());
    bool isLink = step.kind == TransferStep::Kind::Link;
    if (isLink)
      for (const PassingMemory &buffer : staging.memory)
        after.join(buffer.used());
    if (step.passesHost) {
      Edges edges = passHost(chain, i, read, written, before, i == last ? into.uses() : between[i].used(), now,
                             linkSeconds, options);
      i == 0 ? from.addRead(edges.read) : between[i - 1].addUse(edges.read);
      i == last ? into.addWrite(edges.written) : between[i].addUse(edges.written);
      if (gated) {
        const Fence &passed = step.queue == Queue::HostToDevice ? edges.written : edges.read;
        inFlight.push_back({token, step.queue, step.bytes, passed, linkSeconds, chain->target});
      }
      now = engine.tracesCopies() ? step.target.str() : std::string();
      before = edges.written;
      read = written;
      continue;
    }
    auto record = traceStep(step, step.queue, now, options);
    now = record ? record->to : std::string();

    Work work;
    work.label = labelOf(step);
    switch (step.kind) {
    case TransferStep::Kind::Link:
      work.cost.linkBytes = step.bytes;
      if (step.staged) {
        work.cost.hostBytes = step.bytes;
        work.cost.chunkBytes = staging.addresses.size() < 2 ? 0 : staging.chunkBytes;
      }
      break;
    case TransferStep::Kind::HostRelayout:
      work.cost.hostBytes = step.bytes;
      break;
    case TransferStep::Kind::DeviceRelayout:
      work.cost.memoryBytes = 2 * step.bytes; // as many are read, about
      break;
    }
    auto begin = std::make_shared<Timestamp>(), end = std::make_shared<Timestamp>();
    if (isLink)
      chain->tries.emplace(counters, step.queue, options.retries.get());
    work.mayBegin = [chain, i] { return chain->mayBegin(i); };
    work.run = [this, chain, i, read, written, begin, end, isLink] {
      const TransferStep &step = chain->plan->steps[i];
      device.stamp(begin);
      if (isLink)
        giveLink(step, *chain, written, read);
      else
        device.relayout(*step.relayout, read, written);
      device.stamp(end);
    };
    work.ended = [this, chain, i, begin, end, record, linkSeconds, isLink](const Error *error) {
      const TransferStep &step = chain->plan->steps[i];
      if (isLink && step.staged && !chain->staging.addresses.empty())
        (step.queue == Queue::HostToDevice ? toDeviceCopier : toHostCopier).waitAll();
      if (error)
        chain->fail(i, *error);
      double seconds = begin->isKnown() && end->isKnown() ? end->seconds() - begin->seconds() : 0;
      if (!isLink)
        engine.counters().alignNanoseconds += uint64_t(seconds * 1e9);
      else if (!chain->target->error())
        countCarried(step.queue, step.bytes, seconds);
      if (isLink && linkSeconds)
        *linkSeconds = seconds;
      if (record)
        record->begin = begin->isKnown() ? begin->seconds() : 0, record->seconds = seconds;
    };
    Fence fence(step.queue, device.enqueue(step.queue, after, std::move(work)));

    if (i == 0)
      from.addRead(fence);
    else
      between[i - 1].addUse(fence);
    if (i == last)
      into.addWrite(fence);
    else
      between[i].addUse(fence);
    if (isLink) {
      for (PassingMemory &buffer : staging.memory)
        buffer.addUse(fence);
      if (gated)
        inFlight.push_back({token, step.queue, step.bytes, fence, linkSeconds, chain->target});
    }
    before = fence;
    read = written;
  }
  if (pageable)
    device.wait(before);
  return true;
}

//===----------------------------------------------------------------------===//
// Small writes
//===----------------------------------------------------------------------===//

bool TransferEngine::Impl::isHostReadable(const Tensor &tensor) const {
  return isHostSpace(tensor.desc().layout.space) || (device.hasUnifiedMemory() && device.runsInline());
}

void TransferEngine::fillZero(const Tensor &target) {
  Storage &storage = *target.storage();
  uint64_t bytes = target.desc().spanBytes();
  if (bytes == 0)
    return;
  if (impl_->isHostReadable(target)) {
    if (!storage.uses().empty())
      device_.wait(storage.uses());
    if (storage.space() == Space::Disk) {
      std::vector<std::byte> zeros(std::min<uint64_t>(bytes, 4 << 20));
      Impl::Tries tries(counters_, Queue::DiskWrite, nullptr);
      for (uint64_t done = 0; done < bytes; done += zeros.size())
        device_.copy(target.bytes() + done, zeros.data(), std::min<uint64_t>(zeros.size(), bytes - done), &tries);
    } else if (device_.hasBytes()) {
      std::memset(target.bytes(), 0, bytes);
    }
    return;
  }
  Work work;
  work.label = "zero";
  work.cost.memoryBytes = bytes;
  work.run = [&device = device_, address = static_cast<void *>(target.bytes()), bytes] {
    device.engine().fill(address, bytes, /*pattern=*/0, /*patternBytes=*/1);
  };
  storage.addWrite(Fence(Queue::Compute, device_.enqueue(Queue::Compute, storage.uses(), std::move(work))));
}

void TransferEngine::writeScalar(const Tensor &target, const void *value, uint64_t bytes) {
  Storage &storage = *target.storage();
  if (impl_->isHostReadable(target)) {
    if (!storage.uses().empty())
      device_.wait(storage.uses());
    if (device_.hasBytes())
      std::memcpy(target.bytes(), value, bytes);
    return;
  }
  // This is no copy: on the link it would wait for all that is brought before it.
  Work work;
  work.label = "scalar";
  work.cost.memoryBytes = bytes;
  uint64_t pattern = 0;
  std::memcpy(&pattern, value, bytes);
  work.run = [&device = device_, address = static_cast<void *>(target.bytes()), pattern, bytes] {
    device.engine().fill(address, bytes, pattern, uint32_t(bytes));
  };
  storage.addWrite(Fence(Queue::Compute, device_.enqueue(Queue::Compute, storage.uses(), std::move(work))));
}

} // namespace segue::inline runtime
