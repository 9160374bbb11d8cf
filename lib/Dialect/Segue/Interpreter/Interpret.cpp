//===- Interpret.cpp - runs a function in the reference interpreter -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"
#include "segue/Dialect/Segue/Interpreter/Passes.h"
#include "llvm/Support/raw_ostream.h"

namespace segue {
#define GEN_PASS_DEF_INTERPRET
#include "segue/Dialect/Segue/Interpreter/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

FailureOr<SmallVector<HostTensor>> segue::interpreter::randomArguments(func::FuncOp function, uint64_t seed) {
  SmallVector<HostTensor> arguments;
  for (auto [i, type] : llvm::enumerate(function.getArgumentTypes())) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || !tensor.hasStaticShape() || !tensor.getElementType().isIntOrFloat())
      return function.emitError() << "argument " << i << " is " << type << "; only static tensors can be filled";
    if (failed(verifySize(function, type)))
      return failure();
    arguments.push_back(HostTensor::random(tensor, (seed << 16) + i));
  }
  return arguments;
}

/// The most elements of a result that are printed.
static constexpr int64_t kPrintedElements = 4096;

namespace {
struct Interpret : segue::impl::InterpretBase<Interpret> {
  using InterpretBase::InterpretBase;

  LogicalResult run(func::FuncOp function) {
    FailureOr<SmallVector<HostTensor>> arguments = interpreter::randomArguments(function, fillSeed);
    if (failed(arguments))
      return failure();
    FailureOr<SmallVector<HostTensor>> results = interpret(function, *arguments);
    if (failed(results))
      return failure();
    if (print)
      for (auto [i, result] : llvm::enumerate(*results))
        llvm::outs() << function.getName() << " result " << i << ": " << result.str(kPrintedElements) << "\n";
    return success();
  }

  void runOnOperation() override {
    if (all) {
      for (auto function : getOperation().getOps<func::FuncOp>())
        if (!function.isDeclaration() && failed(run(function)))
          signalPassFailure();
      return;
    }
    auto function = getOperation().lookupSymbol<func::FuncOp>(entry);
    if (!function) {
      getOperation().emitError() << "has no function `" << entry << "` to interpret";
      return signalPassFailure();
    }
    if (failed(run(function)))
      signalPassFailure();
  }
};
} // namespace
