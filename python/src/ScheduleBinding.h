//===- ScheduleBinding.h - learning rates that change, in Python -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_SCHEDULEBINDING_H
#define SEGUE_PYTHON_SCHEDULEBINDING_H

#include <nanobind/nanobind.h>

namespace segue::python {

/// Binds the functions of RateSchedule.h, which return functions of the step.
void bindSchedules(nanobind::module_ &m);

} // namespace segue::python

#endif // SEGUE_PYTHON_SCHEDULEBINDING_H
