//===- SlabBinding.h - SquareQ slabs in Python ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_SLABBINDING_H
#define SEGUE_PYTHON_SLABBINDING_H

#include <nanobind/nanobind.h>

namespace segue::python {

/// Slab, SlabServer and model_signature.
void bindSlab(nanobind::module_ &m);

} // namespace segue::python

#endif // SEGUE_PYTHON_SLABBINDING_H
