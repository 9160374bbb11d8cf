//===- OpAnswers.cpp - what ops tell the passes ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/IR/OpAnswers.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

KernelRole segue::kernelRoleOf(Operation *op) {
  if (auto kernel = dyn_cast<KernelOpInterface>(op))
    return kernel.getKernelRole();
  return isa<ScalarOpInterface>(op) ? KernelRole::Member : KernelRole::Outside;
}

bool segue::hasLoops(Operation *op) {
  auto kernel = dyn_cast<KernelOpInterface>(op);
  return kernel && kernel.hasKernelLoops();
}

Remake segue::remakeOf(Operation *op) {
  auto cost = dyn_cast<CostOpInterface>(op);
  return cost ? cost.getRemake() : Remake::OnDemand;
}

int64_t segue::elementCostOf(Operation *op) {
  auto cost = dyn_cast<CostOpInterface>(op);
  return cost ? cost.getElementCost() : 1;
}

int64_t segue::flopsOf(Operation *op) {
  auto cost = dyn_cast<CostOpInterface>(op);
  return cost ? cost.getFlops() : 0;
}
