//===- RunReport.cpp - a run as one page ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Gathers what a run leaves. What is made of it is in ReportData.cpp, the page
// in report.html.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/RunReport.h"
#include "../Drivers/SimProfile.h"
#include "Formatted.h"
#include "Measured.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Services/ActivationStagehandConfig.h"
#include "segue/runtime/Services/ConductorConfig.h"
#include "segue/runtime/Services/SelectivePrecisionConfig.h"
#include "segue/runtime/Services/WeightStagehandConfig.h"
#include "segue/runtime/Transfer/StitchOptions.h"
#include <algorithm>
#include <bit>
#include <ctime>
#include <fstream>
#include <unistd.h>

namespace segue::inline runtime {

/// A service is known by a key that no other writes.
static std::string serviceOf(const Json &line) {
  static constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"vram_headroom_mb", "conductor"}, {"activations_saved", "activations"}, {"reload_ratio", "weights"},
      {"inputs_elided", "stitch"},       {"blocks_bf16", "precision"},         {"loss", "steps"},
      {"eval_loss", "evaluations"}};
  for (const auto &[key, service] : known)
    if (line.contains(key))
      return std::string(service);
  return "";
}

/// Returns the series of a service, whose lines have the number of their step under a key of its own.
static LineSeries &seriesOf(const std::string &service, RunRecords &records) {
  if (service == "steps")
    return records.steps;
  if (service == "evaluations")
    return records.evaluations;
  const char *stepKey = service == "conductor" || service == "precision" ? "step_id" : "step";
  return records.telemetry.try_emplace(service, LineSeries(stepKey)).first->second;
}

size_t readTelemetry(const std::filesystem::path &path, RunRecords &records, TelemetryPlace &place) {
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorCode::IoFailed, path.string() + ": cannot be opened");
  file.seekg(std::streamoff(place.bytes));
  size_t unknown = 0;
  for (std::string text; std::getline(file, text);) {
    bool isEnded = !file.eof(); // by the end of a line
    Json line;
    std::optional<JsonProblem> problem;
    if (!text.empty() && ((problem = readJson(text, line)) || !line.is_object())) {
      if (!isEnded)
        break; // the last line of a run that was killed, or that still writes
      throw Error(ErrorCode::FileCorrupt, path.string() + ", line " + std::to_string(place.lines + 1) +
                                              (place.isLater ? " of this run" : "") +
                                              ": a JSON object was expected" +
                                              (problem ? ": " + problem->sentence : ""));
    }
    place.bytes += text.size() + isEnded;
    place.lines += isEnded;
    if (text.empty())
      continue;
    std::string service = serviceOf(line);
    if (service.empty())
      ++unknown;
    else
      seriesOf(service, records).add(line);
  }
  return unknown;
}

size_t readTelemetry(const std::filesystem::path &path, RunRecords &records) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(path))
    files.push_back(path);
  else
    for (const auto &entry : std::filesystem::directory_iterator(path))
      if (entry.path().extension() == ".jsonl")
        files.push_back(entry.path());
  if (files.empty())
    throw Error(ErrorCode::IoFailed, path.string() + ": there is no .jsonl file in this folder");
  std::ranges::sort(files);
  size_t unknown = 0;
  for (const std::filesystem::path &file : files) {
    TelemetryPlace place;
    unknown += readTelemetry(file, records, place);
  }
  return unknown;
}

/// Returns the time in UTC, as 2026-11-28T05:00:00Z.
static std::string now() {
  std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%FT%TZ", &parts)};
}

Json headOfPage() {
  double bytes = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  return {{"machine", processor() + formatted(", %ld processor%s, %.1f GiB", processors, processors == 1 ? "" : "s", bytes / (1 << 30))},
          {"version", SEGUE_VERSION},
          {"written", now()}};
}

void writeReport(const RunRecords &records, const std::filesystem::path &path) {
  std::string page = reportPage(reportData(records));
  OutputFile file(path);
  file.write(page);
  file.commit();
}

/// The files that the services of `config` write.
static std::vector<std::filesystem::path> telemetryFiles(const Config &config) {
  std::vector<std::filesystem::path> files;
  auto add = [&](const char *section, auto read) {
    if (!config.has(section))
      return;
    ConfigReader reader = config.section(section);
    if (TelemetryConfig telemetry = read(reader).telemetry; telemetry.enabled)
      files.push_back(telemetry.file);
  };
  add("memory.stagehand.conductor_config", ConductorConfig::read);
  add("memory.stagehand.activation_stagehand", ActivationStagehandConfig::read);
  add("memory.stagehand", WeightStagehandConfig::read);
  add("memory.stagehand.selective_precision", SelectivePrecisionConfig::read);
  add("memory.stitch", StitchOptions::read);
  return files;
}

