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
#include "segue/runtime/Engine/Threads.h"

namespace segue::inline runtime {

struct LibraryTools {
  Threads threads;
  std::shared_ptr<Scratch> scratch;
  const VectorKernels &kernels;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_LIBRARYPLANS_H
