//===- ScheduleBinding.cpp - learning rates that change, in Python --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ScheduleBinding.h"
#include "segue/runtime/Session/RateSchedule.h"
#include <nanobind/stl/function.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace segue::python {

void bindSchedules(nb::module_ &m) {
  m.def("warmup_cosine", &warmupCosine, "lr"_a, "steps"_a, "warmup"_a, "final"_a);
  m.def("warmup_linear", &warmupLinear, "lr"_a, "steps"_a, "warmup"_a, "final"_a);
  m.def("one_cycle", &oneCycle, "lr"_a, "steps"_a, "rise"_a, "start"_a, "final"_a);
  m.def(
      "step_decay", [](double rate, int64_t every, double factor) { return stepDecay(rate, every, factor); }, "lr"_a,
      "every"_a, "factor"_a);
  m.def(
      "step_decay_at",
      [](double rate, const std::vector<int64_t> &at, double factor) { return stepDecay(rate, at, factor); }, "lr"_a,
      "at"_a, "factor"_a);
}

} // namespace segue::python
