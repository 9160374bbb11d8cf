//===- PlanBinding.cpp - what a step needs, in Python ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PlanBinding.h"
#include "SessionArguments.h"
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

/// The answer for the budget, or for all memory of the device; a no is not an error here.
static std::string forecastMemory(std::string_view device, const NamedBinaries &modules, double maxGradNorm,
                                  const Ties &tied, const Wires &wires, size_t microBatches,
                                  std::optional<uint64_t> budget, bool seal) {
  MemoryForecast forecast(device, sessionModules(modules), sessionOptions(maxGradNorm, tied, wires), microBatches);
  if (seal)
    forecast.countSeals();
  forecast.ask(budget);
  Json json = forecast.json();
  json["text"] = forecast.text();
  return json.dump();
}

void bindPlan(nb::module_ &m) {
  m.def("forecast_memory", &forecastMemory, "device"_a, "modules"_a, "max_grad_norm"_a = 0.0, "tied"_a = Ties(),
        "wires"_a = Wires(), "micro_batches"_a = 1, "budget"_a = nb::none(), "seal"_a = false,
        nb::call_guard<nb::gil_scoped_release>());
}

} // namespace segue::python
