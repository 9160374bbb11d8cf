//===- SimQueues.cpp - who runs the work of a simulated device ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimQueues.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

void SimQueues::requireReached(const Fence &fence, std::string_view who) const {
  for (Queue queue : allQueues)
    if (fence[queue] > position(queue))
      throw Error(ErrorCode::InvalidArgument, std::string(who) + " waits for entry " + std::to_string(fence[queue]) +
                                                  " of queue " + std::string(name(queue)) + ", which has had " +
                                                  std::to_string(position(queue)));
}

} // namespace segue::inline runtime
