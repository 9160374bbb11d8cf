//===- ByteQuantity.cpp - "512MiB" ----------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/ByteQuantity.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace segue::inline runtime {

static bool isSpace(char c) { return c == ' ' || c == '\t'; }
static char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

std::optional<uint64_t> parseByteQuantity(std::string_view text) {
  static constexpr std::pair<std::string_view, double> units[] = {
      {"", 1},         {"b", 1},        {"kb", 1e3},        {"mb", 1e6},        {"gb", 1e9},
      {"tb", 1e12},    {"kib", 0x1p10}, {"mib", 0x1p20},    {"gib", 0x1p30},    {"tib", 0x1p40}};
  while (!text.empty() && isSpace(text.front()))
    text.remove_prefix(1);
  while (!text.empty() && isSpace(text.back()))
    text.remove_suffix(1);
  if (text.empty() || text.front() < '0' || text.front() > '9')
    return std::nullopt; // from_chars takes a sign, inf and nan
  double number = 0;
  auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc())
    return std::nullopt;
  std::string_view unit = text.substr(size_t(rest - text.data()));
  while (!unit.empty() && isSpace(unit.front()))
    unit.remove_prefix(1);
  for (auto [name, factor] : units) {
    if (!std::ranges::equal(unit, name, {}, lower))
      continue;
    double bytes = std::floor(number * factor);
    if (bytes > double(mostBytesOfQuantity) || (bytes == 0 && number > 0))
      return std::nullopt;
    return uint64_t(bytes);
  }
  return std::nullopt;
}

} // namespace segue::inline runtime
