//===- KernelLaunch.cpp - kernels on this machine's threads ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelLaunch.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include <algorithm>
#include <mutex>

namespace segue::inline runtime {

void launchKernel(const Threads &threads, const Kernel &handle, std::span<void *const> given, int64_t range, int64_t grain,
                  int most) {
  KernelFunction kernel = static_cast<const HostKernel &>(handle).function();
  void *const *args = given.data();
  if (most <= 1) {
    FlushDenormals flush;
    if (int64_t code = kernel(args, 0, range))
      throw KernelFault(code);
    return;
  }
  // The failing piece of the lowest position decides, so that the report does
  // not depend on which thread was first. A piece fails once.
  std::mutex mutex;
  int64_t firstFailure = INT64_MAX, result = 0;
  Threads(std::min(most, threads.count())).parallelFor(range, grain, [&](int64_t begin, int64_t end) {
    int64_t code = kernel(args, begin, end);
    if (code == 0)
      return;
    std::lock_guard lock(mutex);
    if (begin < firstFailure) {
      firstFailure = begin;
      result = code;
    }
  });
  if (result)
    throw KernelFault(result);
}

Error nonFiniteRow(int64_t row) {
  return Error(ErrorCode::NonFinite, "row " + std::to_string(row) +
                                         " holds NaN or infinity, and no scale brings that to a code; find where it "
                                         "comes from, or store the tensor unquantised");
}

void relayoutHere(const CopyPlan &plan, const void *source, void *target, int threads) {
  if (int64_t row = plan.run(source, target, threads); row >= 0)
    throw nonFiniteRow(row);
}

} // namespace segue::inline runtime
