//===- ToolVersion.h - `--version` of the drivers above LLVM ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_TOOLVERSION_H
#define SEGUE_TOOLS_TOOLVERSION_H

#include "llvm/Config/llvm-config.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/raw_ostream.h"

namespace segue::tool {

/// Makes `--version` say the version of Segue, and of the LLVM below it. Called before the command line is parsed.
inline void setVersion(llvm::StringRef tool) {
  llvm::cl::SetVersionPrinter([name = tool.str()](llvm::raw_ostream &os) {
    os << name << " " SEGUE_VERSION " (LLVM " LLVM_VERSION_STRING ")\n";
  });
}

} // namespace segue::tool

#endif // SEGUE_TOOLS_TOOLVERSION_H
