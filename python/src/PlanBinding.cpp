//===- PlanBinding.cpp - what a step needs, in Python ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlanBinding.h"
#include "SessionArguments.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Reports/MemoryForecast.h"
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <nlohmann/json.hpp>

namespace nb = nanobind;
using namespace nb::literals;

namespace segue::python {

/// Unconstrained, under the budget, under the smallest one. A budget that is
/// infeasible is not an error here: Python raises it, with all of this.
static std::string forecastMemory(std::string_view device, const NamedBinaries &modules, double maxGradNorm,
                                  const Ties &tied, const Wires &wires, size_t microBatches,
                                  std::optional<uint64_t> budget) {
  MemoryForecast forecast(*Device::open(device), sessionModules(modules), sessionOptions(maxGradNorm, tied, wires),
                          microBatches);
  std::vector<StepForecast> steps{forecast.unconstrained(), forecast.smallest()};
  Json infeasible;
  if (budget)
    try {
      steps.push_back(forecast.forBudget(*budget));
    } catch (const Error &error) {
      if (error.code() != ErrorCode::BudgetInfeasible)
        throw;
      infeasible = error.what();
    }
  Json json = forecast.json(steps);
  json["infeasible"] = std::move(infeasible);
  return json.dump();
}

void bindPlan(nb::module_ &m) {
  m.def("forecast_memory", &forecastMemory, "device"_a, "modules"_a, "max_grad_norm"_a = 0.0, "tied"_a = Ties(),
        "wires"_a = Wires(), "micro_batches"_a = 1, "budget"_a = nb::none(), nb::call_guard<nb::gil_scoped_release>());
}

} // namespace segue::python
