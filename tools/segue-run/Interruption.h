//===- Interruption.h - a signal that ends a run in order -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// While one of these exists, the first SIGINT or SIGTERM is noted and the run
// goes on to where it asks; the second ends the process at once, as it would
// have without:
//
//   Interruption interruption;
//   for (...) {
//     step();
//     if (interruption.signal())
//       break;
//   }
//   save();
//   return interruption.status(Done);
//
// A signal that was ignored before (nohup) stays ignored. One at a time, on the
// main thread; the signal may come on any.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_INTERRUPTION_H
#define SEGUE_TOOLS_SEGUERUN_INTERRUPTION_H

#include <csignal>
#include <filesystem>
#include <string>

namespace segue::tool {

class Interruption {
public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption &) = delete;
  Interruption &operator=(const Interruption &) = delete;

  /// The signal that came, or 0.
  int signal() const;
  /// Returns 128 and the signal, as a shell has it; `otherwise` if none came.
  int status(int otherwise) const;

  /// While one of these exists, `path` is being written through an OutputFile: a
  /// second signal removes what is written of it. Throws as OutputFile::check.
  class Writing {
  public:
    explicit Writing(const std::filesystem::path &path);
    ~Writing();
    Writing(const Writing &) = delete;
    Writing &operator=(const Writing &) = delete;

  private:
    std::string partial_;
  };

private:
  struct sigaction before_[2];
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_INTERRUPTION_H
