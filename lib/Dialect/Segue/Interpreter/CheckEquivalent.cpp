//===- CheckEquivalent.cpp - compares two functions on random inputs ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"
#include "segue/Dialect/Segue/Interpreter/Passes.h"
#include <cmath>

namespace segue {
#define GEN_PASS_DEF_CHECKEQUIVALENT
#include "segue/Dialect/Segue/Interpreter/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

namespace {
struct CheckEquivalent : segue::impl::CheckEquivalentBase<CheckEquivalent> {
  using CheckEquivalentBase::CheckEquivalentBase;

  func::FuncOp find(StringRef name) {
    auto function = getOperation().lookupSymbol<func::FuncOp>(name);
    if (!function)
      getOperation().emitError() << "has no function `" << name << "` to compare";
    return function;
  }

  LogicalResult compare(func::FuncOp first, func::FuncOp second, uint64_t seed) {
    FailureOr<SmallVector<HostTensor>> arguments = interpreter::randomArguments(first, seed);
    if (failed(arguments))
      return failure();
    FailureOr<SmallVector<HostTensor>> x = interpret(first, *arguments), y = interpret(second, *arguments);
    if (failed(x) || failed(y))
      return failure();
    for (auto [i, left, right] : llvm::enumerate(*x, *y)) {
      std::string difference = findDifference(left, right, atol, rtol);
      if (!difference.empty())
        return second.emitError() << "result " << i << " of `" << first.getName() << "` and of `" << second.getName()
                                  << "` differ with seed " << seed << " " << difference;
    }
    return success();
  }

  /// Refuses values that would pass whatever the functions give, or nothing, or never end.
  LogicalResult checkOptions() {
    constexpr unsigned mostTrials = 1'000'000;
    if (trials < 1 || trials > mostTrials)
      return getOperation().emitError() << "`segue-check-equivalent` was given trials = " << unsigned(trials)
                                        << "; it must be from 1 to " << mostTrials;
    for (auto [option, value] : {std::pair<StringRef, double>("atol", atol), {"rtol", rtol}})
      if (!(value >= 0) || !std::isfinite(value))
        return getOperation().emitError() << "`segue-check-equivalent` was given " << option << " = " << value
                                          << "; it must be 0 or more, and finite";
    return success();
  }

  void runOnOperation() override {
    if (failed(checkOptions()))
      return signalPassFailure();
    func::FuncOp first = find(a), second = find(b);
    if (!first || !second)
      return signalPassFailure();
    if (first.getFunctionType() != second.getFunctionType()) {
      second.emitError() << "has type " << second.getFunctionType() << ", but `" << first.getName() << "` has "
                         << first.getFunctionType();
      return signalPassFailure();
    }
    for (unsigned trial = 0; trial < trials; ++trial)
      if (failed(compare(first, second, fillSeed + trial)))
        return signalPassFailure();
  }
};
} // namespace
