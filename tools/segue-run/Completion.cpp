//===- Completion.cpp - what a shell completes ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Completion.h"
#include <algorithm>

namespace segue::tool {

namespace {
/// What follows an option, or stands where a file could.
enum class Value { None, Number, Choice, File };

struct Option {
  /// "--device" and "-o"; none for what has no name.
  std::vector<std::string> names;
  std::string help;
  Value value = Value::None;
  /// The words of a choice.
  std::vector<std::string> words;
  bool mayRepeat = false;
};

struct Command {
  std::string name, help;
  std::vector<Option> options, positionals;
};
} // namespace

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

static Option describe(const CLI::Option &option) {
  Option found;
  for (const std::string &name : option.get_lnames())
    found.names.push_back("--" + name);
  for (const std::string &name : option.get_snames())
    found.names.push_back("-" + name);
  found.help = option.get_description();
  std::string type = option.get_type_name();
  found.words = wordsOf(type);
  found.mayRepeat = option.get_items_expected_max() > 1;
  if (option.get_items_expected_max() == 0)
    found.value = Value::None;
  else if (!found.words.empty())
    found.value = Value::Choice;
  else if (type.starts_with("whole number") || type.starts_with("number") || type.starts_with("bytes"))
    found.value = Value::Number;
  else
    found.value = Value::File;
  return found;
}

static std::vector<Command> commandsOf(const CLI::App &app) {
  std::vector<Command> commands;
  for (const CLI::App *each : app.get_subcommands([](const CLI::App *) { return true; })) {
    Command &command = commands.emplace_back(Command{each->get_name(), each->get_description(), {}, {}});
    for (const CLI::Option *option : each->get_options())
      if (option->get_positional())
        command.positionals.push_back(describe(*option));
      else if (!option->get_group().empty()) // hidden ones are other spellings
        command.options.push_back(describe(*option));
  }
  return commands;
}

static std::string joined(const std::vector<std::string> &words, const std::string &between = " ") {
  return CLI::detail::join(words, between);
}

/// `text` as one word of a shell, in single quotes.
static std::string quoted(const std::string &text) {
  std::string word = "'";
  for (char c : text)
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// The words of the first positional that is a choice; none where files are asked for.
static std::vector<std::string> choicesOf(const Command &command) {
  for (const Option &positional : command.positionals)
    if (positional.value == Value::Choice)
      return positional.words;
  return {};
}

static std::string forBash(const CLI::App &app, const std::string &name, const std::string &function) {
  std::vector<std::string> names;
  std::string values, options;
  for (const Command &command : commandsOf(app)) {
    names.push_back(command.name);
    std::vector<std::string> all;
    for (const Option &option : command.options) {
      all.insert(all.end(), option.names.begin(), option.names.end());
      std::vector<std::string> patterns;
      for (const std::string &each : option.names)
        patterns.push_back("'" + command.name + " " + each + "'");
      std::string action = option.value == Value::Choice   ? "words=" + quoted(joined(option.words))
                           : option.value == Value::Number ? "return"
                                                           : "files=1";
      if (option.value != Value::None)
        values += "    " + joined(patterns, "|") + ") " + action + " ;;\n";
    }
    std::vector<std::string> choices = choicesOf(command);
    std::string otherwise = choices.empty() ? "files=1" : "words=" + quoted(joined(choices));
    options += "    " + command.name + ") [[ $current == -* ]] && words=" + quoted(joined(all)) + " || " + otherwise + " ;;\n";
  }
  for (const CLI::Option *option : app.get_options())
    for (const std::string &each : option->get_lnames())
      names.push_back("--" + each);
  return "# bash completion of " + name + ": eval \"$(" + name + " completion bash)\"\n" + function + R"(() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words= files=
  COMPREPLY=()
  # bash takes the sign in --option=value for a word.
  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}
  [[ $current == = ]] && current=
  if ((COMP_CWORD == 1)); then
    words=)" + quoted(joined(names)) + R"(
  else
    case "${COMP_WORDS[1]} $previous" in
)" + values + R"(    *) case ${COMP_WORDS[1]} in
)" + options + R"(    esac ;;
    esac
  fi
  if [[ $files ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  fi
}
complete -F )" + function + " " + name + "\n";
}

/// `text` where zsh's _arguments ends a description at `]` and an item at `:`.
static std::string escapedForZsh(const std::string &text) {
  std::string escaped;
  for (char c : text)
    escaped += (c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") + std::string(1, c);
  return escaped;
}

static std::string zshAction(const Option &option) {
  switch (option.value) {
  case Value::None:
    return "";
  case Value::Number:
    return ":number: ";
  case Value::Choice:
    return ":value:(" + joined(option.words) + ")";
  case Value::File:
    break;
  }
  return ":file:_files";
}

static std::string forZsh(const CLI::App &app, const std::string &name, const std::string &function) {
  std::string commands, cases;
  for (const Command &command : commandsOf(app)) {
    commands += "    " + quoted(command.name + ":" + command.help) + "\n";
    cases += "  " + command.name + ") _arguments";
    for (const Option &option : command.options)
      for (const std::string &each : option.names) {
        bool isLong = each.starts_with("--") && option.value != Value::None;
        cases += " \\\n    " + quoted((option.mayRepeat ? "*" : "") + each + (isLong ? "=" : "") + "[" + escapedForZsh(option.help) + "]" +
                                      zshAction(option));
      }
    std::vector<std::string> choices = choicesOf(command);
    if (!command.positionals.empty())
      cases += " \\\n    " + (choices.empty() ? std::string("'*:file:_files'") : quoted("*:value:(" + joined(choices) + ")"));
    cases += " ;;\n";
  }
  return "#compdef " + name + "\n# zsh completion of " + name + ": eval \"$(" + name + " completion zsh)\" after compinit\n" + function +
         "() {\n  local -a commands\n  commands=(\n" + commands + R"(  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  shift words
  ((CURRENT--))
  case $words[1] in
)" + cases + "  esac\n}\ncompdef " + function + " " + name + "\n";
}

static std::string forFish(const CLI::App &app, const std::string &name) {
  std::string head = "complete -c " + name, script = "# fish completion of " + name + ": " + name + " completion fish | source\n" + head + " -f\n";
  for (const Command &command : commandsOf(app)) {
    script += head + " -n __fish_use_subcommand -a " + command.name + " -d " + quoted(command.help) + "\n";
    std::string within = head + " -n " + quoted("__fish_seen_subcommand_from " + command.name);
    for (const Option &option : command.options) {
      script += within;
      for (const std::string &each : option.names)
        script += each.starts_with("--") ? " -l " + each.substr(2) : " -s " + each.substr(1);
      if (option.value == Value::File)
        script += " -rF";
      else if (option.value == Value::Number)
        script += " -x";
      else if (option.value == Value::Choice)
        script += " -xa " + quoted(joined(option.words));
      script += " -d " + quoted(option.help) + "\n";
    }
    if (std::vector<std::string> choices = choicesOf(command); !choices.empty())
      script += within + " -a " + quoted(joined(choices)) + "\n";
    else if (!command.positionals.empty())
      script += within + " -F\n";
  }
  return script;
}

std::string completionScript(const CLI::App &app, const std::string &shell) {
  std::string name = app.get_name(), function = "_" + name;
  std::ranges::replace(function, '-', '_');
  if (shell == "bash")
    return forBash(app, name, function);
  return shell == "zsh" ? forZsh(app, name, function) : forFish(app, name);
}

} // namespace segue::tool
