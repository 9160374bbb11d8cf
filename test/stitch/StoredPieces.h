//===- StoredPieces.h - compiled modules in a folder ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Builds under a sanitizer have the runtime alone. What a build with a compiler
// answered to the calls of CompilePieces.h, while SEGUE_PIECES named a folder, is
// found there under the same questions by a build without one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_STOREDPIECES_H
#define SEGUE_TEST_STITCH_STOREDPIECES_H

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace segue::test {

/// The folder, or null.
inline const char *storedPieces() { return std::getenv("SEGUE_PIECES"); }

/// The file for the answer to `call` with `words`.
inline std::filesystem::path storedPiece(const std::string &call, const std::vector<std::string> &words) {
  std::string all;
  for (const std::string &word : words)
    all += std::to_string(word.size()) + ":" + word;
  // The same for both builds: one standard library.
  return std::filesystem::path(storedPieces()) /
         (call + "-" + std::to_string(all.size()) + "-" + std::to_string(std::hash<std::string>()(all)));
}

/// Stores an answer, if there is a folder; returns it.
inline std::string storePiece(const std::string &call, const std::vector<std::string> &words, std::string answer) {
  if (storedPieces() &&
      !std::ofstream(storedPiece(call, words), std::ios::binary).write(answer.data(), std::streamsize(answer.size())))
    throw std::runtime_error(std::string("SEGUE_PIECES: cannot write to ") + storedPieces());
  return answer;
}

inline std::string loadPiece(const std::string &call, const std::vector<std::string> &words) {
  if (!storedPieces())
    throw std::runtime_error("built without a compiler: SEGUE_PIECES must name the folder that a build with one has "
                             "filled with the same tests");
  std::ifstream file(storedPiece(call, words), std::ios::binary);
  if (!file)
    throw std::runtime_error("no " + storedPiece(call, words).string() + ": run the same tests with SEGUE_PIECES=" +
                             storedPieces() + " in a build with a compiler first");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_STOREDPIECES_H
