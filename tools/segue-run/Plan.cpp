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
#include "segue/runtime/Reports/MemoryForecast.h"
#include "segue/runtime/Reports/ServiceForecast.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

namespace segue::tool {

static double mib(uint64_t bytes) { return double(bytes) / 1048576; }
/// To a tenth of a percent; never -0.0.
static double percent(double part) { return std::round(part * 1000) / 10 + 0.0; }

static void printSteps(const std::vector<StepForecast> &steps) {
  std::printf("%-22s %10s %10s %10s %10s %10s %8s %7s %9s %7s\n", "", "peak MiB", "forward", "backward", "optimizer",
              "step ms", "added", "leave", "out MiB", "again");
  double unconstrained = steps.front().played.seconds;
  for (const StepForecast &step : steps) {
    uint64_t again = step.played.remade;
    std::printf("%-22s %10.2f %10.2f %10.2f %10.2f %10.3f %+7.1f%% %7llu %9.2f %7llu\n", step.what.c_str(),
                mib(step.bytes), mib(step.peakIn(Phase::Forward)), mib(step.peakIn(Phase::Backward)),
                mib(step.peakIn(Phase::Optimizer)), step.played.seconds * 1e3,
                percent(step.played.seconds / unconstrained - 1), (unsigned long long)(step.plan->away.size() - again),
                mib(step.plan->outBytes), (unsigned long long)again);
  }
}

static void printText(const MemoryForecast &forecast, const std::vector<StepForecast> &steps) {
  const StepProfile &profile = forecast.planner().profile();
  uint64_t saved = 0, savedBytes = 0, residentBytes = 0;
  std::set<uint32_t> residents;
  for (const ResidencyGap &gap : profile.gaps)
    if (gap.resident == noIndex) {
      saved += 1;
      savedBytes += gap.bytes;
    } else if (residents.insert(gap.resident).second) {
      residentBytes += gap.bytes;
    }
  std::printf("%s\n%llu saved tensors of %.2f MiB can leave, and %zu parameters, gradients and states of %.2f MiB\n\n",
              forecast.twin().spec().c_str(), (unsigned long long)saved, mib(savedBytes), residents.size(),
              mib(residentBytes));
  printSteps(steps);
  for (const StepForecast &step : steps)
    if (step.bytes > forecast.capacityBytes())
      std::printf("%s: %.2f MiB do not fit in the %.2f MiB of the device\n", step.what.c_str(), mib(step.bytes),
                  mib(forecast.capacityBytes()));
  std::printf("\nThe smallest budget is set after %s, where these are held:\n", forecast.setBy().c_str());
  std::vector<MemoryHolder> held = forecast.heldAtSmallest();
  for (const MemoryHolder &holder : std::span(held).first(std::min<size_t>(held.size(), 12)))
    std::printf("%10.2f MiB  %s\n", mib(holder.bytesAtPeak), holder.owner.str().c_str());
}

int plan(const PlanOptions &options) {
  SessionOptions session;
  session.openSlab = openSlab;
  std::vector<SessionModule> modules = loadModules(options.files, options);
  addTiesAndWires(session, modules, options.tied, options.wires);
  DeviceRef device = Device::open(options.device);
  std::string infeasible;
  auto orNote = [&](auto &&tell) {
    try {
      tell();
    } catch (const Error &error) {
      if (error.code() != ErrorCode::BudgetInfeasible)
        throw;
      infeasible += std::string("segue-run: ") + error.what() + "\n";
    }
  };
  Json services;
  if (!options.config.empty())
    orNote([&] {
      services = forecastServices(*device, modules, session, size_t(options.accumulate), Config::load(options.config));
    });
  MemoryForecast forecast(*device, std::move(modules), std::move(session), size_t(options.accumulate));

  std::vector<StepForecast> steps{forecast.unconstrained()};
  for (uint64_t budget : options.budgets)
    orNote([&] { steps.push_back(forecast.forBudget(budget)); });
  steps.push_back(forecast.smallest());

  if (options.json) {
    Json json = forecast.json(steps);
    if (!services.is_null())
      json["config"] = services;
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    printText(forecast, steps);
    if (!services.is_null())
      std::printf("\n%s", textOfServices(services).c_str());
  }
  std::fputs(infeasible.c_str(), stderr);
  return infeasible.empty() ? Done : Failed;
}

} // namespace segue::tool
