//===- ServerBehind.h - MLIR's language server, and what we add -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR's server is one function from stdin to stdout, which cannot be extended. It
// runs in a child process here, and its messages pass through this one, which adds
// the pages of our dialects to hovers and completions, and says whose server it is.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUELSPSERVER_SERVERBEHIND_H
#define SEGUE_TOOLS_SEGUELSPSERVER_SERVERBEHIND_H

#include <functional>

namespace segue::tool {

/// Runs `serve` in a child process whose stdin and stdout are ours by way of what is added. Returns its exit status.
/// Called while there is one thread.
int serveBehind(const std::function<int()> &serve);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUELSPSERVER_SERVERBEHIND_H
