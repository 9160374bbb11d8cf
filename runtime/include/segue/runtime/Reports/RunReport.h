//===- RunReport.h - a run as one page --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One HTML file that shows what a run did: memory by phase and by service
// against the cap, who holds it where a step holds the most, transfers against the
// link's limit, precision per block, stalls, losses, copies elided. It needs no network and no other file; the
// figures stand in it as JSON (`<script id="data">`), for whoever wants others.
//
//   RunReport report(device, &config);
//   report.keepAt("run.html");                 // from the first step on
//   Session session(device, modules, {.events = &report, .config = config});
//   report.describe("gpt", session.parameters(), {{"optimizer", "AdamW"}});
//   StepResult result = session.step(batch, lr);
//   report.addStep(result, seconds);
//   report.addEvaluation(result.step, heldOutLoss);
//   report.write("run.html");                  // the run has ended
//
// While the run goes on, a browser that shows the page loads it again whenever it may be new.
//
// The lines that the run's telemetry files get are read back when the page is
// made, each once. How memory and the link are used within a step is traced in steps 1 to 4
// and from there on in each whose number is a power of two, so that a long run
// costs no more; of long series buckets with mean, least and most are kept.
//
// A page can also be made of files that a run left: readTelemetry, reportData,
// reportPage. Part of the library SegueReports. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_RUNREPORT_H
#define SEGUE_RUNTIME_REPORTS_RUNREPORT_H

#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Plan/StepProfile.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Reports/LineSeries.h"
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Reports/StepTrace.h"
#include <chrono>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// RunRecords hold what is known of a run. Any part may be missing.
struct RunRecords {
  /// The head of the page: `model`, `parameters` and `trained` (how many numbers), `settings` (name: value), `config`,
  /// `machine`, `threads`, `version`, `peak_bytes` of device_dram; `began` and `written` in UTC, as 2026-11-28T05:00:00Z.
  /// While the run goes on, `refresh_seconds` after which the page may be new; `failure`, if the last step has failed.
  Json head = Json::object();
  std::string device;
  /// The cap of device_dram in bytes.
  std::optional<uint64_t> capBytes;
  std::optional<LinkSpeed> link;
  /// A line per step: step, loss, grad_norm, seconds; with loss scaling also loss_scale, and skipped (1 or 0).
  LineSeries steps;
  /// A line per evaluation on data that is not learnt: the step behind which it was, eval_loss where there is a
  /// loss, and `metrics`, other means by name.
  LineSeries evaluations;
  /// The lines by service: "conductor", "activations", "weights", "precision", "stitch".
  std::map<std::string, LineSeries> telemetry;
  /// The trace that StepTrace::toJson gives, and the numbers of
  /// the steps in it. Without numbers they are counted from 1.
  Json trace;
  std::vector<int64_t> tracedSteps;
  /// The report that StitchReport::toJson gives.
  Json seams;
  /// A line of each rank that rankFigures gives; empty for one rank alone.
  std::vector<Json> ranks;
};

/// Returns what a rank has taken so far, with the seconds of its steps in the mean: a line of the page's table of ranks.
/// Lines are told to the rank that has the report by an exchange.
Json rankFigures(Device &device, const Collectives &ranks, double secondsPerStep);

/// Adds what `path` holds: a folder's *.jsonl files, or one such file. A line is
/// known by its keys; returns the number of lines of which none is of a service,
/// a step or an evaluation. Throws IoFailed for what cannot be read, FileCorrupt naming file and
/// line for what is no JSON object.
size_t readTelemetry(const std::filesystem::path &path, RunRecords &records);

/// A TelemetryPlace says how far a telemetry file was read.
struct TelemetryPlace {
  /// The lines are counted from here on, where `isLater` says that others come before.
  uint64_t bytes = 0, lines = 0;
  bool isLater = false;
};
/// Adds what stands in a file behind `place`, which is behind all of that then, but for a line that is not whole.
size_t readTelemetry(const std::filesystem::path &path, RunRecords &records, TelemetryPlace &place);

/// Returns the figures of the page. Series with more
/// than `points` lines come in buckets of neighbours.
Json reportData(const RunRecords &records, size_t points = 2000);

/// Returns the page that shows `data`.
std::string reportPage(const Json &data);

/// Returns what `head` has of the machine and of this program, and the time as `written`.
Json headOfPage();

/// Writes a page, whole or not at all. Throws IoFailed.
void writeReport(const RunRecords &records, const std::filesystem::path &path);

class RunReport final : public ForwardEvents {
public:
  /// Makes the report of a run. `config` is that of the session, read now, or null if it
  /// has none. `trace` is a trace with memory by role that the run makes anyway; it gets
  /// all events from here and is not owned. With null the report has its own trace.
  RunReport(DeviceRef device, const Config *config, StepTrace *trace = nullptr);

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  /// Says what trains: the model's name, what the session has of it, and settings of the run, as the user knows them.
  void describe(std::string model, std::span<const ParameterInfo> parameters, Json settings = Json::object());
  /// Keeps a page of the run at `path` from the next step on. It is written again when a step ends and `seconds` have
  /// passed, and so seldom that it takes no more than a fiftieth of the run's time. What cannot be written then is
  /// left to `write`. A pipe or a device gets the page of `write` alone. Throws IoFailed for what OutputFile refuses.
  void keepAt(std::filesystem::path path, double seconds = 2);
  /// Notes that a step has ended, and writes the page if it is to be kept.
  void addStep(const StepResult &result, double seconds);
  /// Notes what an evaluation after `step` has found: the mean loss, if there is one, and other means by name. The page
  /// has it when it is written next.
  void addEvaluation(int64_t step, std::optional<double> loss, const std::map<std::string, double> &metrics = {});
  /// Notes that a step has failed, which the page says until another one ends.
  void addFailure(std::string sentence) { records_.head["failure"] = std::move(sentence); }
  /// Notes what each rank has taken, by lines of rankFigures in the place of those before.
  void setRanks(std::vector<Json> ranks) { records_.ranks = std::move(ranks); }

  /// Returns all records so far. Waits for queued work.
  RunRecords records();
  /// Writes the page of a run that has ended. Throws IoFailed, and FileCorrupt for telemetry that somebody else broke.
  void write(const std::filesystem::path &path);

private:
  void keep();

  struct TelemetryFile {
    std::filesystem::path path;
    /// Behind what earlier runs left in the file, at first.
    TelemetryPlace read;
  };

  DeviceRef device_;
  std::optional<StepTrace> own_;
  StepTrace *trace_;
  std::vector<TelemetryFile> files_;
  RunRecords records_;
  int64_t begun_ = 0;
  uint64_t peakBytes_ = 0;
  using Clock = std::chrono::steady_clock;
  std::filesystem::path keptAt_;
  double keepSeconds_ = 0;
  /// The time before which the page is not written again.
  Clock::time_point next_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_RUNREPORT_H
