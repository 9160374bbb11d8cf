//===- ActivationStagehand.cpp - which activations leave ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ActivationStagehand.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Services/ActivationRecord.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

struct ActivationStagehand::Record {
  std::string id, storage;
  int64_t bytes = 0;
  /// Saves that share it and have not been released.
  int64_t uses = 1;
  bool recomputable = false;
  State state = State::Kept;
  std::optional<HostBuffer> buffer;
  /// A copy of it is in spills_ or restores_.
  bool inFlight = false;
  /// True if backward has asked for it.
  bool needed = false;
  int64_t attempts = 0;
};

template <typename Queue, typename Record> static bool takeOut(Queue &queue, Record &record) {
  auto it = std::find(queue.begin(), queue.end(), &record);
  if (it == queue.end())
    return false;
  queue.erase(it);
  return true;
}

static std::vector<int64_t> inBytes(const std::vector<int64_t> &mib) {
  std::vector<int64_t> bytes;
  for (int64_t size : mib)
    bytes.push_back(size << 20);
  return bytes;
}

ActivationStagehand::ActivationStagehand(ActivationStagehandConfig config)
    : config_(std::move(config)), highBytes_(toBytes(config_.highWatermarkMiB)),
      lowBytes_(toBytes(config_.lowWatermarkMiB)),
      buffers_(inBytes(config_.poolClassesMiB), config_.slabsPerClass, toBytes(config_.unpinnedMaxMiB)),
      counts_(std::make_unique<ActivationRecord>()) {}
ActivationStagehand::~ActivationStagehand() = default;
ActivationStagehand::ActivationStagehand(ActivationStagehand &&) noexcept = default;

//===----------------------------------------------------------------------===//
// Records
//===----------------------------------------------------------------------===//

ActivationStagehand::Record &ActivationStagehand::find(std::string_view id) {
  auto it = byId_.find(std::string(id));
  if (it == byId_.end())
    throw Error(ErrorCode::NameUnknown,
                "activation stagehand: \"" + std::string(id) + "\" was not saved in step " + std::to_string(step_));
  return *it->second;
}

ActivationStagehand::Record &ActivationStagehand::findLive(std::string_view id) {
  Record &record = find(id);
  if (record.state == State::Released)
    throw Error(ErrorCode::StateTransition,
                "activation stagehand: \"" + std::string(id) + "\" is used after its release");
  return record;
}

void ActivationStagehand::see(std::optional<int64_t> usedBytes) {
  if (!usedBytes)
    return;
  usedBytes_ = *usedBytes;
  peakUsedBytes_ = std::max(peakUsedBytes_, usedBytes_);
}

void ActivationStagehand::dropHostCopy(Record &record) {
  if (record.buffer)
    buffers_.give(*record.buffer);
  record.buffer.reset();
}

/// The copy out is known complete: the device's buffer can go.
void ActivationStagehand::finalizeSpill(Record &record) {
  record.inFlight = false;
  if (record.state == State::Spilling)
    record.state = State::Spilled;
  else // rescued or released meanwhile: nobody wants the host's copy
    dropHostCopy(record);
}

void ActivationStagehand::finalizeRestore(Record &record) {
  record.inFlight = false;
  if (record.state == State::Restoring)
    record.state = State::Restored;
  else if (record.state == State::Released)
    dropHostCopy(record);
}

