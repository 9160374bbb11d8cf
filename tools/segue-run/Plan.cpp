//===- Plan.cpp - segue-run plan ------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a training step holds and takes, and what a budget costs, before
// anything runs. Every figure is that of a step played in virtual time by the
// code that will train: what is planned is certified by playing it.
//
//===----------------------------------------------------------------------===//

#include "Binaries.h"
#include "Commands.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Plan/StepTwin.h"
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

namespace segue::tool {

static constexpr Phase phases[] = {Phase::Forward, Phase::Backward, Phase::Optimizer};

namespace {
struct Line {
  std::string what;
  const ResidencyPlan *plan;
  StepTwin::Played played;
  std::array<uint64_t, std::size(phases)> phasePeaks{};
};
} // namespace

static double mib(uint64_t bytes) { return double(bytes) / 1048576; }

static Line makeLine(StepTwin &twin, const ResidencyPlanner &planner, std::string what, const ResidencyPlan &plan) {
  Line line{std::move(what), &plan, twin.play(planner.profile(), plan)};
  const auto &events = planner.profile().events;
  for (size_t event = 0; event < events.size(); ++event)
    for (size_t phase = 0; phase < std::size(phases); ++phase)
      if (events[event].phase == phases[phase])
        line.phasePeaks[phase] = std::max(line.phasePeaks[phase], plan.curve[event]);
  return line;
}

static void printLines(const std::vector<Line> &lines) {
  std::printf("%-22s %10s %10s %10s %10s %10s %8s %7s %9s\n", "", "peak MiB", "forward", "backward", "optimizer",
              "step ms", "added", "leave", "out MiB");
  double unconstrained = lines.front().played.seconds;
  for (const Line &line : lines)
    std::printf("%-22s %10.2f %10.2f %10.2f %10.2f %10.3f %+7.1f%% %7llu %9.2f\n", line.what.c_str(),
                mib(line.played.peakBytes), mib(line.phasePeaks[0]), mib(line.phasePeaks[1]), mib(line.phasePeaks[2]),
                line.played.seconds * 1e3, (line.played.seconds / unconstrained - 1) * 100,
                (unsigned long long)line.played.left, mib(line.plan->outBytes));
}

static std::string tightestText(const ResidencyPlanner &planner) {
  const StepEvent &event = planner.profile().events[planner.tightestEvent()];
  return std::string(name(event.kind)) + (event.label.empty() ? "" : " \"" + event.label + "\"") + " in " +
         std::string(name(event.phase));
}

static nlohmann::ordered_json toJson(const Line &line) {
  nlohmann::ordered_json json{{"what", line.what}, {"peak_bytes", line.played.peakBytes}};
  for (size_t phase = 0; phase < std::size(phases); ++phase)
    json["peak_by_phase"][std::string(name(phases[phase]))] = line.phasePeaks[phase];
  json["seconds"] = line.played.seconds;
  json["leave"] = line.played.left;
  json["out_bytes"] = line.plan->outBytes;
  json["in_bytes"] = line.plan->inBytes;
  json["host_peak_bytes"] = line.plan->hostPeakBytes;
  json["unpinned"] = line.played.unpinned;
  return json;
}

/// What was held at the peak, most bytes first.
static std::vector<MemoryHolder> heldAtPeak(const StepTwin::Played &played) {
  std::vector<MemoryHolder> held = played.holders;
  std::erase_if(held, [](const MemoryHolder &holder) { return holder.bytesAtPeak == 0; });
  std::ranges::stable_sort(held, std::greater(), &MemoryHolder::bytesAtPeak);
  return held;
}

static void printJson(const StepTwin &twin, const ResidencyPlanner &planner, const std::vector<Line> &lines) {
  nlohmann::ordered_json json{{"device", twin.device()->name()},
                              {"smallest_budget_bytes", planner.smallestBudget()},
                              {"set_by", tightestText(planner)}};
  for (const Line &line : lines)
    json["plans"].push_back(toJson(line));
  for (const ResidencyGap &gap : planner.profile().gaps)
    json["saved"].push_back(
        {{"tensor", gap.tensor}, {"block", gap.block}, {"location", gap.location}, {"bytes", gap.bytes}});
  for (const MemoryHolder &holder : heldAtPeak(lines.back().played))
    json["held_at_smallest"].push_back({{"owner", holder.owner.str()}, {"bytes", holder.bytesAtPeak}});
  std::printf("%s\n", json.dump(2).c_str());
}

int plan(const PlanOptions &options) {
  SessionOptions session;
  std::vector<SessionModule> modules = loadModules(options.files, options);
  addTiesAndWires(session, modules, options.tied, options.wires);
  DeviceRef device = Device::open(options.device);
  StepTwin twin(device->hasBytes() ? virtualTwin(*device) : device->name(), std::move(modules), std::move(session),
                size_t(options.accumulate));
  ResidencyPlanner planner(twin.record());

  std::vector<Line> lines{makeLine(twin, planner, "unconstrained", planner.unconstrained())};
  std::string infeasible;
  for (uint64_t budget : options.budgets)
    try {
      char what[64];
      std::snprintf(what, sizeof(what), "budget %.2f MiB", mib(budget));
      lines.push_back(makeLine(twin, planner, what, planner.plan(budget)));
    } catch (const Error &error) {
      if (error.code() != ErrorCode::BudgetInfeasible)
        throw;
      infeasible += std::string(infeasible.empty() ? "" : "\n") + "segue-run: " + error.what();
    }
  lines.push_back(makeLine(twin, planner, "smallest budget", planner.plan(planner.smallestBudget())));

  if (options.json) {
    printJson(twin, planner, lines);
  } else {
    uint64_t bytes = 0;
    for (const ResidencyGap &gap : planner.profile().gaps)
      bytes += gap.bytes;
    std::printf("%s\n%zu saved tensors of %.2f MiB can leave\n\n", twin.device()->name().c_str(),
                planner.profile().gaps.size(), mib(bytes));
    printLines(lines);
    std::printf("\nThe smallest budget is set after %s, where these are held:\n", tightestText(planner).c_str());
    std::vector<MemoryHolder> held = heldAtPeak(lines.back().played);
    for (const MemoryHolder &holder : std::span(held).first(std::min<size_t>(held.size(), 12)))
      std::printf("%10.2f MiB  %s\n", mib(holder.bytesAtPeak), holder.owner.str().c_str());
  }
  if (!infeasible.empty())
    std::fprintf(stderr, "%s\n", infeasible.c_str());
  return infeasible.empty() ? Done : Failed;
}

} // namespace segue::tool
