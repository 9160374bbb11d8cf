//===- ShellCompletion.h - scripts that complete a command line -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Scripts for bash, zsh and fish that complete the commands of a program, their
// options and the values of these. They are made of what the parser of the command
// line knows of itself: who adds an option has nothing to do here.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SHELLCOMPLETION_H
#define SEGUE_TOOLS_SHELLCOMPLETION_H

#include <string>
#include <vector>

namespace segue::tool {

/// The shells that there are scripts for.
inline const std::vector<std::string> completedShells = {"bash", "zsh", "fish"};

/// The kinds of values that follow an option, or stand where a file could.
enum class CompletedValue { None, Number, Choice, File };

struct CompletedOption {
  /// "--device" and "-o"; none for what has no name.
  std::vector<std::string> names = {};
  std::string help = {};
  CompletedValue value = CompletedValue::None;
  /// The words of a choice. One that ends with a sign is a key whose value the user writes.
  std::vector<std::string> words = {};
  bool mayRepeat = false;
  /// True if the value may be left out, so that only what is joined by a sign, as --option=value, is one.
  bool isOptional = false;
};

struct CompletedCommand {
  std::string name, help;
  std::vector<CompletedOption> options = {}, positionals = {};
};

struct CompletedProgram {
  std::string name;
  /// The command that prints the script, without the name of the shell: "segue-run completion ".
  std::string call;
  /// The commands of a program that has some, whose own options then stand in the place of a command.
  std::vector<CompletedCommand> commands = {};
  std::vector<CompletedOption> options = {}, positionals = {};
  /// True if one dash does for two, as LLVM's parser takes it.
  bool takesOneDash = false;
};

/// Returns the script of one of the shells.
std::string completionScript(const CompletedProgram &program, const std::string &shell);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SHELLCOMPLETION_H
