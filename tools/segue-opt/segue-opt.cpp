//===- segue-opt.cpp - runs passes on a module ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RepeatedPassOption.h"
#include "../MlirInput.h"
#include "../MlirOutput.h"
#include "../ShortDiagnostics.h"
#include "../ToolCompletion.h"
#include "../ToolVersion.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "segue/Compiler/Registration.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/ToolOutputFile.h"

/// Does what MLIR's driver does, but that bytecode is read from aligned memory.
static llvm::LogicalResult optimize(int argc, char **argv, mlir::DialectRegistry &registry) {
  auto [input, output] = mlir::registerAndParseCLIOptions(argc, argv, "Segue optimizer driver\n", registry);
  auto config = mlir::MlirOptMainConfig::createFromCLOptions();
  if (config.shouldShowDialects() || config.shouldListPasses() ||
      (input == "-" && llvm::sys::Process::StandardInIsUserInput()))
    return mlir::MlirOptMain(argc, argv, input, output, registry);
  llvm::InitLLVM init(argc, argv);
  std::string error;
  std::unique_ptr<llvm::MemoryBuffer> buffer = segue::tool::openAlignedInput(input, &error);
  std::unique_ptr<llvm::ToolOutputFile> file = buffer ? mlir::openOutputFile(output, &error) : nullptr;
  if (!file) {
    llvm::errs() << error << "\n";
    return llvm::failure();
  }
  if (failed(mlir::MlirOptMain(file->os(), std::move(buffer), registry, config)))
    return llvm::failure();
  file->keep();
  return llvm::success();
}

int main(int argc, char **argv) {
  segue::tool::setVersion("segue-opt");
  segue::tool::addCompletion("segue-opt");
  segue::tool::shortenDiagnostics();
  mlir::DialectRegistry registry;
  mlir::registerAllPasses();
  segue::registerAllSegue(registry);
  segue::registerAllSeguePasses();
  if (std::string what = segue::tool::repeatedPassOption(argc, argv); !what.empty()) {
    llvm::errs() << "segue-opt: " << what << "\n";
    return 1;
  }
  return segue::tool::withOutputFile(argc, argv, [&](int count, char **arguments) {
    return succeeded(optimize(count, arguments, registry));
  });
}
