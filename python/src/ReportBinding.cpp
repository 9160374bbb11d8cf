//===- ReportBinding.cpp - traces and pages of runs, in Python ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ReportBinding.h"
#include "SessionArguments.h"
#include "segue/runtime/Reports/RunReport.h"
#include "segue/runtime/Reports/StepTrace.h"
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nlohmann/json.hpp>

namespace nb = nanobind;
using namespace nb::literals;

namespace segue::python {

using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

void bindReports(nb::module_ &m) {
  nb::class_<EventSink>(m, "EventSink");
  nb::class_<StepTrace, EventSink>(m, "StepTrace")
      .def(
          "__init__",
          [](StepTrace *self, const DeviceRef &device, bool byRole) {
            new (self) StepTrace(device, byRole ? StepTrace::Memory::ByRole : StepTrace::Memory::Totals);
          },
          "device"_a, "by_role"_a = false)
      .def("write", &StepTrace::write, "path"_a, ReleaseGil())
      .def_prop_ro("ended_after", &StepTrace::endedAfter);
  nb::class_<RunReport, EventSink>(m, "RunReport")
      .def(
          "__init__",
          [](RunReport *self, const DeviceRef &device, const std::optional<std::filesystem::path> &config,
             const std::optional<std::string> &configText, StepTrace *trace) {
            std::optional<Config> read = configOf(config, configText);
            new (self) RunReport(device, read ? &*read : nullptr, trace);
          },
          "device"_a, "config"_a = nb::none(), "config_text"_a = nb::none(), "trace"_a = nb::none(),
          nb::keep_alive<1, 5>())
      .def(
          "describe",
          [](RunReport &self, std::string model, const Session &session, const std::string &settings) {
            self.describe(std::move(model), session.parameters(), Json::parse(settings));
          },
          "model"_a, "session"_a, "settings"_a)
      .def("keep_at", &RunReport::keepAt, "path"_a, "seconds"_a = 2.0)
      .def("add_step", &RunReport::addStep, "result"_a, "seconds"_a, ReleaseGil())
      .def("add_evaluation", &RunReport::addEvaluation, "step"_a, "loss"_a.none(), "metrics"_a)
      .def("add_failure", &RunReport::addFailure, "sentence"_a)
      .def(
          "set_ranks",
          [](RunReport &self, const std::vector<std::string> &lines) {
            std::vector<Json> ranks;
            for (const std::string &line : lines)
              ranks.push_back(Json::parse(line));
            self.setRanks(std::move(ranks));
          },
          "lines"_a)
      .def("write", &RunReport::write, "path"_a, ReleaseGil());
}

} // namespace segue::python
