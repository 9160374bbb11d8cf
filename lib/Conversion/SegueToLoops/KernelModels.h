//===- KernelModels.h - how ops take part in kernels ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOLOOPS_KERNELMODELS_H
#define SEGUE_LIB_CONVERSION_SEGUETOLOOPS_KERNELMODELS_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue {

/// The base of a model of KernelOpInterface for one op.
template <typename Model, typename OpTy> struct KernelModel : KernelOpInterface::ExternalModel<Model, OpTy> {
  static void attach(mlir::MLIRContext *context) { OpTy::template attachInterface<Model>(*context); }
};

/// Attaches the models of OwnLoops.cpp.
void attachOwnLoops(mlir::MLIRContext *context);

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOLOOPS_KERNELMODELS_H
