//===- Config.h - the config file of a run ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One JSON file says how a run uses memory. Each service owns one section of
// it, `memory.stagehand.conductor_config` for example, and reads that section
// itself; this file knows only which sections there are:
//
//   Config config = Config::load("run.json");       // throws ConfigError
//   ConfigReader reader = config.section("memory.stagehand.conductor_config");
//   ConductorConfig conductor = ConductorConfig::read(reader);
//
// Loading reads every section once, so that whatever is wrong anywhere is said
// before anything is built. A new service adds one line to ConfigSections.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_CONFIG_CONFIG_H
#define SEGUE_RUNTIME_CONFIG_CONFIG_H

#include "segue/runtime/Config/ConfigReader.h"
#include <memory>

namespace segue::inline runtime {

/// One section: where it is, and a function that reads all of it.
struct ConfigSection {
  /// The path of the section, such as "memory.stitch".
  std::string_view path;
  /// Reads every key and calls `finish`; throws ConfigError.
  void (*check)(ConfigReader &reader);
  /// False for a section without the keys of TelemetryConfig. Those of the others are turned off for sessions on a twin.
  bool hasTelemetry = true;
};

/// Returns all sections of this build.
std::span<const ConfigSection> configSections();

class Config {
public:
  /// Makes the config of a file without sections: every service has its defaults.
  Config();
  // A Config that was moved from is what it was.
  Config(const Config &) = default;
  Config &operator=(const Config &) = default;

  /// Reads a file, which may be that of a whole training program: keys of the
  /// file and of `memory` that are none of ours are left to it; see `foreign`.
  /// Throws ConfigError naming file, line and column where it is not JSON, a key
  /// that stands twice, a key within a section that nobody knows (or one of the
  /// shared ones that is nearly ours, as "memry"), or a value that its service
  /// refuses. Throws IoFailed if it cannot be read.
  static Config load(const std::filesystem::path &path);
  /// Reads a text as `load` reads a file; `name` stands for the file in messages.
  static Config parse(std::string_view text, const std::string &name);

  /// Returns the paths of the keys that are none of ours ("model", "memory.strategy"), so
  /// that the user can be told that they have no effect here.
  const std::vector<std::string> &foreign() const & { return foreign_; }
  std::vector<std::string> foreign() && { return foreign_; }

  /// Returns true if the file has this section.
  bool has(std::string_view section) const;
  /// Returns a reader of a section, of an empty object
  /// if the file has none. The config must outlive it.
  ConfigReader section(std::string_view section) const &;
  ConfigReader section(std::string_view section) && = delete;
  /// Returns the section as it was written; an empty object if the file has none.
  Json json(std::string_view section) const;

private:
  const Json *find(std::string_view section) const;

  std::shared_ptr<const Json> root_; // never null
  std::vector<std::string> foreign_;
};

/// Parses JSON text, as Config does: a ConfigError with line and column for
/// bad syntax, for a key that stands twice, for a number that does not fit.
Json parseJson(std::string_view text, const std::string &name);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_CONFIG_CONFIG_H
