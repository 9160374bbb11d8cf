//===- segue-lsp-server.cpp - our dialects in an editor -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With no argument but those of an editor's session, pages of our dialects are added
// to what MLIR's server says; what prints and ends (`--help`), or tests that server
// (`--lit-test`), is left to it.
//
//===----------------------------------------------------------------------===//

#include "../ShortDiagnostics.h"
#include "../ToolCompletion.h"
#include "../ToolVersion.h"
#include "ServerBehind.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"
#include "segue/Compiler/Registration.h"
#include <algorithm>

int main(int argc, char **argv) {
  segue::tool::setVersion("segue-lsp-server");
  segue::tool::addCompletion("segue-lsp-server");
  segue::tool::shortenDiagnostics();
  mlir::DialectRegistry registry;
  segue::registerAllSegue(registry);
  auto serve = [&] { return int(failed(mlir::MlirLspServerMain(argc, argv, registry))); };
  bool isSession = std::all_of(argv + 1, argv + argc, [](std::string_view argument) {
    return argument.starts_with("--log=") || argument.starts_with("-log=") || argument == "--pretty";
  });
  return isSession ? segue::tool::serveBehind(serve) : serve();
}