RunReport::RunReport(DeviceRef device, const Config *config, StepTrace *trace)
    : device_(std::move(device)), trace_(trace) {
  if (!trace_)
    trace_ = &own_.emplace(device_, StepTrace::Memory::ByRole, StepTrace::Commands::Left);
  target = trace_;
  records_.head["began"] = now();
  if (config)
    records_.head["config"] = config->json("memory");
  if (config)
    for (std::filesystem::path &file : telemetryFiles(*config)) {
      std::error_code absent;
      uint64_t bytes = std::filesystem::file_size(file, absent);
      files_.push_back({std::move(file), {.bytes = absent ? 0 : bytes, .isLater = !absent && bytes}});
    }
  records_.device = device_->name();
  records_.link = device_->link();
}

static bool isTraced(int64_t step) { return step <= 4 || std::has_single_bit(uint64_t(step)); }

void RunReport::receive(const Event &event) {
  deliver(*this, event);
  forward(event);
}

void RunReport::on(const event::PhaseBegin &begin) {
  if (begin.phase == Phase::StepBegin) {
    records_.capBytes = device_->memory().budget(Space::DeviceDram);
    bool isWanted = isTraced(++begun_);
    if (own_) {
      own_->setOn(isWanted);
      target = isWanted ? trace_ : nullptr;
    }
    if (isWanted || !own_)
      records_.tracedSteps.push_back(begun_);
  }
}

void RunReport::addStep(const StepResult &result, double seconds) {
  // Steps of a run that was resumed go on from there.
  if (records_.steps.lines() == 0) {
    for (int64_t &step : records_.tracedSteps)
      step += result.step - begun_;
    begun_ = result.step;
  }
  Json line{{"step", result.step}, {"loss", result.loss}, {"grad_norm", result.gradNorm}, {"seconds", seconds}};
  if (result.lossScale != 1 || result.isSkipped)
    line.update({{"loss_scale", result.lossScale}, {"skipped", result.isSkipped ? 1 : 0}});
  records_.steps.add(line);
  records_.head.erase("failure");
  peakBytes_ = std::max(peakBytes_, device_->memory().peakBytes(Space::DeviceDram));
  if (!keptAt_.empty() && Clock::now() >= next_)
    keep();
}

void RunReport::addEvaluation(int64_t step, std::optional<double> loss, const std::map<std::string, double> &metrics) {
  Json line{{"step", step}, {"metrics", metrics}};
  if (loss)
    line["eval_loss"] = *loss;
  records_.evaluations.add(line);
}

void RunReport::describe(std::string model, std::span<const ParameterInfo> parameters, Json settings) {
  uint64_t all = 0, trained = 0;
  for (const ParameterInfo &parameter : parameters) {
    all += uint64_t(parameter.desc.elementCount());
    trained += parameter.trained ? uint64_t(parameter.desc.elementCount()) : 0;
  }
  records_.head.update({{"model", std::move(model)}, {"parameters", all}, {"trained", trained}, {"settings", std::move(settings)}});
}

void RunReport::keepAt(std::filesystem::path path, double seconds) {
  // A pipe would get one page after the other.
  keptAt_ = OutputFile::partialOf(path).empty() ? std::filesystem::path() : std::move(path);
  keepSeconds_ = seconds;
  next_ = {};
}

void RunReport::keep() {
  Clock::time_point begin = Clock::now();
  try {
    RunRecords records = this->records();
    records.head["refresh_seconds"] = keepSeconds_;
    writeReport(records, keptAt_);
  } catch (const Error &) {
    // Training goes on; who ends the run is told.
  }
  auto seconds = [](double count) { return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count)); };
  double took = std::chrono::duration<double>(Clock::now() - begin).count();
  next_ = Clock::now() + seconds(std::max(keepSeconds_, 50 * took));
}

RunRecords RunReport::records() {
  for (TelemetryFile &file : files_)
    if (std::filesystem::exists(file.path))
      readTelemetry(file.path, records_, file.read);
  RunRecords records = records_;
  records.head.update(headOfPage());
  records.head["threads"] = device_->threads();
  records.head["peak_bytes"] = std::max(peakBytes_, device_->memory().peakBytes(Space::DeviceDram));
  records.trace = trace_->toJson();
  records.seams = stitchReport(*device_).toJson();
  return records;
}

Json rankFigures(Device &device, const Collectives &ranks, double secondsPerStep) {
  const DeviceMemory &memory = device.memory();
  CollectiveFigures figures = ranks.figures();
  uint64_t hostBytes = 0;
  for (Space space : {Space::HostPinned, Space::Host})
    hostBytes += device.hasSpace(space) ? memory.peakBytes(space) : 0;
  return {{"rank", ranks.rank()},
          {"device", device.name()},
          {"device_bytes", memory.peakBytes(Space::DeviceDram)},
          {"host_bytes", hostBytes},
          {"message_bytes", figures.peakBytes},
          {"messages", figures.messages},
          {"sent_bytes", figures.sentBytes},
          {"meetings", figures.meetings},
          {"meeting_seconds", figures.meetingSeconds},
          {"seconds_per_step", secondsPerStep}};
}

void RunReport::write(const std::filesystem::path &path) { writeReport(records(), path); }

} // namespace segue::inline runtime
