//===- ErrorOf.h - the error that a call gives ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_ERROROF_H
#define SEGUE_TEST_ERROROF_H

#include "segue/runtime/Error.h"
#include <string>
#include <utility>

namespace segue::inline runtime {

/// Code and sentence of the error that `call` gives; of none, a code that no
/// error has.
template <typename Call> std::pair<ErrorCode, std::string> errorOf(Call &&call) {
  try {
    call();
  } catch (const Error &error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode(-1), "nothing was thrown"};
}

} // namespace segue::inline runtime

#endif // SEGUE_TEST_ERROROF_H
