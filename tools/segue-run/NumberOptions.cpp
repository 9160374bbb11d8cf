//===- NumberOptions.cpp - numbers on the command line --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "NumberOptions.h"
#include <charconv>
#include <cmath>

namespace segue::tool {

/// Bytes that a double holds exactly, hence every figure that is made of them.
static constexpr uint64_t greatestBytes = uint64_t(1) << 53;

static std::string refused(const std::string &text, const std::string &allowed) {
  return text.substr(0, 40) + (text.size() > 40 ? "..." : "") + " found, " + allowed + " allowed";
}

/// All of `text` as a number; false if it is none or does not fit.
template <typename Number> static bool parse(const std::string &text, Number &number) {
  const char *end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

static std::string shown(double number) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

CLI::Validator wholeNumber(int64_t low, int64_t high) {
  std::string range = "from " + std::to_string(low) + " to " + std::to_string(high);
  auto check = [=](std::string &text) {
    int64_t number = 0;
    bool isGood = parse(text, number) && number >= low && number <= high;
    return isGood ? std::string() : refused(text, "a whole number " + range);
  };
  return CLI::Validator(check, "whole number " + range);
}

CLI::Validator realNumber(double low, double high) {
  std::string range = "from " + shown(low) + " to " + shown(high);
  auto check = [=](std::string &text) {
    double number = 0;
    bool isGood = parse(text, number) && number >= low && number <= high; // false for NaN
    return isGood ? std::string() : refused(text, "a number " + range);
  };
  return CLI::Validator(check, "number " + range);
}

CLI::Validator byteQuantity() {
  auto check = [](std::string &text) {
    static constexpr std::pair<std::string_view, int> units[] = {{"", 0},     {"B", 0},    {"KiB", 10},
                                                                 {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    double number = 0;
    const char *end = text.data() + text.size();
    auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
    for (auto [unit, power] : units)
      if (error == std::errc() && std::string_view(rest, end) == unit) {
        double bytes = std::ldexp(number, power);
        if (bytes >= 1 && bytes <= double(greatestBytes) && bytes == std::floor(bytes)) {
          text = std::to_string(uint64_t(bytes));
          return std::string();
        }
      }
    return refused(text, "a whole number of bytes from 1 to 8192TiB, such as 512MiB,");
  };
  return CLI::Validator(check, "bytes from 1 to 8192TiB");
}

CLI::Option *addChecked(CLI::Option *option, CLI::Validator check) {
  std::string range = check.get_description();
  return option->transform(check.description(""))->type_name(range);
}

} // namespace segue::tool
