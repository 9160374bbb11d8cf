//===- Derivatives.cpp - derivatives of the segue dialect -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/Derivatives/Derivatives.h"

#include "GradientBuilder.h"
#include "mlir/IR/DialectRegistry.h"

using namespace mlir;
using namespace segue;

void segue::registerDerivatives(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, SegueDialect *) {
    attachContractionDerivatives(context);
    attachElementwiseDerivatives(context);
    attachIndexingDerivatives(context);
    attachNormalizationDerivatives(context);
    attachShapeDerivatives(context);
  });
}
