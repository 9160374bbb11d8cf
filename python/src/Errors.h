//===- Errors.h - C++ errors become Python exceptions -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The one place where an error crosses into Python: the code picks the class in
// segue/errors.py, the sentence goes along unchanged.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_ERRORS_H
#define SEGUE_PYTHON_ERRORS_H

#include <nanobind/nanobind.h>
#include <string_view>

namespace segue::python {

/// Sets the Python error for `code` ("LAYOUT_MISMATCH") with `message`. The GIL
/// is held.
void setPythonError(std::string_view code, std::string_view message);

/// From here on, a segue::Error that leaves a bound function is raised as the
/// Python class of its code. Called once per native module.
void registerErrorTranslator();

} // namespace segue::python

#endif // SEGUE_PYTHON_ERRORS_H
