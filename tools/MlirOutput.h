//===- MlirOutput.h - `-o` of the drivers that MLIR brings ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR's drivers empty their output file before they begin, and remove it (or the
// link that it was named by) when they fail. Here they write to the partial file
// of an OutputFile, which takes its place when they have succeeded.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_MLIROUTPUT_H
#define SEGUE_TOOLS_MLIROUTPUT_H

#include "segue/runtime/Error.h"
#include "segue/runtime/OutputFile.h"
#include "llvm/Support/raw_ostream.h"
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace segue::tool {

/// Calls `driver(argc, argv)`, which returns true for success, with its `-o`
/// led to a partial file. Returns the exit status.
template <typename Driver> int withOutputFile(int argc, char **argv, Driver &&driver) {
  std::vector<char *> arguments(argv, argv + argc);
  std::string given; // `-o` and its value, in one argument
  std::string path;
  size_t place = 0;
  for (size_t i = 1; i < arguments.size(); ++i) {
    std::string_view text = arguments[i];
    if (text == "--")
      break;
    if ((text == "-o" || text == "--o") && i + 1 < arguments.size()) {
      path = arguments[i + 1];
      arguments.erase(arguments.begin() + ptrdiff_t(i));
      place = i;
    } else if (text.starts_with("-o=") || text.starts_with("--o=")) {
      path = text.substr(text.find('=') + 1);
      place = i;
    }
  }
  try {
    std::optional<OutputFile> file;
    if (place) {
      given = "-o=" + path;
      if (path != "-")
        if (std::string partial = OutputFile::partialOf(path).string(); !partial.empty()) {
          file.emplace(path);
          given = "-o=" + partial;
        }
      arguments[place] = given.data();
    }
    arguments.push_back(nullptr);
    bool isDone = driver(int(arguments.size()) - 1, arguments.data());
    if (isDone && file)
      file->commit();
    return isDone ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const segue::Error &error) {
    llvm::errs() << error.what() << "\n";
    return EXIT_FAILURE;
  }
}

} // namespace segue::tool

#endif // SEGUE_TOOLS_MLIROUTPUT_H
