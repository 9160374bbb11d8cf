//===- RunReport.h - a run as one page --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One HTML file that shows what a run did: memory by phase and by service
// against the cap, transfers against the link's limit, precision per block,
// stalls, losses, copies elided. It needs no network and no other file; the
// figures stand in it as JSON (`<script id="data">`), for whoever wants others.
//
//   RunReport report(device, &config);
//   Session session(device, modules, {.events = &report, .config = config});
//   StepResult result = session.step(batch, lr);
//   report.addStep(result, seconds);
//   report.write("run.html");
//
// The lines that the run's telemetry files get are read back when the page is
// made. How memory and the link are used within a step is traced in steps 1 to 4
// and from there on in each whose number is a power of two, so that a long run
// costs no more; long series are drawn by buckets with mean, least and most.
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
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Reports/StepTrace.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// RunRecords hold what is known of a run. Any part may be missing.
struct RunRecords {
  std::string device;
  /// The cap of device_dram in bytes.
  std::optional<uint64_t> capBytes;
  std::optional<LinkSpeed> link;
  /// One object per step: step, loss, grad_norm, seconds; with loss scaling also loss_scale, and skipped (1 or 0).
  std::vector<Json> steps;
  /// The lines by service: "conductor", "activations", "weights", "precision", "stitch".
  std::map<std::string, std::vector<Json>> telemetry;
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
/// known by its keys; returns the number of lines of which none is of a service
/// or a step. Lines before byte `from` of a file are left out. Throws IoFailed
/// for what cannot be read, FileCorrupt naming file and line for what is no
/// JSON object.
size_t readTelemetry(const std::filesystem::path &path, RunRecords &records, uint64_t from = 0);

/// Returns the figures of the page. Series with more
/// than `points` entries come in buckets of neighbours.
Json reportData(const RunRecords &records, size_t points = 2000);

/// Returns the page that shows `data`.
std::string reportPage(const Json &data);

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
  /// Notes that a step has ended.
  void addStep(const StepResult &result, double seconds);
  /// Notes what each rank has taken, by lines of rankFigures in the place of those before.
  void setRanks(std::vector<Json> ranks) { records_.ranks = std::move(ranks); }

  /// Returns all records so far. Waits for queued work.
  RunRecords records();
  /// Writes the page. Throws IoFailed, and FileCorrupt for telemetry that somebody else broke.
  void write(const std::filesystem::path &path);

private:
  struct TelemetryFile {
    std::filesystem::path path;
    /// The bytes that earlier runs left in the file.
    uint64_t bytesBefore = 0;
  };

  DeviceRef device_;
  std::optional<StepTrace> own_;
  StepTrace *trace_;
  std::vector<TelemetryFile> files_;
  RunRecords records_;
  int64_t begun_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_RUNREPORT_H
