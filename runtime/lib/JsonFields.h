//===- JsonFields.h - an object of plain fields -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A list of Json's own pairs builds and destroys a tree for each key and value where
// it stands: a record of 25 figures took 5 KB of code. This one is data:
//
//   Json record = jsonOf({{"step", step}, {"stall_ms", stallMs}, {"aborted", aborted}});
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_JSONFIELDS_H
#define SEGUE_LIB_JSONFIELDS_H

#include "segue/runtime/Json.h"
#include <concepts>
#include <cstdint>
#include <initializer_list>

namespace segue::inline runtime {

/// One key with its value. It lives as long as the list that it stands in, and refers to a
/// value that is a tree or a text.
class JsonField {
public:
  template <std::integral T>
  JsonField(const char *key, T value) : key_(key), kind_(std::same_as<T, bool> ? Kind::Bool : Kind::Int), int_(int64_t(value)) {}
  JsonField(const char *key, double value) : key_(key), kind_(Kind::Number), number_(value) {}
  JsonField(const char *key, std::string_view text)
      : key_(key), kind_(Kind::Text), length_(text.size()), text_(text.data()) {}
  JsonField(const char *key, const char *text) : JsonField(key, std::string_view(text)) {}
  JsonField(const char *key, const std::string &text) : JsonField(key, std::string_view(text)) {}
  JsonField(const char *key, const Json &tree) : key_(key), kind_(Kind::Tree), tree_(&tree) {}

private:
  friend Json jsonOf(std::initializer_list<JsonField> fields);

  enum class Kind : uint8_t { Int, Bool, Number, Text, Tree };
  const char *key_;
  Kind kind_;
  size_t length_ = 0;
  union {
    int64_t int_;
    double number_;
    const char *text_;
    const Json *tree_;
  };
};

/// Returns an object with these fields in their order.
Json jsonOf(std::initializer_list<JsonField> fields);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_JSONFIELDS_H
