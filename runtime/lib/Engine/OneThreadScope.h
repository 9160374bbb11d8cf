//===- OneThreadScope.h - oneDNN works on one thread ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_ENGINE_ONETHREADSCOPE_H
#define SEGUE_LIB_ENGINE_ONETHREADSCOPE_H

#include "OpenMp.h"

namespace segue::inline runtime {

/// Sets OpenMP's thread count to 1 for this thread while an object of this class lives.
/// oneDNN looks at that count when it makes a primitive, whose blocks it cuts for that many
/// threads, and when it runs one. A piece is the work of one thread.
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
