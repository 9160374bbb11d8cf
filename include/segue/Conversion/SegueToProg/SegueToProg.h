//===- SegueToProg.h - from tensors to programs -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_CONVERSION_SEGUETOPROG_SEGUETOPROG_H
#define SEGUE_CONVERSION_SEGUETOPROG_SEGUETOPROG_H

#include "mlir/Pass/Pass.h"

namespace segue {

#define GEN_PASS_DECL
#include "segue/Conversion/SegueToProg/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "segue/Conversion/SegueToProg/Passes.h.inc"

} // namespace segue

#endif // SEGUE_CONVERSION_SEGUETOPROG_SEGUETOPROG_H
