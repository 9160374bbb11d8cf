//===- CompareAnswer.h - an answer against what was expected ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_REPLAY_COMPAREANSWER_H
#define SEGUE_TOOLS_SEGUERUN_REPLAY_COMPAREANSWER_H

#include "segue/runtime/Json.h"
#include <string>
#include <vector>

namespace segue::tool {

/// Returns what differs, one line each: "granted_mb: 2500 expected, 2000 found".
/// Only the keys of `expected` count, in objects within it too; lists agree
/// element by element, so [] is exactly empty; numbers to 1e-9 of the greater
/// one, except that a key that ends in `_below` expects a bound; null agrees
/// with a key that is not there.
std::vector<std::string> compareAnswer(const Json &expected, const Json &answer);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_REPLAY_COMPAREANSWER_H
