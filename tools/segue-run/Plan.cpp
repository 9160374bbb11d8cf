//===- Plan.cpp - segue-run plan ------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a step takes of each of several ranks, before any of them is started.
//
//===----------------------------------------------------------------------===//

#include "Binaries.h"
#include "Commands.h"
#include "segue/runtime/Reports/RankForecast.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

int plan(const PlanOptions &options) {
  SessionOptions session;
  session.openSlab = openSlab;
  session.stages = options.stages;
  std::vector<SessionModule> modules = loadModules(options.files, options);
  addTiesAndWires(session, modules, options.tied, options.wires);
  std::vector<Sharding> strategies(std::begin(shardings), std::end(shardings));
  if (options.strategy != "search")
    strategies = {parseSharding(options.strategy)};
  RankRun run{.ranks = int(options.ranks),
              .wires = parseInterconnect(options.interconnect),
              .budgetBytes = options.budget ? std::optional(options.budget) : std::nullopt,
              .microBatches = size_t(options.accumulate)};
  RankForecast forecast(options.device, std::move(modules), std::move(session), run);
  for (Sharding strategy : strategies)
    forecast.play(strategy);
  if (options.json)
    std::printf("%s\n", forecast.json().dump(2).c_str());
  else
    std::fputs(forecast.text().c_str(), stdout);
  return forecast.fastest() ? Done : Failed;
}

} // namespace segue::tool
