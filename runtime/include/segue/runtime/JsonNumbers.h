//===- JsonNumbers.h - numbers that JSON does not have ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// JSON has no number for NaN and the infinities. Answers of a replay, records,
// caches and checkpoints have the texts "nan", "inf" and "-inf" in their place;
// null is a number that is not known. Pure functions: any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_JSONNUMBERS_H
#define SEGUE_RUNTIME_JSONNUMBERS_H

#include "segue/runtime/Json.h"
#include <optional>

namespace segue::inline runtime {

/// Returns `value` as a number, or as one of the three texts.
Json numberOrText(double value);

/// Returns the number that `numberOrText` has written, and nothing for every other value.
std::optional<double> numberOf(const Json &value);

/// Replaces every number within `value` that is not finite by its text.
void nameNonFinite(Json &value);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_JSONNUMBERS_H
