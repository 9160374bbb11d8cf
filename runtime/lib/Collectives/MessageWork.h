//===- MessageWork.h - what all messages to ranks have in common *- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All ways of sending tensors to other ranks have this: what is refused, what a trace has of it, and
// how a rank is told that another one has not what it was to send.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_COLLECTIVES_MESSAGEWORK_H
#define SEGUE_LIB_COLLECTIVES_MESSAGEWORK_H

#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

/// Throws unless `tensor` can be sent from `device`: dense, and of f32 in a sum.
void requireMessage(const DeviceRef &device, std::string_view what, const Tensor &tensor, bool isSum);
/// Throws unless there is such a rank.
void requireRank(int rank, int ranks);
/// Throws unless `whole` is as large as the parts of all ranks.
void requireParts(const Tensor &whole, const Tensor &part, int ranks);

/// Returns what a rank gets in the place of a tensor that `rank` never had. What one rank alone has is told apart from
/// numbers that are none: nobody adds it up and looks at the sum.
Error notThere(int rank);

/// Has `work`, which is yet to be given to the network's queue, in the trace of the device, if there is one.
void traceMessage(Device &device, Work &work, uint64_t bytes, std::string_view about = {});

} // namespace segue::inline runtime

#endif // SEGUE_LIB_COLLECTIVES_MESSAGEWORK_H
