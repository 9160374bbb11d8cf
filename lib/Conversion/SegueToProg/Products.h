//===- Products.h - matrix products as commands -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOPROG_PRODUCTS_H
#define SEGUE_LIB_CONVERSION_SEGUETOPROG_PRODUCTS_H

namespace mlir {
class MLIRContext;
}

namespace segue {
/// Attaches CommandOpInterface to `segue.dot_general`.
void attachProducts(mlir::MLIRContext *context);
} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOPROG_PRODUCTS_H
