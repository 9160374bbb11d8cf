//===- LibraryPlans.h - what plans of library calls are made with -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each Name.cpp of this folder defines operationsOfName(), its operations; CMake makes
// the list of all (LibraryOperations.cpp.in).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_LIBRARYPLANS_H
#define SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_LIBRARYPLANS_H

#include "Scratch.h"
#include "VectorKernels.h"
#include "segue/runtime/Engine/LibraryCall.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/Threads.h"
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace segue::inline runtime {

struct LibraryTools {
  Threads threads;
  std::shared_ptr<Scratch> scratch;
  const VectorKernels &kernels;
  /// Plans a product of the engine.
  std::function<std::shared_ptr<const MatmulPlan>(const MatmulSpec &)> planMatmul;
};

/// "2x3x4", for what is wrong with a call.
inline std::string listed(const std::vector<int64_t> &values) {
  std::string text;
  for (int64_t value : values)
    text += (text.empty() ? "" : "x") + std::to_string(value);
  return text;
}

/// Says what is wrong with a tensor of a product: an element type that is not `like`'s or no float, or a size that may
/// not be counted. Nothing where it fits.
inline std::string findElementsProblem(const LibraryTensor &tensor, const LibraryTensor &like) {
  double elements = 1;
  for (int64_t extent : tensor.shape)
    elements *= double(std::max<int64_t>(extent, 1));
  if (elements > double(1ull << 46))
    return listed(tensor.shape) + " are more than 2^46 elements";
  if (!isComputedInF32(tensor.element) || tensor.element != like.element)
    return "tensors of " + std::string(name(like.element)) + " and " + std::string(name(tensor.element)) +
           "; all are f32, bf16 or f16, and alike";
  return {};
}

/// Flops as a call says them; what does not fit is the greatest number.
inline uint64_t countedFlops(double flops) {
  return flops < 0x1p63 ? uint64_t(flops) : std::numeric_limits<uint64_t>::max();
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_LIBRARYPLANS_H
