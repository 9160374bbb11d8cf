//===- Completion.cpp - what a shell completes of segue-run ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Completion.h"

namespace segue::tool {

/// The words of "TEXT:{a,b}"; none where there are no braces.
static std::vector<std::string> wordsOf(const std::string &type) {
  size_t begin = type.find('{'), end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos)
    return {};
  std::vector<std::string> words;
  for (const std::string &word : CLI::detail::split(type.substr(begin + 1, end - begin - 1), ','))
    words.push_back(word);
  return words;
}

static CompletedOption describe(const CLI::Option &option) {
  CompletedOption found;
  for (const std::string &name : option.get_lnames())
    found.names.push_back("--" + name);
  for (const std::string &name : option.get_snames())
    found.names.push_back("-" + name);
  found.help = option.get_description();
  std::string type = option.get_type_name();
  found.words = wordsOf(type);
  found.mayRepeat = option.get_items_expected_max() > 1;
  if (option.get_items_expected_max() == 0)
    found.value = CompletedValue::None;
  else if (!found.words.empty())
    found.value = CompletedValue::Choice;
  else if (type.starts_with("whole number") || type.starts_with("number") || type.starts_with("bytes"))
    found.value = CompletedValue::Number;
  else
    found.value = CompletedValue::File;
  return found;
}

CompletedProgram completedProgram(const CLI::App &app) {
  CompletedProgram program{.name = app.get_name(), .call = app.get_name() + " completion "};
  for (const CLI::Option *option : app.get_options())
    program.options.push_back(describe(*option));
  for (const CLI::App *each : app.get_subcommands([](const CLI::App *) { return true; })) {
    CompletedCommand &command = program.commands.emplace_back(CompletedCommand{each->get_name(), each->get_description()});
    for (const CLI::Option *option : each->get_options())
      if (option->get_positional())
        command.positionals.push_back(describe(*option));
      else if (!option->get_group().empty()) // hidden ones are other spellings
        command.options.push_back(describe(*option));
  }
  return program;
}

} // namespace segue::tool
