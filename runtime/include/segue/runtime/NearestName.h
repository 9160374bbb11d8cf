//===- NearestName.h - "did you mean" ---------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The end of messages about a name that nobody knows.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_NEARESTNAME_H
#define SEGUE_RUNTIME_NEARESTNAME_H

#include <span>
#include <string>
#include <string_view>

namespace segue::inline runtime {

/// Returns the known name with the least edit distance to `name` (the first of several), or
/// an empty text if none is known.
std::string_view nearestName(std::string_view name, std::span<const std::string_view> known);

/// Returns true if `name` is the known name `of` with a slip of the pen or two: at most a
/// third of its letters, and at most two.
bool isMisspelling(std::string_view name, std::string_view of);

/// Returns "; the nearest is \"x\"", or an empty text if none is known.
std::string nearestHint(std::string_view name, std::span<const std::string_view> known);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_NEARESTNAME_H
