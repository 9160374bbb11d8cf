//===- ConfigReader.cpp - typed reading of one config object --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Config/ConfigReader.h"
#include "segue/runtime/NearestName.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The greatest number up to which doubles hold every whole number.
static constexpr double greatestWhole = 9007199254740992.0; // 2^53

bool Range::contains(double value) const {
  return (lowOpen ? value > low : value >= low) && (highOpen ? value < high : value <= high);
}

std::string Range::str() const {
  auto text = [](double number) {
    bool isWhole = number == std::floor(number) && std::abs(number) <= greatestWhole;
    return (isWhole ? Json(int64_t(number)) : Json(number)).dump();
  };
  bool hasLow = std::isfinite(low), hasHigh = std::isfinite(high);
  if (hasLow && hasHigh && !lowOpen && !highOpen)
    return "from " + text(low) + " to " + text(high);
  std::string result;
  if (hasLow)
    result = (lowOpen ? "above " : "at least ") + text(low);
  if (hasHigh)
    result += (hasLow ? " and " : "") + std::string(highOpen ? "below " : "at most ") + text(high);
  return result;
}

/// A value as a message shows it: whole if short.
static std::string shown(const Json &value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

static std::string listed(std::span<const std::string_view> names) {
  std::string result;
  for (size_t i = 0; i < names.size(); ++i)
    result += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
  return result;
}

static std::string element(std::string_view key, size_t index) {
  return std::string(key) + "[" + std::to_string(index) + "]";
}

ConfigReader::ConfigReader(const Json &object, std::string section, Files files)
    : object_(&object), section_(std::move(section)), files_(files) {
  if (!object.is_object())
    throw ConfigError(section_, "", shown(object) + " found, an object {...} allowed", "an object");
}

const Json *ConfigReader::find(std::string_view key) {
  allow(key);
  auto found = object_->find(std::string(key));
  return found == object_->end() ? nullptr : &*found;
}

const Json *ConfigReader::findOptional(std::string_view key) {
  const Json *value = find(key);
  return value && !value->is_null() ? value : nullptr;
}

void ConfigReader::allow(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end())
    known_.emplace_back(key);
}

bool ConfigReader::has(std::string_view key) { return findOptional(key) != nullptr; }

void ConfigReader::refuse(const Json &value, const std::string &key, const std::string &allowed) const {
  throw ConfigError(section_, key, shown(value) + " found, " + allowed + " allowed", allowed);
}

void ConfigReader::fail(std::string_view key, const std::string &rule) const {
  throw ConfigError(section_, std::string(key), rule, rule);
}

void ConfigReader::failValue(std::string_view key, const std::string &allowed) const {
  auto found = object_->find(std::string(key));
  refuse(found == object_->end() ? Json() : *found, std::string(key), allowed);
}

int64_t ConfigReader::checkedInt(const Json &value, const std::string &key, const Range &range) const {
  double number = value.is_number() ? value.get<double>() : NAN;
  if (!(std::fabs(number) <= greatestWhole) || number != std::floor(number) || !range.contains(number)) {
    std::string bounds = range.str();
    refuse(value, key, "a whole number" + (bounds.empty() ? "" : " " + bounds));
  }
  return int64_t(number);
}

double ConfigReader::checkedNumber(const Json &value, const std::string &key, const Range &range) const {
  double number = value.is_number() ? value.get<double>() : NAN;
  if (!std::isfinite(number) || !range.contains(number)) {
    std::string bounds = range.str();
    refuse(value, key, "a number" + (bounds.empty() ? "" : " " + bounds));
  }
  return number;
}

std::string ConfigReader::checkedString(const Json &value, const std::string &key) const {
  if (!value.is_string())
    refuse(value, key, "a text");
  return value.get<std::string>();
}

const Json &ConfigReader::checkedList(const Json &value, std::string_view key) const {
  if (!value.is_array())
    refuse(value, std::string(key), "a list [...]");
  return value;
}

bool ConfigReader::getBool(std::string_view key, bool fallback) {
  const Json *value = find(key);
  if (value && !value->is_boolean())
    refuse(*value, std::string(key), "true or false");
  return value ? value->get<bool>() : fallback;
}

