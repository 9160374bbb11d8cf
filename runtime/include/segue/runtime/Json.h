//===- Json.h - the one JSON type of the runtime ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Config files, telemetry records, replay logs, headers of tensor files and
// saved states are values of one type, whose objects keep the order in which
// their keys were put in: a record reads as it was written, and the same events
// give the same bytes. This header only declares it; include
// <nlohmann/json.hpp> to look inside.
//
// All texts are read by readJson, since all may come from elsewhere.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_JSON_H
#define SEGUE_RUNTIME_JSON_H

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace segue::inline runtime {

using Json = nlohmann::ordered_json;

/// The reason why a text was not read.
struct JsonProblem {
  /// A sentence such as "line 3, column 14: syntax error ...", with the place where it is known.
  std::string sentence;
  /// The key that stands twice in one object; empty for other problems.
  std::string key;
};

/// Reads the whole of `text` into `value`, or says what is wrong with it and
/// leaves `value` as it was: no JSON, a key that stands twice in one object, a
/// number that no double holds, or more than 100 levels of objects and lists.
/// Takes time and memory linear in the text, but for sorting the keys of each
/// object. Any thread.
std::optional<JsonProblem> readJson(std::string_view text, Json &value);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_JSON_H
