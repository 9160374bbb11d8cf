//===- ActivationStagehand.h - which activations leave ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Decides for every tensor that forward saves whether it stays, is computed
// again, or leaves for host memory, and when those that left come back. A
// policy: events in, decisions out; it copies nothing, allocates nothing and
// knows no time. Whoever carries it out tells it when copies have ended.
//
//   stagehand.stepBegin(step);
//   SaveDecision decision = stagehand.save({.id = "h.0.1", .bytes = n, .usedBytes = used});
//   stagehand.transferDone("h.0.1", used);                 // the spill has ended
//   for (id : stagehand.backwardBegin(order, used)) ...    // restores to start
//   NeedDecision need = stagehand.need("h.0.1", used);
//   stagehand.release("h.0.1", used);
//   for (growth : stagehand.stepEnd()) ...                 // slabs to add
//   Json record = stagehand.telemetry();
//
// The usual life of a record: KEPT until released, or SPILLING → SPILLED →
// RESTORING → RESTORED until released. A call that throws changes nothing. All
// on the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_ACTIVATIONSTAGEHAND_H
#define SEGUE_RUNTIME_SERVICES_ACTIVATIONSTAGEHAND_H

#include "segue/runtime/Services/ActivationStagehandConfig.h"
#include "segue/runtime/Services/HostBufferBook.h"
#include <deque>
#include <map>
#include <string>
#include <unordered_map>

namespace segue::inline runtime {

struct ActivationRecord;

/// A tensor that forward saves.
struct SaveEvent {
  std::string id;
  int64_t bytes = 0;
  /// The bytes that are allocated on the device now.
  int64_t usedBytes = 0;
  /// True for a parameter, or a tensor that is otherwise held by somebody else.
  bool notOwned = false;
  /// The storage it lies in; empty if it has one of its own, which is then called like the record.
  std::string storage;
  bool recomputable = false;
  /// True if the program has decided to compute it again.
  bool planRecompute = false;
};

struct SaveDecision {
  enum class Kind { Keep, Share, Recompute, Spill };
  Kind kind = Kind::Keep;
  /// The reason why a Keep keeps: not_owned, not_pressured, too_small, d2h_suppressed,
  /// no_host_memory.
  std::string_view reason;
  /// The memory that a Spill copies to. If it is unpinned, the copy blocks and has ended when the save returns.
  HostBuffer buffer;
  /// Records whose copies must be waited for before this one starts, in order.
  std::vector<std::string> finalized;
};

struct NeedDecision {
  /// A Rescue means that the copy out is under way and the device's bytes are whole.
  enum class Kind { Use, Wait, Restore, Rescue, Recompute };
  Kind kind = Kind::Use;
  /// The records whose copies in must be waited for before this one starts.
  std::vector<std::string> finalized;
  /// The restores to start now, in order.
  std::vector<std::string> issued;
};

struct TransferDecision {
  /// The decision after a failure. Abort means that the step cannot go on: TRANSFER_FAILED.
  enum class Kind { None, Retry, Keep, Recompute, Abort };
  Kind kind = Kind::None;
  std::vector<std::string> issued;
};

/// The hints of Conductor that concern activations.
struct ActivationHints {
  int64_t maxInflightD2h = INT32_MAX, maxInflightH2d = INT32_MAX;
  bool suppressSpeculative = false;
};

class ActivationStagehand {
public:
  explicit ActivationStagehand(ActivationStagehandConfig config);
  ~ActivationStagehand();
  ActivationStagehand(ActivationStagehand &&) noexcept;

  const ActivationStagehandConfig &config() const { return config_; }
  const HostBufferBook &hostBuffers() const { return buffers_; }

  void stepBegin(int64_t step);
  void setHints(const ActivationHints &hints) { hints_ = hints; }
  /// Sets watermarks in the place of those of the config, from the next save or restore on.
  /// Throws InvalidArgument unless high > low >= 0.
  void setWatermarks(int64_t highBytes, int64_t lowBytes);