int64_t ConfigReader::getInt(std::string_view key, int64_t fallback, const Range &range) {
  const Json *value = find(key);
  return value ? checkedInt(*value, std::string(key), range) : fallback;
}

std::optional<int64_t> ConfigReader::getOptionalInt(std::string_view key, const Range &range) {
  const Json *value = findOptional(key);
  return value ? std::optional(checkedInt(*value, std::string(key), range)) : std::nullopt;
}

double ConfigReader::getNumber(std::string_view key, double fallback, const Range &range) {
  const Json *value = find(key);
  return value ? checkedNumber(*value, std::string(key), range) : fallback;
}

std::optional<double> ConfigReader::getOptionalNumber(std::string_view key, const Range &range) {
  const Json *value = findOptional(key);
  return value ? std::optional(checkedNumber(*value, std::string(key), range)) : std::nullopt;
}

std::string ConfigReader::getString(std::string_view key, std::string_view fallback) {
  const Json *value = find(key);
  return value ? checkedString(*value, std::string(key)) : std::string(fallback);
}

std::optional<std::string> ConfigReader::getOptionalString(std::string_view key) {
  const Json *value = findOptional(key);
  return value ? std::optional(checkedString(*value, std::string(key))) : std::nullopt;
}

std::optional<size_t> ConfigReader::getChoice(std::string_view key, std::span<const std::string_view> allowed) {
  const Json *value = find(key);
  if (!value)
    return std::nullopt;
  if (value->is_string())
    for (size_t i = 0; i < allowed.size(); ++i)
      if (value->get_ref<const std::string &>() == allowed[i])
        return i;
  refuse(*value, std::string(key), listed(allowed));
}

std::vector<int64_t> ConfigReader::getInts(std::string_view key, std::vector<int64_t> fallback, const Range &range) {
  const Json *value = find(key);
  if (!value)
    return fallback;
  std::vector<int64_t> result;
  for (const Json &item : checkedList(*value, key))
    result.push_back(checkedInt(item, element(key, result.size()), range));
  return result;
}

std::vector<double> ConfigReader::getNumbers(std::string_view key, std::vector<double> fallback, const Range &range) {
  const Json *value = find(key);
  if (!value)
    return fallback;
  std::vector<double> result;
  for (const Json &item : checkedList(*value, key))
    result.push_back(checkedNumber(item, element(key, result.size()), range));
  return result;
}

std::vector<std::string> ConfigReader::getStrings(std::string_view key, std::vector<std::string> fallback) {
  const Json *value = find(key);
  if (!value)
    return fallback;
  std::vector<std::string> result;
  for (const Json &item : checkedList(*value, key))
    result.push_back(checkedString(item, element(key, result.size())));
  return result;
}

std::optional<std::vector<std::string>> ConfigReader::getOptionalStrings(std::string_view key) {
  return has(key) ? std::optional(getStrings(key, {})) : std::nullopt;
}

bool ConfigReader::isList(std::string_view key) {
  const Json *value = find(key);
  return value && value->is_array();
}

std::filesystem::path ConfigReader::getOutputFile(std::string_view key, std::string_view fallback) {
  std::filesystem::path path = getString(key, fallback);
  std::error_code ignored;
  if (path.filename().empty())
    fail(key, "\"" + path.string() + "\" names no file");
  if (files_ == Files::Check && path.has_parent_path() && !std::filesystem::is_directory(path.parent_path(), ignored))
    fail(key, "the folder \"" + path.parent_path().string() + "\" does not exist; make it, or choose another");
  return path;
}

std::optional<std::filesystem::path> ConfigReader::getInputFile(std::string_view key) {
  std::optional<std::string> path = getOptionalString(key);
  std::error_code ignored;
  if (path && files_ == Files::Check && !std::filesystem::is_regular_file(*path, ignored))
    fail(key, "there is no file \"" + *path + "\"");
  return path;
}

void ConfigReader::finish() const {
  for (const auto &[key, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end())
      continue;
    std::vector<std::string_view> names(known_.begin(), known_.end());
    std::string nearest(nearestName(key, names));
    throw ConfigError(section_, key,
                      "unknown key" + (nearest.empty() ? "" : "; the nearest known key is \"" + nearest + "\""),
                      nearest);
  }
}

} // namespace segue::inline runtime
