//===- ErrorOf.h - the error that a call gives ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_ERROROF_H
#define SEGUE_TEST_ERROROF_H

#include "segue/runtime/Error.h"
#include <cstdint>
#include <string>
#include <string_view>
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

/// Bytes that a refusal of a budget names as the smallest; 0: it names none.
inline uint64_t smallestNamed(const std::string &what) {
  static constexpr std::string_view before = "the smallest budget is ";
  size_t at = what.find(before);
  return at == what.npos ? 0 : std::stoull(what.substr(at + before.size()));
}

} // namespace segue::inline runtime

#endif // SEGUE_TEST_ERROROF_H
