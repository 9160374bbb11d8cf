//===- JsonDepth.h - how deep a JSON text may be nested ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Parsers, copies and printers of JSON values call themselves once per level,
// so that a text of a few hundred thousand brackets would end the process for
// want of stack. Runtime and compiler therefore look at the depth of a text
// before they parse it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_SCHEMAS_JSONDEPTH_H
#define SEGUE_SCHEMAS_JSONDEPTH_H

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace segue::schema {

/// Levels of objects and lists that are read. What Segue writes has up to 8.
inline constexpr size_t greatestJsonDepth = 100;

/// The levels of a JSON text; of a text that is none, at least as many as the
/// part before the mistake has.
inline size_t jsonDepth(std::string_view text) {
  size_t depth = 0, greatest = 0;
  bool isString = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (isString) {
      if (c == '\\')
        ++i;
      isString = c != '"';
    } else if (c == '[' || c == '{') {
      greatest = std::max(greatest, ++depth);
    } else if (c == ']' || c == '}') {
      depth -= depth > 0;
    } else {
      isString = c == '"';
    }
  }
  return greatest;
}

} // namespace segue::schema

#endif // SEGUE_SCHEMAS_JSONDEPTH_H
