//===- Fit.cpp - segue-run fit --------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Whether a training step keeps to a budget, what it holds and takes, and what the
// budget costs, before anything runs. Every figure is that of a step played in virtual
// time by the code that will train: what is planned is certified by playing it.
//
//===----------------------------------------------------------------------===//

#include "Binaries.h"
#include "Commands.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Reports/MemoryForecast.h"
#include "segue/runtime/Reports/ServiceForecast.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Session/RunBudget.h"
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

int fit(const FitOptions &options) {
  SessionOptions session;
  session.openSlab = openSlab;
  std::vector<SessionModule> modules = loadModules(options.files, options);
  addTiesAndWires(session, modules, options.tied, options.wires);
  Json services;
  bool doesFit = true;
  std::string device = options.device;
  std::optional<Config> config;
  if (!options.config.empty())
    config = Config::load(options.config);
  if (std::optional<RunBudget> tiers = config ? RunBudget::of(*config) : std::nullopt) {
    if (!options.budgets.empty())
      throw Error(ErrorCode::InvalidArgument,
                  options.config + " says in memory.tiers what --budget says; leave one out");
    device = tiers->device(device);
    config = tiers->config(config);
  }
  if (config)
    try {
      services = forecastServices(device, modules, session, size_t(options.accumulate), *config);
    } catch (const Error &error) {
      if (error.code() != ErrorCode::BudgetInfeasible)
        throw;
      std::fprintf(stderr, "segue-run: %s\n", error.what());
      doesFit = false;
    }
  MemoryForecast forecast(device, std::move(modules), std::move(session), size_t(options.accumulate));
  if (options.seal)
    forecast.countSeals();
  if (options.budgets.empty())
    doesFit &= forecast.ask().fits;
  for (uint64_t budget : options.budgets)
    doesFit &= forecast.ask(budget).fits;

  if (options.json) {
    Json json = forecast.json();
    if (!services.is_null())
      json["config"] = services;
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::fputs(forecast.text().c_str(), stdout);
    if (!services.is_null())
      std::printf("\n%s", textOfServices(services).c_str());
  }
  return doesFit ? Done : Failed;
}

} // namespace segue::tool
