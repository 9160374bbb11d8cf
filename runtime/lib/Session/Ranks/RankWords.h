//===- RankWords.h - what ranks say to each other ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_RANKS_RANKWORDS_H
#define SEGUE_RUNTIME_LIB_SESSION_RANKS_RANKWORDS_H

#include "segue/runtime/Json.h"
#include <nlohmann/json.hpp>
#include <string>

namespace segue::inline runtime {

/// Names and messages of others may be no UTF-8.
inline std::string textOf(const Json &json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

inline std::string rankText(size_t rank) { return "rank " + std::to_string(rank); }

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_RANKS_RANKWORDS_H
