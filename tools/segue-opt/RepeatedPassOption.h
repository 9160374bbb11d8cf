//===- RepeatedPassOption.h - keys that stand twice for one pass *- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR takes the last of several values for one option of a pass and says nothing of
// the others, so that a misspelt copy of a line changes what is run.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUE_OPT_REPEATEDPASSOPTION_H
#define SEGUE_TOOLS_SEGUE_OPT_REPEATEDPASSOPTION_H

#include <string>

namespace segue::tool {

/// Returns what is wrong with the options of passes and pipelines on a command line, `--pass="key=1 key=2"` and those
/// of `--pass-pipeline`: the first key that stands twice for one of them. Empty if none does. Passes are registered.
std::string repeatedPassOption(int argc, char **argv);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUE_OPT_REPEATEDPASSOPTION_H
