//===- CountNonFinite.h - NaN and Inf of a tensor ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TENSOR_COUNTNONFINITE_H
#define SEGUE_LIB_TENSOR_COUNTNONFINITE_H

#include "segue/runtime/Engine/NonFinite.h"
#include "segue/runtime/Tensor/Tensor.h"

namespace segue::inline runtime {

/// Queues, behind what writes `value`, one pass over its bytes on the compute queue, which
/// it splits over the device's threads. `value` is stored as its element type, a float.
/// Allocates little, does not wait. On a device without bytes it takes its time there and
/// finds nothing; it also does not look at a value that was never written because its
/// writer has failed.
std::shared_ptr<const NonFiniteCount> countNonFinite(const Tensor &value, Fence &done);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_TENSOR_COUNTNONFINITE_H
