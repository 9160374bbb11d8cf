//===- ReportData.cpp - the figures of a run's page -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// From lines to columns: what a chart needs, and no more than it can show.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/RunReport.h"
#include "Buckets.h"
#include "MessageTimes.h"
#include "segue/runtime/Collectives/Interconnect.h"
#include "segue/runtime/Reports/MemoryKinds.h"
#include <algorithm>
#include <cmath>

namespace segue::inline runtime {

/// The number of parts of a traced step for which the use of the link is told.
static constexpr size_t linkBins = 240;
/// The number of moments of a step for which the memory is told.
static constexpr size_t memoryPoints = 600;

//===----------------------------------------------------------------------===//
// Within a step
//===----------------------------------------------------------------------===//

namespace {
/// The parts of one traced step, as they stand in the trace.
struct TracedStep {
  double begin = 0, end = 0;
  std::vector<const Json *> phases;
  /// One space's live bytes, and the same by role.
  struct Levels {
    std::vector<const Json *> totals, roles;
  };
  std::map<std::string, Levels> levels;
  /// Who holds the most, where the trace says it.
  const Json *most = nullptr;
  /// The lines of copies, by their direction.
  std::map<std::string, std::vector<const Json *>> copies;
  /// The times of messages between ranks, in microseconds.
  MessageTimes network;
  uint64_t sentBytes = 0;
};
} // namespace

static std::vector<TracedStep> splitSteps(const Json &trace) {
  std::map<int, std::string> tracks;
  std::vector<const Json *> phases;
  for (const Json &event : trace["traceEvents"]) {
    if (event["ph"] == "M")
      tracks[event["tid"].get<int>()] = event["args"]["name"].get<std::string>();
    if (event["ph"] == "X" && tracks[event["tid"].get<int>()] == "phase")
      phases.push_back(&event);
  }
  std::vector<TracedStep> steps;
  for (const Json *phase : phases) {
    if ((*phase)["name"] == "step_begin")
      steps.emplace_back().begin = (*phase)["ts"].get<double>();
    if (steps.empty())
      continue;
    steps.back().phases.push_back(phase);
    // The time from STEP_END until the next step does not belong to the step.
    double end = (*phase)["name"] == "step_end" ? 0 : (*phase)["dur"].get<double>();
    steps.back().end = (*phase)["ts"].get<double>() + end;
  }
  auto stepAt = [&](double time) -> TracedStep * {
    auto after = std::ranges::upper_bound(steps, time, {}, &TracedStep::begin);
    return after == steps.begin() ? nullptr : &*std::prev(after);
  };
  for (const Json &event : trace["traceEvents"]) {
    if (event["ph"] == "M")
      continue;
    TracedStep *step = stepAt(event["ts"].get<double>());
    if (!step)
      continue;
    if (event["ph"] == "C") {
      for (std::string space : {"device_dram", "disk"}) {
        if (event["name"] == space)
          step->levels[space].totals.push_back(&event);
        if (event["name"] == space + " by role")
          step->levels[space].roles.push_back(&event);
      }
      continue;
    }
    if (event["ph"] == "i" && event["name"] == mostHeldLabel)
      step->most = &event;
    if (event["ph"] != "X")
      continue;
    std::string track = tracks[event["tid"].get<int>()];
    double begin = event["ts"].get<double>(), end = begin + event["dur"].get<double>();
    if (track == "h2d" || track == "d2h") {
      step->copies[track].push_back(&event);
    } else if (track == "block") {
      step->network.addCompute(begin, end);
    } else if (track == "network" && event["name"] == meetingLabel) {
      step->network.addMeeting(begin, end);
    } else if (track == "network" && event["name"] != receiveLabel) { // which waits for a message of another
      step->network.addMessage(begin, end);
      step->sentBytes += event["args"]["bytes"].get<uint64_t>();
    }
  }
  return steps;
}

/// Returns the live bytes by holder over the step. Of neighbours that one point stands for,
/// it is the moment with the most.
static Json memoryOver(const TracedStep &step, const std::string &space, size_t points) {
  Json json{{"ms", Json::array()}, {"total", Json::array()}, {"by", Json::object()}};
  auto found = step.levels.find(space);
  if (found == step.levels.end())
    return json;
  const auto &[totals, roles] = found->second;
  std::vector<std::map<std::string, uint64_t>> holders(roles.size());
  std::map<std::string, bool> names;
  for (size_t i = 0; i < roles.size(); ++i)
    for (const auto &[role, bytes] : (*roles[i])["args"].items()) {
      holders[i][kindOfRole(role)] += bytes.get<uint64_t>();
      names[kindOfRole(role)] = true;
    }
  auto bytesAt = [&](size_t i) { return (*totals[i])["args"]["bytes"].get<uint64_t>(); };
  for (auto [begin, end] : bucketsOf(totals.size(), points)) {
    size_t most = begin;
    for (size_t i = begin + 1; i < end; ++i)
      if (bytesAt(i) > bytesAt(most))
        most = i;
    json["ms"].push_back(((*totals[most])["ts"].get<double>() - step.begin) / 1e3);
    json["total"].push_back(bytesAt(most));
    if (most < holders.size())
      for (const auto &[name, present] : names)
        json["by"][name].push_back(holders[most].contains(name) ? holders[most][name] : 0);
  }
  return json;
}

/// Returns the bytes per second over each direction of the link, in equal parts of the step.
static Json linkOver(const TracedStep &step) {
  double width = std::max(step.end - step.begin, 1e-3) / linkBins;
  Json json{{"bin_ms", width / 1e3}};
  for (const char *direction : {"h2d", "d2h"}) {
    std::vector<double> rate(linkBins);
    uint64_t bytes = 0;
    auto copies = step.copies.find(direction);
    for (size_t i = 0; copies != step.copies.end() && i < copies->second.size(); ++i) {
      const Json &copy = *copies->second[i];
      double begin = copy["ts"].get<double>() - step.begin, length = copy["dur"].get<double>();
      uint64_t size = copy["args"]["bytes"].get<uint64_t>();
      bytes += size;
      size_t first = size_t(std::clamp(begin / width, 0.0, double(linkBins - 1)));
      size_t last = size_t(std::clamp((begin + length) / width, 0.0, double(linkBins - 1)));
      for (size_t bin = first; bin <= last; ++bin) {
        // A copy that goes on after the step's end belongs to its last part.
        double from = bin == first ? begin : double(bin) * width;
        double to = bin == last ? begin + length : double(bin + 1) * width;
        double part = last > first ? (to - from) / length : 1;
        rate[bin] += double(size) * part / (width * 1e-6);
      }
    }
    json[direction] = rate;
    json[std::string(direction) + "_bytes"] = bytes;
  }
  return json;
}

/// Returns who holds the most in a step, each with its kind; null where the trace does not say.
static Json peakOf(const TracedStep &step) {
  if (!step.most)
    return {};
  Json json = (*step.most)["args"];
  json["ms"] = ((*step.most)["ts"].get<double>() - step.begin) / 1e3;
  for (Json &holder : json["held"])
    holder["kind"] = kindOfRole(holder.value("role", ""));
  return json;
}

static Json timelines(const RunRecords &records, size_t points) {
  Json json = Json::array();
  if (!records.trace.is_object())
    return json;
  std::vector<TracedStep> steps = splitSteps(records.trace);
  for (size_t i = 0; i < steps.size(); ++i) {
    const TracedStep &step = steps[i];
    Json phases = Json::array();
    for (const Json *phase : step.phases)
      phases.push_back({{"name", (*phase)["name"]},
                        {"ms", ((*phase)["ts"].get<double>() - step.begin) / 1e3},
                        {"dur", (*phase)["name"] == "step_end" ? 0 : (*phase)["dur"].get<double>() / 1e3}});
    json.push_back({{"step", i < records.tracedSteps.size() ? records.tracedSteps[i] : int64_t(i + 1)},
                    {"ms", (step.end - step.begin) / 1e3},
                    {"phases", std::move(phases)},
                    {"memory", memoryOver(step, "device_dram", std::min(points, memoryPoints))},
                    {"disk", memoryOver(step, "disk", std::min(points, memoryPoints))},
                    {"peak", peakOf(step)},
                    {"link", linkOver(step)}});
    if (step.network.empty())
      continue;
    json.back()["network"] = step.network.json(/*perSecond=*/1e6);
    json.back()["network"]["sent_bytes"] = step.sentBytes;
  }
  return json;
}

/// The edges between programs: sums, and those that copied most.
static Json seams(const Json &report) {
  Json json{{"elided", 0},       {"converted", 0},       {"cache_hits", 0},  {"packed", 0},
            {"elided_bytes", 0}, {"converted_bytes", 0}, {"packed_bytes", 0}};
  json["edges"] = Json::array();
  if (!report.is_object())
    return json;
  for (const Json &edge : report["edges"]) {
    for (auto &[key, sum] : json.items())
      if (edge.contains(key))
        sum = sum.get<uint64_t>() + edge[key].get<uint64_t>();
    if (edge["converted"] != 0 && json["edges"].size() < 20)
      json["edges"].push_back(edge);
  }
  return json;
}

Json reportData(const RunRecords &records, size_t points) {
  Json json{{"version", 1}, {"head", records.head}, {"device", records.device}};
  json["cap_bytes"] = records.capBytes ? Json(*records.capBytes) : Json();
  json["link"] = !records.link ? Json()
                               : Json{{"h2d_bytes_per_second", records.link->h2dBytesPerSecond},
                                      {"d2h_bytes_per_second", records.link->d2hBytesPerSecond}};
  json["steps"] = records.steps.columns(points);
  json["evaluations"] = records.evaluations.columns(points);
  json["services"] = Json::object();
  for (const auto &[service, lines] : records.telemetry)
    json["services"][service] = lines.columns(points);
  auto decisions = records.telemetry.find("precision");
  json["precision"] = decisions == records.telemetry.end() ? Json() : decisions->second.precision(points);
  json["timelines"] = timelines(records, points);
  json["seams"] = seams(records.seams);
  json["ranks"] = records.ranks;
  return json;
}

//===----------------------------------------------------------------------===//
// The page
//===----------------------------------------------------------------------===//

/// The text of report.html; see CMakeLists.txt.
extern const char reportTemplate[];

std::string reportPage(const Json &data) {
  std::string page = reportTemplate, text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Nothing in a name ends the script that the data lies in.
  std::string safe;
  for (char c : text)
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  constexpr std::string_view place = "@DATA@";
  page.replace(page.find(place), place.size(), safe);
  return page;
}

} // namespace segue::inline runtime
