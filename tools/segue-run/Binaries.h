//===- Binaries.h - the files that a command works on -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_BINARIES_H
#define SEGUE_TOOLS_SEGUERUN_BINARIES_H

#include "segue/runtime/Session/Session.h"

namespace segue::tool {

/// Options that every command knows.
struct CommonOptions {
  std::string device = "cpu";
  bool noNative = false;
  bool json = false;
};

/// All bytes of a file, or of stdin for `-`. Throws IoFailed.
std::string readAll(const std::string &path);

/// The binary at `path`; `-` is stdin.
Binary loadBinary(const std::string &path, const CommonOptions &options);

/// Binaries as modules of a session, named after their files ("front" for
/// "out/front.segue"), or by position where that would name two alike.
std::vector<SessionModule> loadModules(const std::vector<std::string> &paths, const CommonOptions &options);

/// Prints what the commands of a program have cost, the dearest first.
void printProfile(const std::string &title, const std::vector<CommandProfile> &profile);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_BINARIES_H
