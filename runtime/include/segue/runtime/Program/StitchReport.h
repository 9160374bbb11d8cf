//===- StitchReport.h - what the seams between programs cost ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An edge joins an output of one program, or the world outside, to an input of
// another. A device keeps one report over all submits: per edge what was taken
// as it lay, converted or found in the cache of converted parameters, from which
// layout to which, and where in the source the consumer reads it.
//
//   StitchReport &report = stitchReport(*device);
//   for (int step = 0; step < 10; ++step)
//     session.step(batch, lr), report.endStep();
//   std::cout << report.table();
//   report.writeHints("stitch_hints.json");     // feed it to segue-compile
//
// Counting costs two additions per input. Any thread may read.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_STITCHREPORT_H
#define SEGUE_RUNTIME_PROGRAM_STITCHREPORT_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Layout/TensorDesc.h"
#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

namespace segue::inline runtime {

class Device;

/// One end of an edge: an input or output of a program.
struct StitchEnd {
  /// The file name of the binary.
  std::string binary;
  std::string program;
  /// The Program::interfaceHash, by which the compiler knows the program.
  uint64_t interfaceHash = 0;
  std::string value;
  /// The place in the source of the value, or of the first command that reads it.
  std::string location;
  auto operator<=>(const StitchEnd &) const = default;
};

/// The ways in which readers have taken an output that can be written in several layouts,
/// since its program last looked. Belongs to the holder of the device's lane.
struct OutputDemand {
  /// False if there is no choice: then nothing is counted.
  bool open = false;
  uint64_t elided = 0, converted = 0;
  /// The description that the first reader which had to convert wants.
  std::shared_ptr<const TensorDesc> wanted;
};

/// A TensorOrigin is what a tensor remembers of the program that made it.
struct TensorOrigin {
  StitchEnd end;
  /// The index of the output.
  uint32_t output = 0;
  mutable OutputDemand demand = {};
  /// True if its program lays it in tiles or rows by a copy of its own: a conversion that
  /// has moved from the seam into the producer.
  bool isPacked = false;
};

struct StitchEdge {
  /// The ends of the edge. A producer with an empty program means that the tensor came from outside.
  StitchEnd producer, consumer;
  uint64_t elided = 0, converted = 0, cacheHits = 0;
  uint64_t elidedBytes = 0, convertedBytes = 0, cacheHitBytes = 0;
  /// The elided submits for which the producer made the copy (TensorOrigin).
  uint64_t packed = 0, packedBytes = 0;
  /// The two ends of the last conversion, if there was one.
  TensorDesc from, to;

  uint64_t submits() const { return elided + converted + cacheHits; }
};

class StitchReport {
public:
  /// Returns a snapshot: most converted bytes first, then by name.
  std::vector<StitchEdge> edges() const;
  /// Forgets what was counted.
  void reset();

  /// Notes that a training step is over; bytes per step are averages over all of them.
  void endStep() { steps_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }

  /// Returns {"version":1,"steps":…,"edges":[…]}.
  Json toJson() const;
  /// Returns a table for people: a line per edge that copied, or
  /// whose producer copies for it, then the sum of the others.
  std::string table() const;
  /// Writes the edges that copied, for the compiler:
  /// `{"version":1,"edges":[…]}` with the ends by interface
  /// hash, bytes per step and both layouts. Throws IoFailed.
  void writeHints(const std::filesystem::path &path) const;

  //===--------------------------------------------------------------------===//
  // For the executor
  //===--------------------------------------------------------------------===//

  using Sum = std::atomic<uint64_t>;
  /// The counts of one edge, to which the submitting thread alone adds.
  struct Counters {
    const TensorOrigin *producer = nullptr;
    const StitchEnd *consumer = nullptr;

    Sum elided{0}, converted{0}, cacheHits{0};
    Sum elidedBytes{0}, convertedBytes{0}, cacheHitBytes{0};
    /// The ends of the last conversion, guarded by the report's mutex.
    TensorDesc from, to;

    static void add(Sum &sum, uint64_t amount) {
      sum.store(sum.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
  };
  /// These return objects that live as long as the report.
  TensorOrigin &addOrigin(StitchEnd end, uint32_t output);
  const StitchEnd &addConsumer(StitchEnd end);
  Counters &edge(const TensorOrigin *producer, const StitchEnd &consumer);
  void noteConversion(Counters &edge, const TensorDesc &from, const TensorDesc &to);

private:
  mutable std::mutex mutex_;
  std::deque<TensorOrigin> origins_;
  std::deque<StitchEnd> consumers_;
  std::deque<Counters> counters_;
  std::map<std::pair<const TensorOrigin *, const StitchEnd *>, Counters *> byEnds_;
  std::atomic<uint64_t> steps_{0};
};

/// Returns the report of a device.
StitchReport &stitchReport(Device &device);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_STITCHREPORT_H
