//===- NumberOptions.cpp - numbers on the command line --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "NumberOptions.h"
#include "segue/runtime/ByteQuantity.h"
#include <charconv>
#include <cmath>

namespace segue::tool {

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
    std::optional<uint64_t> bytes = parseByteQuantity(text);
    if (!bytes || !*bytes)
      return refused(text, "bytes from 1 to 8192TiB, " + std::string(byteQuantityForm) + ",");
    text = std::to_string(*bytes);
    return std::string();
  };
  return CLI::Validator(check, "bytes from 1 to 8192TiB");
}

CLI::Option *addChecked(CLI::Option *option, CLI::Validator check) {
  std::string range = check.get_description();
  return option->transform(check.description(""))->type_name(range);
}

} // namespace segue::tool
