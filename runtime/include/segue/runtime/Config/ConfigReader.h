//===- ConfigReader.h - typed reading of one config object ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads one JSON object of a config file key by key. Every getter notes its
// key as known and checks the value's type and range; `finish` then refuses
// keys that nobody asked for. A service reads its section like this:
//
//   WidgetConfig WidgetConfig::read(ConfigReader &reader) {
//     WidgetConfig config;
//     config.enabled = reader.getBool("enabled", false);
//     config.slots = reader.getInt("slots", 2, Range::between(1, 64));
//     config.mode = reader.getEnum("mode", Mode::Block, modeNames);
//     config.capMiB = reader.getOptionalNumber("cap_mb", Range::above(0));
//     reader.finish();
//     if (config.capMiB && *config.capMiB < config.slots)
//       reader.fail("cap_mb", "less than a MiB per slot");
//     return config;
//   }
//
// All failures are ConfigErrors that name the key by its whole path. Nothing
// is read from the file system except by the getters that say so, and these
// only if the reader was made to check files: a log that was recorded on
// another machine must replay on this one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_CONFIG_CONFIGREADER_H
#define SEGUE_RUNTIME_CONFIG_CONFIGREADER_H

#include "segue/runtime/Config/ConfigError.h"
#include "segue/runtime/Json.h"
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segue::inline runtime {

/// The range of values that a number may have. A bound belongs to the range unless it is open.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool lowOpen = false, highOpen = false;

  static Range above(double bound) { return {.low = bound, .lowOpen = true}; }
  static Range atLeast(double bound) { return {.low = bound}; }
  static Range between(double low, double high) { return {.low = low, .high = high}; }
  /// Returns the range of numbers greater than `low`, at most `high`: (low, high].
  static Range aboveUpTo(double low, double high) { return {.low = low, .high = high, .lowOpen = true}; }

  bool contains(double value) const;
  /// Returns a text such as "from 1 to 64" or "above 0 and at most 1"; empty if every number is in.
  std::string str() const;
};

class ConfigReader {
public:
  /// Files says whether paths are looked for in the file system.
  enum class Files { Check, Ignore };

  /// Reads `object`, which must outlive the reader. `section` is its dotted
  /// path, for messages. Throws ConfigError if it is not an object.
  ConfigReader(const Json &object, std::string section, Files files = Files::Check);

  const std::string &section() const { return section_; }

  /// Returns true if the key is there with a value other than null. Notes it as known.
  bool has(std::string_view key);

  // Getters. `fallback` is the value of an absent key. A null is a value of
  // the wrong type except for the optional ones, where it means absent.

  bool getBool(std::string_view key, bool fallback);
  /// Reads an integer: 2 and 2.0 are whole numbers.
  int64_t getInt(std::string_view key, int64_t fallback, const Range &range = {});
  std::optional<int64_t> getOptionalInt(std::string_view key, const Range &range = {});
  double getNumber(std::string_view key, double fallback, const Range &range = {});
  std::optional<double> getOptionalNumber(std::string_view key, const Range &range = {});
  std::string getString(std::string_view key, std::string_view fallback);
  std::optional<std::string> getOptionalString(std::string_view key);

  /// Reads one of `names`; the message for any other text lists them all.
  template <typename E>
  E getEnum(std::string_view key, E fallback, std::span<const std::pair<std::string_view, E>> names) {
    std::vector<std::string_view> allowed;
    for (const auto &[name, value] : names)
      allowed.push_back(name);
    std::optional<size_t> found = getChoice(key, allowed);
    return found ? names[*found].second : fallback;
  }

  /// These read lists. A bad element is named by its index: "pinned_pool_classes_mb[2]".
  std::vector<int64_t> getInts(std::string_view key, std::vector<int64_t> fallback, const Range &range = {});
  std::vector<double> getNumbers(std::string_view key, std::vector<double> fallback, const Range &range = {});
  std::vector<std::string> getStrings(std::string_view key, std::vector<std::string> fallback);
  std::optional<std::vector<std::string>> getOptionalStrings(std::string_view key);
  /// Returns true if the value is a list, for keys that hold one number or several.
  bool isList(std::string_view key);

  /// Reads a path that is written to; its folder must exist.
  std::filesystem::path getOutputFile(std::string_view key, std::string_view fallback);
  /// Reads a path that is read from; a file must be there.
  std::optional<std::filesystem::path> getInputFile(std::string_view key);

  /// Notes a key as known without reading it: it belongs to somebody else.
  void allow(std::string_view key);

  /// Refuses keys that nobody asked for, naming the nearest known one.
  void finish() const;

  /// Throws the ConfigError for `key`. `rule` is said in the message and is
  /// the hint: "soft cap above hard cap".
  [[noreturn]] void fail(std::string_view key, const std::string &rule) const;
  /// Throws as `fail` does, and says the value that was found: "65 found, from 1 to 64 allowed".
  [[noreturn]] void failValue(std::string_view key, const std::string &allowed) const;

private:
  const Json *find(std::string_view key);
  const Json *findOptional(std::string_view key);
  std::optional<size_t> getChoice(std::string_view key, std::span<const std::string_view> allowed);
  int64_t checkedInt(const Json &value, const std::string &key, const Range &range) const;
  double checkedNumber(const Json &value, const std::string &key, const Range &range) const;
  std::string checkedString(const Json &value, const std::string &key) const;
  const Json &checkedList(const Json &value, std::string_view key) const;
  [[noreturn]] void refuse(const Json &value, const std::string &key, const std::string &allowed) const;

  const Json *object_;
  std::string section_;
  Files files_;
  std::vector<std::string> known_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_CONFIG_CONFIGREADER_H
