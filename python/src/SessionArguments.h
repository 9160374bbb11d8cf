//===- SessionArguments.h - a session as Python says it ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Modules, ties and wires in the plain types that cross from Python; the same
// for a session that trains and for one that is only planned. And its config, which a
// page of a run has, too.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_SESSIONARGUMENTS_H
#define SEGUE_PYTHON_SESSIONARGUMENTS_H

#include "segue/runtime/Session/Session.h"
#include <filesystem>
#include <optional>
#include <string>

namespace segue::python {

/// Name and binary of each module.
using NamedBinaries = std::vector<std::pair<std::string, Binary>>;
/// Groups of module and name.
using Ties = std::vector<std::vector<std::pair<std::string, std::string>>>;
/// Module, input, module, output.
using Wires = std::vector<std::tuple<std::string, std::string, std::string, std::string>>;

inline std::vector<SessionModule> sessionModules(const NamedBinaries &given) {
  std::vector<SessionModule> modules;
  for (const auto &[name, binary] : given)
    modules.push_back({name, binary});
  return modules;
}

inline SessionOptions sessionOptions(double maxGradNorm, const Ties &tied, const Wires &wires) {
  SessionOptions options;
  options.maxGradNorm = maxGradNorm;
  for (const auto &group : tied) {
    options.tied.emplace_back();
    for (const auto &[module, name] : group)
      options.tied.back().push_back({module, name});
  }
  for (const auto &[module, input, fromModule, output] : wires)
    options.wires.push_back({module, input, fromModule, output});
  return options;
}

/// Reads a config from a file, or from the text that would stand in one.
inline std::optional<Config> configOf(const std::optional<std::filesystem::path> &path,
                                      const std::optional<std::string> &text) {
  if (path)
    return Config::load(*path);
  return text ? std::optional(Config::parse(*text, "config")) : std::nullopt;
}

} // namespace segue::python

#endif // SEGUE_PYTHON_SESSIONARGUMENTS_H
