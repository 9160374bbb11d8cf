//===- Recording.h - rows that are given by one call ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the commands of a row gave, as a graph of the driver. Its launch costs the host what
// a launch of one kernel costs, and its kernels follow each other in half the time
// (docs/cuda.md#graphs).
//
// A graph writes to the words that its kernels were given for faults. So it is not under
// way twice while it has some, and one whose words tell a fault is not used again: whose
// run it was could not be said.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_RECORDING_H
#define SEGUE_LIB_CUDA_RECORDING_H

#include "Streams.h"
#include <memory>
#include <unordered_map>
#include <utility>

namespace segue::inline runtime::cuda {

/// A recorded row. Entries with it keep it until they have ended.
class Recording : public std::enable_shared_from_this<Recording> {
public:
  /// A launch of it, as long as somebody has a handle.
  class Run;

  /// `size` is the number of entries of the row.
  Recording(const Context &context, size_t size) : context_(context), given_(size) {}
  ~Recording();
  Recording(const Recording &) = delete;

  /// Keeps what is to be settled after each run, of the entry at `place`. Called while it is recorded.
  void keep(size_t place, std::unique_ptr<Given> given);
  /// Counts each launch in `counter`, once more if it is called again. Called while it is recorded.
  void count(std::atomic<uint64_t> &counter) { counters_.push_back(&counter); }
  /// Makes what can be launched. False if the driver makes none of it.
  bool make(CUgraph graph);

  /// Returns false while a run would write to words that nobody has read yet.
  bool isFree() const { return !hasWords_ || !isUnderWay_.load(std::memory_order_acquire); }
  /// Returns true once a run has failed.
  bool isSpoiled() const { return isSpoiled_.load(std::memory_order_acquire); }

  void launch(CUstream stream);
  /// Returns the run that was launched, for its entries.
  std::shared_ptr<Run> begun();
  /// Returns what stands for the run in the entry at `place`.
  std::unique_ptr<Given> givenOf(size_t place, std::shared_ptr<Run> run);

private:
  class Replayed;

  const Context &context_;
  CUgraphExec graph_ = nullptr;
  /// By the place of the entry.
  std::vector<std::vector<std::unique_ptr<Given>>> given_;
  std::vector<std::atomic<uint64_t> *> counters_;
  bool hasWords_ = false;
  std::atomic<bool> isUnderWay_{false}, isSpoiled_{false};
};

/// The commands of a row and all that they work on.
class RowKey {
public:
  void add(const WorkCommand &command);
  size_t commands() const { return commands_; }
  uint64_t hash() const;
  bool operator==(const RowKey &) const = default;

private:
  std::vector<uint64_t> words_;
  size_t commands_ = 0;
};

/// The rows that a device was given lately, and recordings of those that came again. Who
/// gives to the compute queue calls.
class Recordings {
public:
  /// Returns a recording that may be launched now, and no null pointer but where there is
  /// none; and whether one is to be made.
  std::pair<std::shared_ptr<Recording>, bool> find(const RowKey &key);
  /// Keeps what was made for the row that find() was asked for last. Null if none can be made: it is not tried again.
  void keep(const RowKey &key, std::shared_ptr<Recording> recording);
  void clear() { rows_.clear(); }

private:
  /// The most rows; a step of a deep model has hundreds.
  static constexpr size_t mostRows = 1024;
  /// The most recordings of one row: one runs while the other is queued.
  static constexpr size_t mostAlike = 2;

  struct Row {
    RowKey key;
    std::vector<std::shared_ptr<Recording>> recordings;
    bool canBeRecorded = true;
    uint64_t lastUse = 0;
  };
  std::unordered_map<uint64_t, Row> rows_;
  uint64_t uses_ = 0;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_RECORDING_H
