//===- Completion.h - what a shell completes of segue-run -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The commands of CLI11's parser, as ShellCompletion.h wants them.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_COMPLETION_H
#define SEGUE_TOOLS_SEGUERUN_COMPLETION_H

#include "../ShellCompletion.h"
#include <CLI/CLI.hpp>

namespace segue::tool {

/// Returns what `app` and its subcommands take.
CompletedProgram completedProgram(const CLI::App &app);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_COMPLETION_H
