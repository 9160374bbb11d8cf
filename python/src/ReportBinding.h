//===- ReportBinding.h - traces and pages of runs, in Python ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_REPORTBINDING_H
#define SEGUE_PYTHON_REPORTBINDING_H

#include <nanobind/nanobind.h>

namespace segue::python {

/// Binds `EventSink`, which a session takes, and the two that there are: `StepTrace` and `RunReport`.
void bindReports(nanobind::module_ &m);

} // namespace segue::python

#endif // SEGUE_PYTHON_REPORTBINDING_H
