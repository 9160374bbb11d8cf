//===- ProfileBinding.h - where a step goes, in Python ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_PROFILEBINDING_H
#define SEGUE_PYTHON_PROFILEBINDING_H

#include <nanobind/nanobind.h>

namespace segue::python {

/// Binds `CommandTimer`: the time of each command of a device, beside its limit.
void bindProfile(nanobind::module_ &m);

} // namespace segue::python

#endif // SEGUE_PYTHON_PROFILEBINDING_H
