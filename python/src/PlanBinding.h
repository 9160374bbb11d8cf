//===- PlanBinding.h - what a step needs, in Python -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_PLANBINDING_H
#define SEGUE_PYTHON_PLANBINDING_H

#include <nanobind/nanobind.h>

namespace segue::python {

/// Binds `forecast_memory`: planning in virtual time, without a device run.
void bindPlan(nanobind::module_ &m);

} // namespace segue::python

#endif // SEGUE_PYTHON_PLANBINDING_H
