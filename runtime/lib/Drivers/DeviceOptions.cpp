//===- DeviceOptions.cpp - what stands behind the colon -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DeviceOptions.h"
#include "segue/runtime/ByteQuantity.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace segue::inline runtime {

void DeviceOptions::fail(const std::string &what) const {
  throw Error(ErrorCode::InvalidArgument, "device \"" + driver_ + "\": " + what);
}

DeviceOptions::DeviceOptions(std::string_view driver, std::string_view text) : driver_(driver) {
  while (!text.empty()) {
    std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    size_t equals = item.find('=');
    bool hasValue = equals != std::string_view::npos;
    std::string key(item.substr(0, equals));
    if (key.empty())
      fail("\"" + std::string(item) + "\" is not of the form key=value");
    if (has(key))
      fail("option \"" + key + "\" is given twice");
    options_.push_back({std::move(key), hasValue ? std::string(item.substr(equals + 1)) : "", hasValue});
  }
}

const DeviceOptions::Option *DeviceOptions::find(std::string_view key) const {
  auto found = std::ranges::find(options_, key, &Option::key);
  return found == options_.end() ? nullptr : &*found;
}

void DeviceOptions::requireKnown(std::span<const std::string_view> keys,
                                 std::span<const std::string_view> flags) const {
  for (const Option &option : options_) {
    bool isKey = std::ranges::find(keys, option.key) != keys.end();
    bool isFlag = std::ranges::find(flags, option.key) != flags.end();
    if (!isKey && !isFlag) {
      std::string known;
      for (std::span<const std::string_view> list : {keys, flags})
        for (std::string_view name : list)
          known += (known.empty() ? "" : ", ") + std::string(name);
      fail("there is no option \"" + option.key + "\"; known are " + known);
    }
    if (!isFlag && (!option.hasValue || option.value.empty()))
      fail("option \"" + option.key + "\" needs a value, as in " + option.key + "=value");
    if (!isKey && option.hasValue)
      fail("option \"" + option.key + "\" takes no value");
  }
}

double DeviceOptions::quantity(const Option &option, std::span<const Unit> units, std::string_view example) const {
  double number = 0;
  const char *end = option.value.data() + option.value.size();
  auto [rest, error] = std::from_chars(option.value.data(), end, number);
  if (error == std::errc() && number >= 0 && std::isfinite(number))
    for (const Unit &unit : units)
      if (std::string_view(rest, end) == unit.name)
        return number * unit.factor;
  std::string names;
  for (const Unit &unit : units)
    if (!unit.name.empty())
      names += (names.empty() ? "" : ", ") + std::string(unit.name);
  fail(option.key + "=" + option.value + " is not a quantity such as " + std::string(example) + " (units " + names +
       ")");
}

uint64_t DeviceOptions::bytes(std::string_view key, uint64_t absent) const {
  const Option *option = find(key);
  if (!option)
    return absent;
  std::optional<uint64_t> bytes = parseByteQuantity(option->value);
  if (!bytes)
    fail(option->key + "=" + option->value + " is not " + std::string(byteQuantityForm));
  return *bytes;
}

double DeviceOptions::bytesPerSecond(std::string_view key, double absent) const {
  static constexpr Unit units[] = {{"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}};
  const Option *option = find(key);
  if (!option)
    return absent;
  double rate = quantity(*option, units, "16GB/s");
  if (rate <= 0)
    fail(option->key + "=" + option->value + " must be above 0");
  return rate;
}

double DeviceOptions::seconds(std::string_view key, double absent) const {
  static constexpr Unit units[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  const Option *option = find(key);
  return option ? quantity(*option, units, "10us") : absent;
}

double DeviceOptions::flopsPerSecond(std::string_view key, double absent) const {
  static constexpr Unit units[] = {{"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
  const Option *option = find(key);
  if (!option)
    return absent;
  double rate = quantity(*option, units, "80TFLOP/s");
  if (rate <= 0)
    fail(option->key + "=" + option->value + " must be above 0");
  return rate;
}

uint64_t DeviceOptions::integer(std::string_view key, uint64_t absent, uint64_t least, uint64_t most) const {
  const Option *option = find(key);
  if (!option)
    return absent;
  uint64_t number = 0;
  const char *begin = option->value.data(), *end = begin + option->value.size();
  auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || rest != end || number < least || number > most)
    fail(option->key + "=" + option->value + " is not a number between " + std::to_string(least) + " and " +
         std::to_string(most));
  return number;
}

double DeviceOptions::fraction(std::string_view key, double absent) const {
  const Option *option = find(key);
  if (!option)
    return absent;
  double number = -1;
  const char *begin = option->value.data(), *end = begin + option->value.size();
  auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || rest != end || !(number >= 0 && number <= 1))
    fail(option->key + "=" + option->value + " is not a number from 0 to 1");
  return number;
}

std::string DeviceOptions::text(std::string_view key, std::string_view absent) const {
  const Option *option = find(key);
  return option ? option->value : std::string(absent);
}

void DeviceOptions::set(std::string_view key, std::string_view value) {
  auto found = std::ranges::find(options_, key, &Option::key);
  if (found == options_.end())
    found = options_.insert(found, Option{std::string(key), "", true});
  found->value = value;
  found->hasValue = true;
}

void DeviceOptions::add(const DeviceOptions &other, std::span<const std::string_view> without) {
  for (const Option &option : other.options_)
    if (std::ranges::find(without, option.key) == without.end())
      options_.push_back(option);
}

std::string DeviceOptions::spec() const {
  std::string spec = driver_;
  for (size_t i = 0; i < options_.size(); ++i)
    spec += (i ? "," : ":") + options_[i].key + (options_[i].hasValue ? "=" + options_[i].value : "");
  return spec;
}

} // namespace segue::inline runtime
