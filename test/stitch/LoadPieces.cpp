//===- LoadPieces.cpp - modules that another build has compiled -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// CompilePieces.cpp for builds without a compiler.
//
//===----------------------------------------------------------------------===//

#include "CompilePieces.h"
#include "StoredPieces.h"
#include <sstream>

using namespace segue::test;

std::string segue::test::compileModule(const std::string &text, bool training) {
  return loadPiece("module", {text, std::to_string(training)});
}

std::string segue::test::compileJoined(const std::vector<std::string> &modules, const std::vector<std::string> &outputs,
                                       bool training) {
  std::vector<std::string> words = modules;
  words.insert(words.end(), outputs.begin(), outputs.end());
  words.push_back(std::to_string(training));
  return loadPiece("joined", words);
}

std::set<std::string> segue::test::libraryCalls(const std::string &file) {
  std::istringstream lines(loadPiece("calls", {file}));
  std::set<std::string> calls;
  for (std::string call; std::getline(lines, call);)
    calls.insert(call);
  return calls;
}
