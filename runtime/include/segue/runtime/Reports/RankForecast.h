//===- RankForecast.h - what several ranks will take ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Forecasts what a training step takes of each of several ranks, before any of them is
// started: `segue-run plan`. The session that would train plays its first steps in virtual
// time, with messages that take the time of an interconnect beside what is computed; so what
// overlaps has been seen to, and no memory of the model's size is needed.
//
//   RankForecast forecast("sim:virtual,dram=80GiB,pinned=1TiB", modules, {}, {.ranks = 64});
//   for (Sharding strategy : shardings)
//     forecast.play(strategy);
//   if (const RankStep *best = forecast.fastest())
//     std::puts(forecast.text().c_str());
//
// Part of the library SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_RANKFORECAST_H
#define SEGUE_RUNTIME_REPORTS_RANKFORECAST_H

#include "segue/runtime/Collectives/Interconnect.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Session/StepTwin.h"
#include <list>

namespace segue::inline runtime {

/// Reads the links between ranks from "50GB/s,latency=5us". Throws InvalidArgument.
Interconnect parseInterconnect(const std::string &text);

/// The ranks of a run that is asked about.
struct RankRun {
  int ranks = 2;
  Interconnect wires;
  /// The bytes of device_dram that each rank may take; nothing for all that its device has.
  std::optional<uint64_t> budgetBytes;
  /// The batches of one rank in a step; a pipeline takes those of all.
  size_t microBatches = 1;
  /// The bytes of a message, as CollectiveOptions has them; 0 for its default.
  uint64_t bucketBytes = 0;
};

/// A step of one rank: the third and, for its time, the one behind it, when everything is there that programs and
/// services keep.
struct RankStep {
  Sharding strategy = Sharding::None;
  int rank = 0;
  /// Says what lacks, with numbers; empty if the step keeps to the budget. Without a step, the figures below are 0.
  std::string why;
  /// True if the step takes a plan by which tensors leave, as `train --budget` makes one.
  bool isPlanned = false;
  /// The bytes of device_dram in which the first steps run, and the most that were live at once.
  uint64_t bytes = 0, liveBytes = 0;
  /// The most bytes of the host's memory, and those of messages among them.
  uint64_t hostBytes = 0, messageBytes = 0;
  /// The rank sends so many messages with tensors in the step, of so many bytes, and comes to so many meetings of all.
  uint64_t messages = 0, sentBytes = 0, meetings = 0;
  double seconds = 0;
  /// How long the device computes; how long messages are on the wires, and how much of that while it computes; and
  /// how long meetings take, in which all wait.
  double computeSeconds = 0, networkSeconds = 0, hiddenSeconds = 0, meetingSeconds = 0;

  bool fits() const { return why.empty(); }
};

class VirtualGroup;

class RankForecast {
public:
  /// Takes the capacities and speeds of the device `spec`, which is opened only where nothing else can tell them, for
  /// every rank. Of `options`, what decides what a step computes is taken over. Throws what virtualTwin throws.
  RankForecast(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options, RankRun run);

  /// Plays the steps of the rank that takes the most. If they do not keep to the budget as they are, they are played by
  /// a plan. A budget that no plan keeps to is an answer. Of a pipeline all ranks are played, each on a thread, as each
  /// waits for others; a model of too few modules for it is an answer, too. Throws what Session throws.
  const RankStep &play(Sharding strategy);

  /// Returns what was played, in its order.
  const std::list<RankStep> &steps() const { return steps_; }
  /// Returns the fastest that keeps to the budget, or null.
  const RankStep *fastest() const;
  uint64_t budgetBytes() const { return budgetBytes_; }

  Json json() const;
  std::string text() const;

private:
  /// Returns the rank that has the most of states which ranks share out.
  int fullestRank() const;
  /// Plays steps on a device of so many bytes, with `config` for its services, and as a part of `group`, if it is not
  /// null.
  void playOn(const std::string &dram, const std::optional<Config> &config, RankStep &step,
              std::shared_ptr<VirtualGroup> group = nullptr) const;
  /// Plays them by a plan, where they take too much without one.
  void playByPlan(RankStep &step, std::shared_ptr<VirtualGroup> group = nullptr) const;
  /// Plays all ranks of a pipeline beside each other, as many of them by a plan as need one. Returns the rank that
  /// takes the most of its device, with the time of the slowest.
  RankStep playPipeline() const;

  /// The spec of the twin that each rank is played on.
  std::string twin_;
  std::vector<SessionModule> modules_;
  SessionOptions options_;
  RankRun run_;
  uint64_t programBytes_, budgetBytes_;
  std::list<RankStep> steps_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_RANKFORECAST_H
