//===- Completion.h - what a shell completes --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Scripts for bash, zsh and fish that complete the commands of a program, their
// options and the values of these. They are made of the parser's own description:
// who adds an option has nothing to do here.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_COMPLETION_H
#define SEGUE_TOOLS_SEGUERUN_COMPLETION_H

#include <CLI/CLI.hpp>
#include <string>

namespace segue::tool {

/// The shells that there are scripts for.
inline const std::vector<std::string> completedShells = {"bash", "zsh", "fish"};

/// Returns the script of one of them, for `app` and its subcommands.
std::string completionScript(const CLI::App &app, const std::string &shell);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_COMPLETION_H