  /// Decides what becomes of a saved tensor. Throws StateTransition for an id that is live
  /// already (unless it shares its storage) and InvalidArgument for negative bytes.
  SaveDecision save(const SaveEvent &event);

  /// Notes that the copy of this record has ended, which is no news if it was waited for
  /// already. Throws NameUnknown for an id that was never saved.
  TransferDecision transferDone(std::string_view id, std::optional<int64_t> usedBytes = {});
  TransferDecision transferFailed(std::string_view id, std::optional<int64_t> usedBytes = {});
  /// Notes that the bytes which came back are not those that left. Returns true if the
  /// record is to be computed again, false if the step aborts with CHECKSUM_MISMATCH.
  bool checksumFailed(std::string_view id);

  /// Begins backward. `order` lists the records in the order in which backward needs them.
  /// Returns restores to start.
  std::vector<std::string> backwardBegin(std::span<const std::string> order, int64_t usedBytes);
  /// Says how a record gets to its use. Throws StateTransition for a released record.
  NeedDecision need(std::string_view id, int64_t usedBytes);
  std::vector<std::string> release(std::string_view id, int64_t usedBytes);

  /// Makes room when the device has no memory. Returns restored records that nobody has
  /// needed yet and that are to be dropped, farthest need first, until `bytes` are covered.
  /// Their host copies are still valid.
  std::vector<std::string> dropRestored(int64_t bytes);

  /// Adds milliseconds in which compute stood still, as the caller measured them.
  void addStall(double milliseconds) { stallMs_ += milliseconds; }

  /// Ends an aborted step: releases what is left.
  void abortStep();
  /// Ends the step, and returns the slabs to add to the pool before the next one.
  std::vector<HostBufferBook::Growth> stepEnd();
  /// Returns the record of the step that ended or was aborted last.
  Json telemetry() const;
  /// Adds `count` slabs of a class that the pool has got before the first step, as its
  /// rehearsal has shown.
  void poolGrown(uint32_t poolClass, int64_t count);
  /// Notes in the record that there was no memory for `count` of the slabs of a growth.
  void growthFailed(uint32_t poolClass, int64_t count);

private:
  enum class State { Kept, Spilling, Spilled, Restoring, Restored, Recompute, Released };
  struct Record;

  Record &find(std::string_view id);
  Record &findLive(std::string_view id);
  bool pressured(int64_t usedBytes);
  int64_t d2hCap() const;
  int64_t h2dCap() const;
  std::vector<std::string> finalizeSpillsTo(int64_t inflight);
  void finalizeSpill(Record &record);
  void finalizeRestore(Record &record);
  void dropHostCopy(Record &record);
  std::vector<std::string> planRestores();
  void see(std::optional<int64_t> usedBytes);
  void forgetStep();
  Json makeRecord(bool aborted) const;

  ActivationStagehandConfig config_;
  int64_t highBytes_, lowBytes_;
  HostBufferBook buffers_;
  ActivationHints hints_;

  int64_t step_ = 0;
  bool pressured_ = false;
  bool inBackward_ = false;
  int64_t usedBytes_ = 0, peakUsedBytes_ = 0;
  double stallMs_ = 0;
  int64_t poolGrownSlabs_ = 0;
  std::unique_ptr<ActivationRecord> counts_;
  std::shared_ptr<const Json> lastRecord_;
  std::deque<Record> records_;
  /// Every id of the step, and the live records by storage.
  std::unordered_map<std::string, Record *> byId_, byStorage_;
  /// Copies under way, oldest first.
  std::deque<Record *> spills_, restores_;
  /// Records that are on their way back, or are back, and have not been needed yet.
  std::deque<Record *> ahead_;
  std::vector<Record *> order_;
  /// Index into order_: every record before it has been needed or released.
  size_t position_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_ACTIVATIONSTAGEHAND_H
