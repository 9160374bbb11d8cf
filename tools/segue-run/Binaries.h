//===- Binaries.h - the files that a command works on -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_BINARIES_H
#define SEGUE_TOOLS_SEGUERUN_BINARIES_H

#include "segue/runtime/Session/Session.h"
#include <optional>

namespace segue::tool {

/// Options that every command knows.
struct CommonOptions {
  std::string device = "cpu";
  /// Whether machine code of files that this user has not signed is run, and whether none is run at all.
  bool allowNative = false, noNative = false;
  bool json = false;
};

/// All bytes of a file, or of stdin for `-`. Throws IoFailed.
std::string readAll(const std::string &path);

/// The binary at `path`; `-` is stdin.
Binary loadBinary(const std::string &path, const CommonOptions &options);

/// Returns the name that the programs of a file go by: "front" for "out/front.segue".
std::string moduleName(const std::string &path);

/// Returns binaries as modules of a session, named after their files, or by position if
/// that would name two alike.
std::vector<SessionModule> loadModules(const std::vector<std::string> &paths, const CommonOptions &options);

/// Splits `left=right`, as it stands in --tie and --wire. Throws InvalidArgument.
std::pair<std::string, std::string> splitPair(const std::string &text, const char *flag);

/// Splits `module.name`: the module is the one whose name and a point it begins with;
/// nothing if there is none.
std::optional<ParameterRef> splitModule(const std::string &text, const std::vector<std::string> &modules);
/// Finds what the one above finds, or throws NameUnknown.
ParameterRef requireModule(const std::string &text, const std::vector<std::string> &modules);

/// Adds `--tie` and `--wire` of a command, for these modules. Throws InvalidArgument and
/// NameUnknown.
void addTiesAndWires(SessionOptions &options, const std::vector<SessionModule> &modules,
                     const std::vector<std::string> &tied, const std::vector<std::string> &wires);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_BINARIES_H
