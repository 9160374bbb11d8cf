//===- Json.cpp - reading JSON from elsewhere -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Json.h"
#include "JsonFields.h"
#include "JsonDepth.h"
#include "segue/runtime/JsonNumbers.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace segue::inline runtime {

/// Returns "line 3, column 14: " for a byte offset.
static std::string position(std::string_view text, size_t offset) {
  std::string_view before = text.substr(0, std::min(offset, text.size()));
  size_t line = 1 + size_t(std::count(before.begin(), before.end(), '\n'));
  size_t lineBegin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(before.size() - lineBegin + 1) + ": ";
}

/// Returns what the parser says, without its tag and its own idea of the position.
static std::string syntaxSentence(std::string_view what) {
  for (std::string_view begin : {"syntax error while parsing", "attempting to parse"})
    if (size_t at = what.find(begin); at != what.npos)
      return std::string(what.substr(at));
  size_t tag = what.find("] ");
  return std::string(what.substr(tag == what.npos ? 0 : tag + 2));
}

namespace {
/// Builds a value from the parser's events. Unlike the library's own builder it
/// looks for no key while it adds one, which takes quadratic time where objects
/// keep their order; keys that stand twice are found when an object ends.
class JsonBuilder : public nlohmann::json_sax<Json> {
public:
  JsonBuilder(std::string_view text, Json &root) : text_(text), root_(root) {}

  JsonProblem problem;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t &) override { return add(value); }
  bool string(string_t &value) override { return add(std::move(value)); }
  bool binary(binary_t &) override { return false; } // no text holds any

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool key(string_t &name) override {
    place_ = &open_.back()->get_ref<Json::object_t &>().emplace_back(std::move(name), Json()).second;
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool end_object() override {
    std::set<std::string_view> keys;
    for (const auto &[key, value] : open_.back()->get_ref<const Json::object_t &>())
      if (!keys.insert(key).second) {
        problem = {"\"" + key + "\": the key stands twice in one object", key};
        return false;
      }
    open_.pop_back();
    return true;
  }

  bool parse_error(size_t byte, const std::string &, const nlohmann::detail::exception &error) override {
    problem.sentence = position(text_, byte ? byte - 1 : 0) + syntaxSentence(error.what());
    return false;
  }

private:
  Json &put(Json value) {
    if (open_.empty())
      return root_ = std::move(value);
    if (open_.back()->is_array())
      return open_.back()->get_ref<Json::array_t &>().emplace_back(std::move(value));
    return *place_ = std::move(value);
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back(&put(std::move(value)));
    return true;
  }

  std::string_view text_;
  Json &root_;
  /// The path from the root to the object or list that grows; only that one grows,
  /// so that the others stay where they are.
  std::vector<Json *> open_;
  /// The place to which the value of the last key goes.
  Json *place_ = nullptr;
};
} // namespace

std::optional<JsonProblem> readJson(std::string_view text, Json &value) {
  if (size_t depth = schema::jsonDepth(text); depth > schema::greatestJsonDepth)
    return JsonProblem{"objects and lists lie " + std::to_string(depth) + " deep in one another; " +
                           std::to_string(schema::greatestJsonDepth) + " levels are read at most",
                       ""};
  // A zero is the end of the text to the parser, whatever follows.
  if (size_t zero = text.find('\0'); zero != text.npos)
    return JsonProblem{position(text, zero) + "a byte of value 0", ""};
  Json read;
  JsonBuilder builder(text, read);
  if (!Json::sax_parse(text.begin(), text.end(), &builder))
    return std::move(builder.problem);
  value = std::move(read);
  return std::nullopt;
}

Json numberOrText(double value) {
  if (std::isfinite(value))
    return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::optional<double> numberOf(const Json &value) {
  if (value.is_number())
    return value.get<double>();
  if (value == "nan")
    return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf" || value == "-inf")
    return value == "inf" ? INFINITY : -INFINITY;
  return std::nullopt;
}

void nameNonFinite(Json &value) {
  if (value.is_structured())
    for (Json &item : value)
      nameNonFinite(item);
  else if (value.is_number_float())
    value = numberOrText(value.get<double>());
}

Json jsonOf(std::initializer_list<JsonField> fields) {
  Json object = Json::object();
  for (const JsonField &field : fields) {
    Json &value = object[field.key_];
    switch (field.kind_) {
    case JsonField::Kind::Int:
      value = field.int_;
      break;
    case JsonField::Kind::Bool:
      value = field.int_ != 0;
      break;
    case JsonField::Kind::Number:
      value = field.number_;
      break;
    case JsonField::Kind::Text:
      value = std::string_view(field.text_, field.length_);
      break;
    case JsonField::Kind::Tree:
      value = *field.tree_;
      break;
    }
  }
  return object;
}

} // namespace segue::inline runtime
