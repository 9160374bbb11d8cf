//===- OneThreadScope.h - oneDNN makes serial primitives --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_ENGINE_ONETHREADSCOPE_H
#define SEGUE_LIB_ENGINE_ONETHREADSCOPE_H

#include <omp.h>

namespace segue::inline runtime {

/// oneDNN looks at OpenMP's thread count when it makes a primitive, and blocks for it: 1
/// while an object of this class lives, as pieces run serially. For this thread alone.
class OneThreadScope {
public:
  OneThreadScope() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThreadScope() { omp_set_num_threads(saved_); }
  OneThreadScope(const OneThreadScope &) = delete;
  OneThreadScope &operator=(const OneThreadScope &) = delete;

private:
  int saved_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_ENGINE_ONETHREADSCOPE_H