/// Waits for the oldest spills until fewer than `cap` are under way.
std::vector<std::string> ActivationStagehand::finalizeSpillsTo(int64_t cap) {
  std::vector<std::string> finalized;
  while (int64_t(spills_.size()) >= cap) {
    Record &oldest = *spills_.front();
    spills_.pop_front();
    finalizeSpill(oldest);
    finalized.push_back(oldest.id);
    ++counts_->finalizeWaits;
  }
  return finalized;
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

void ActivationStagehand::stepBegin(int64_t step) {
  forgetStep();
  step_ = step;
}

void ActivationStagehand::setWatermarks(int64_t highBytes, int64_t lowBytes) {
  if (lowBytes < 0 || highBytes <= lowBytes)
    throw Error(ErrorCode::InvalidArgument, "activation stagehand: watermarks of " + std::to_string(highBytes) +
                                                " and " + std::to_string(lowBytes) +
                                                " bytes; the high one is above the low one, which is at least 0");
  highBytes_ = highBytes;
  lowBytes_ = lowBytes;
}

bool ActivationStagehand::pressured(int64_t usedBytes) {
  if (!pressured_ && usedBytes >= highBytes_)
    pressured_ = true;
  else if (pressured_ && usedBytes < lowBytes_)
    pressured_ = false;
  return pressured_;
}

int64_t ActivationStagehand::d2hCap() const { return std::min(config_.maxInflightD2h, hints_.maxInflightD2h); }
int64_t ActivationStagehand::h2dCap() const { return std::min(config_.maxInflightH2d, hints_.maxInflightH2d); }

SaveDecision ActivationStagehand::save(const SaveEvent &event) {
  using Kind = SaveDecision::Kind;
  if (event.bytes < 0)
    throw Error(ErrorCode::InvalidArgument,
                "activation stagehand: \"" + event.id + "\" has " + std::to_string(event.bytes) + " bytes");
  const std::string &storage = event.storage.empty() ? event.id : event.storage;
  auto sharing = byStorage_.find(storage);
  auto sameId = byId_.find(event.id);
  if (!event.notOwned && sameId != byId_.end() && sameId->second->state != State::Released &&
      (sharing == byStorage_.end() || sharing->second != sameId->second))
    throw Error(ErrorCode::StateTransition,
                "activation stagehand: \"" + event.id + "\" is saved again while it is live in another storage");
  see(event.usedBytes);

  SaveDecision decision;
  if (!event.notOwned && sharing != byStorage_.end()) {
    ++sharing->second->uses;
    byId_[event.id] = sharing->second;
    ++counts_->shared;
    decision.kind = Kind::Share;
    return decision;
  }

  Record &record = records_.emplace_back();
  record.id = event.id;
  record.storage = storage;
  record.bytes = event.bytes;
  record.recomputable = event.recomputable || event.planRecompute;
  byId_[event.id] = &record;
  if (!event.notOwned)
    byStorage_[storage] = &record;
  ++counts_->saved;

  auto keep = [&](std::string_view reason) {
    decision.reason = reason;
    ++counts_->kept;
    ++counts_->keptReasons[reason];
    return decision;
  };
  auto recompute = [&] {
    record.state = State::Recompute;
    ++counts_->recomputed;
    decision.kind = Kind::Recompute;
    return decision;
  };
  // The order of the checks is the contract: the first that applies decides.
  if (event.notOwned)
    return keep("not_owned");
  if (event.planRecompute)
    return recompute();
  if (!pressured(event.usedBytes))
    return keep("not_pressured");
  if (event.bytes < config_.minSpillBytes)
    return keep("too_small");
  if (d2hCap() <= 0)
    return keep("d2h_suppressed");
  if (event.recomputable && event.bytes < config_.recomputeThresholdBytes)
    return recompute();
  std::optional<HostBuffer> buffer = buffers_.take(event.bytes);
  if (!buffer)
    return keep("no_host_memory");

  decision.kind = Kind::Spill;
  decision.buffer = *buffer;
  decision.finalized = finalizeSpillsTo(d2hCap());
  record.buffer = buffer;
  ++counts_->spilled;
  counts_->spillBytes += event.bytes;
  if (buffer->poolClass) {
    ++counts_->poolHits;
    record.state = State::Spilling;
    record.inFlight = true;
    spills_.push_back(&record);
  } else {
    ++counts_->poolMisses;
    record.state = State::Spilled;
  }
  return decision;
}

//===----------------------------------------------------------------------===//
// Copies that end
//===----------------------------------------------------------------------===//

TransferDecision ActivationStagehand::transferDone(std::string_view id, std::optional<int64_t> usedBytes) {
  Record &record = find(id);
  see(usedBytes);
  record.attempts = 0;
  if (takeOut(spills_, record))
    finalizeSpill(record);
  else if (takeOut(restores_, record))
    finalizeRestore(record);
  return {.issued = planRestores()};
}

TransferDecision ActivationStagehand::transferFailed(std::string_view id, std::optional<int64_t> usedBytes) {
  using Kind = TransferDecision::Kind;
  Record &record = find(id);
  bool spilling = std::find(spills_.begin(), spills_.end(), &record) != spills_.end();
  bool restoring = record.state == State::Restoring || record.state == State::Restored;
  // The record's readers were queued behind the copy, and it has been freed for good since.
  bool released = record.state == State::Released && record.needed;
  if (!spilling && !restoring && !released && record.state != State::Spilled)
    throw Error(ErrorCode::StateTransition,
                "activation stagehand: no copy of \"" + std::string(id) + "\" is under way that could fail");
  see(usedBytes);
  TransferDecision decision;
  bool wanted = released ? !spilling : record.state != State::Released && !(spilling && record.state == State::Kept);
  if (wanted && record.attempts < config_.transferRetries) {
    ++record.attempts;
    ++counts_->retries;
    decision.kind = Kind::Retry;
    return decision;
  }
  record.attempts = 0;
  record.inFlight = false;
  takeOut(spills_, record);
  takeOut(restores_, record);
  takeOut(ahead_, record);
  if (released && !spilling) {
    decision.kind = Kind::Abort;
    return decision;
  }
  if (spilling || record.state == State::Spilled) {
    // The device's bytes are whole: nothing is lost. (A blocking copy out
    // reports its failure within the save.)
    if (record.state != State::Released)
      record.state = State::Kept;
    dropHostCopy(record);
    decision.kind = Kind::Keep;
  } else if (record.recomputable) {
    record.state = State::Recompute;
    dropHostCopy(record);
    decision.kind = Kind::Recompute;
  } else {
    // The host's copy stays: it is the last there is.
    record.state = State::Spilled;
    decision.kind = Kind::Abort;
    return decision;
  }
  decision.issued = planRestores();
  return decision;
}

bool ActivationStagehand::checksumFailed(std::string_view id) {
  Record &record = findLive(id);
  if (!record.recomputable)
    return false;
  takeOut(restores_, record);
  takeOut(ahead_, record);
  record.inFlight = false;
  record.state = State::Recompute;
  dropHostCopy(record);
  ++counts_->checksumRecovered;
  return true;
}

//===----------------------------------------------------------------------===//
// Backward
//===----------------------------------------------------------------------===//

std::vector<std::string> ActivationStagehand::backwardBegin(std::span<const std::string> order, int64_t usedBytes) {
  std::vector<Record *> records;
  for (const std::string &id : order)
    records.push_back(&find(id));
  see(usedBytes);
  order_ = std::move(records);
  position_ = 0;
  inBackward_ = true;
  return planRestores();
}

/// The restores that may start now: strictly in the order of needs, so that
/// the earliest need is never starved by one that happens to fit.
std::vector<std::string> ActivationStagehand::planRestores() {
  std::vector<std::string> issued;
  if (!inBackward_ || !config_.predictiveRestore)
    return issued;
  while (position_ < order_.size() && (order_[position_]->needed || order_[position_]->state == State::Released))
    ++position_;
  int64_t used = usedBytes_;
  for (size_t i = position_; i < order_.size(); ++i) {
    Record &record = *order_[i];
    if (record.state != State::Spilled)
      continue;
    if (int64_t(ahead_.size()) >= config_.restoreWindow || int64_t(restores_.size()) >= h2dCap() ||
        used + record.bytes >= highBytes_ || (hints_.suppressSpeculative && !ahead_.empty()))
      break;
    record.state = State::Restoring;
    record.attempts = 0;
    record.inFlight = true;
    restores_.push_back(&record);
    used += record.bytes;
    ahead_.push_back(&record);
    ++counts_->restored;
    counts_->restoreBytes += record.bytes;
    issued.push_back(record.id);
  }
  return issued;
}

NeedDecision ActivationStagehand::need(std::string_view id, int64_t usedBytes) {
  using Kind = NeedDecision::Kind;
  Record &record = findLive(id);
  see(usedBytes);
  NeedDecision decision;
  switch (record.state) {
  case State::Kept:
    break;
  case State::Restored:
    counts_->prefetchHits += !record.needed;
    break;
  case State::Restoring:
    decision.kind = Kind::Wait;
    ++counts_->prefetchLate;
    ++counts_->stalls;
    takeOut(restores_, record);
    finalizeRestore(record);
    break;
  case State::Spilled:
    decision.kind = Kind::Restore;
    while (!restores_.empty() && int64_t(restores_.size()) >= std::max<int64_t>(h2dCap(), 1)) {
      Record &oldest = *restores_.front();
      restores_.pop_front();
      finalizeRestore(oldest);
      decision.finalized.push_back(oldest.id);
    }
    record.state = State::Restored;
    record.attempts = 0;
    ++counts_->restored;
    counts_->restoreBytes += record.bytes;
    ++counts_->stalls;
    break;
  case State::Spilling:
    // The slab goes back when the copy has ended.
    decision.kind = Kind::Rescue;
    record.state = State::Kept;
    ++counts_->rescued;
    break;
  case State::Recompute:
    decision.kind = Kind::Recompute;
    break;
  case State::Released:
    break; // refused above
  }
  record.needed = true;
  takeOut(ahead_, record);
  decision.issued = planRestores();
  return decision;
}

std::vector<std::string> ActivationStagehand::release(std::string_view id, int64_t usedBytes) {
  Record &record = findLive(id);
  see(usedBytes);
  if (--record.uses == 0) {
    record.state = State::Released;
    if (auto it = byStorage_.find(record.storage); it != byStorage_.end() && it->second == &record)
      byStorage_.erase(it);
    takeOut(ahead_, record);
    if (!record.inFlight)
      dropHostCopy(record);
  }
  return planRestores();
}

std::vector<std::string> ActivationStagehand::dropRestored(int64_t bytes) {
  std::vector<std::string> dropped;
  for (size_t i = order_.size(); i-- > 0 && bytes > 0;) {
    Record &record = *order_[i];
    if (record.state != State::Restored || record.needed)
      continue;
    record.state = State::Spilled;
    takeOut(ahead_, record);
    bytes -= record.bytes;
    dropped.push_back(record.id);
  }
  return dropped;
}

//===----------------------------------------------------------------------===//
// The end of a step
//===----------------------------------------------------------------------===//

void ActivationStagehand::forgetStep() {
  for (Record &record : records_)
    dropHostCopy(record);
  records_.clear();
  byId_.clear();
  byStorage_.clear();
  spills_.clear();
  restores_.clear();
  ahead_.clear();
  order_.clear();
  position_ = 0;
  inBackward_ = pressured_ = false;
  usedBytes_ = peakUsedBytes_ = 0;
  stallMs_ = 0;
  poolGrownSlabs_ = 0;
  *counts_ = {};
  buffers_.startPeaks();
}

Json ActivationStagehand::makeRecord(bool aborted) const {
  ActivationRecord record = *counts_;
  record.step = step_;
  record.stallMs = stallMs_;
  record.peakUsedBytes = peakUsedBytes_;
  record.unpinnedPeakBytes = buffers_.unpinnedPeakBytes();
  record.poolBytes = buffers_.poolBytes();
  record.poolGrownSlabs = poolGrownSlabs_;
  record.aborted = aborted;
  return record.json();
}

void ActivationStagehand::abortStep() {
  lastRecord_ = std::make_shared<const Json>(makeRecord(true));
  forgetStep();
}

std::vector<HostBufferBook::Growth> ActivationStagehand::stepEnd() {
  for (const Record &record : records_)
    counts_->leaked += record.state != State::Released;
  std::vector<HostBufferBook::Growth> growth;
  if (config_.poolGrowth)
    growth = buffers_.grow(toBytes(config_.pinnedPoolMaxMiB));
  for (const HostBufferBook::Growth &each : growth)
    poolGrownSlabs_ += each.slabs;
  lastRecord_ = std::make_shared<const Json>(makeRecord(false));
  forgetStep();
  return growth;
}

Json ActivationStagehand::telemetry() const { return lastRecord_ ? *lastRecord_ : Json::object(); }

void ActivationStagehand::poolGrown(uint32_t poolClass, int64_t count) { buffers_.add(poolClass, count); }
void ActivationStagehand::growthFailed(uint32_t poolClass, int64_t count) {
  buffers_.shrink(poolClass, count);
  poolGrownSlabs_ -= count;
  if (!lastRecord_)
    return;
  Json record = *lastRecord_;
  record["pool_bytes"] = buffers_.poolBytes();
  record["pool_grown_slabs"] = poolGrownSlabs_;
  lastRecord_ = std::make_shared<const Json>(std::move(record));
}

} // namespace segue::inline runtime
