//===- ToolCompletion.h - `--completion` of the tools above LLVM -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `eval "$(segue-opt --completion=bash)"`: options, passes and their options, and
// values, as `--help` lists them. LLVM's parser says of itself what an option is
// called; what its values are, each parser of values prints, and tells nobody.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_TOOLCOMPLETION_H
#define SEGUE_TOOLS_TOOLCOMPLETION_H

#include "ShellCompletion.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/CommandLine.h"

namespace segue::tool {

/// Adds the option, which prints the script and ends the program. Called before the command line is parsed. With a
/// category, `--help` lists it there.
void addCompletion(llvm::StringRef tool, llvm::cl::OptionCategory *category = nullptr);

/// Returns the options that a help text of LLVM's lists. What is indented below a pass are keys of its value, as in
/// `--pass=key=value`.
std::vector<CompletedOption> optionsInHelp(llvm::StringRef help);

} // namespace segue::tool

#endif // SEGUE_TOOLS_TOOLCOMPLETION_H
