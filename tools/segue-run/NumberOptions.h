//===- NumberOptions.h - numbers on the command line ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every numeric option of segue-run is added here, with the range that it has:
// the parser of the command line takes -1 for a size and the greatest number
// for one that is too great. What is refused is named with the option and its
// range: "--repeat: 1e9 found, a whole number from 1 to 1000000 allowed".
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_NUMBEROPTIONS_H
#define SEGUE_TOOLS_SEGUERUN_NUMBEROPTIONS_H

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace segue::tool {

/// A whole number in decimal digits, from `low` to `high`, into `target`: an
/// int64_t or an optional one.
template <typename Target>
CLI::Option *addWhole(CLI::App *command, const std::string &names, Target &target, int64_t low, int64_t high,
                      const std::string &help);

/// A finite number from `low` to `high`, into a double or an optional one.
template <typename Target>
CLI::Option *addReal(CLI::App *command, const std::string &names, Target &target, double low, double high,
                     const std::string &help);

/// Bytes, from 1 on, as `parseByteQuantity` reads them. Into a uint64_t, or into a vector to which each time that it is given adds one.
template <typename Target>
CLI::Option *addBytes(CLI::App *command, const std::string &names, Target &target, const std::string &help);

// The validators that check and convert such options; the range is their description.
CLI::Validator wholeNumber(int64_t low, int64_t high);
CLI::Validator realNumber(double low, double high);
CLI::Validator byteQuantity();
/// Gives the option the check; --help shows the range in place of a type.
CLI::Option *addChecked(CLI::Option *option, CLI::Validator check);

template <typename Target>
CLI::Option *addWhole(CLI::App *command, const std::string &names, Target &target, int64_t low, int64_t high,
                      const std::string &help) {
  return addChecked(command->add_option(names, target, help), wholeNumber(low, high));
}

template <typename Target>
CLI::Option *addReal(CLI::App *command, const std::string &names, Target &target, double low, double high,
                     const std::string &help) {
  return addChecked(command->add_option(names, target, help), realNumber(low, high));
}

template <typename Target>
CLI::Option *addBytes(CLI::App *command, const std::string &names, Target &target, const std::string &help) {
  return addChecked(command->add_option(names, target, help), byteQuantity())->allow_extra_args(false);
}

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_NUMBEROPTIONS_H
