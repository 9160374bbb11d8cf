//===- ShellCompletion.cpp - scripts that complete a command line ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ShellCompletion.h"
#include <algorithm>

namespace segue::tool {

static std::string joined(const std::vector<std::string> &words, const std::string &between = " ") {
  std::string text;
  for (const std::string &word : words)
    text.append(text.empty() ? "" : between).append(word);
  return text;
}

/// `text` as one word of a shell, in single quotes.
static std::string quoted(const std::string &text) {
  std::string word = "'";
  for (char c : text)
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// The words of the first positional that is a choice; none where files are asked for.
static std::vector<std::string> choicesOf(const std::vector<CompletedOption> &positionals) {
  for (const CompletedOption &positional : positionals)
    if (positional.value == CompletedValue::Choice)
      return positional.words;
  return {};
}

//===----------------------------------------------------------------------===//
// bash
//===----------------------------------------------------------------------===//

/// Returns lines of the `case` of what stands before the cursor, for each option with a value. `before` is what stands before that: the command.
static std::string bashValues(const std::vector<CompletedOption> &options, const std::string &before, bool takesOneDash) {
  std::string lines;
  for (const CompletedOption &option : options) {
    if (option.value == CompletedValue::None)
      continue;
    std::vector<std::string> patterns;
    for (const std::string &name : option.names)
      for (const std::string &each : takesOneDash && name.starts_with("--") ? std::vector{name, name.substr(1)} : std::vector{name}) {
        if (!option.isOptional)
          patterns.push_back(quoted(before + each));
        patterns.push_back(quoted(before + each + "="));
      }
    std::string action = option.value == CompletedValue::Choice   ? "words=" + quoted(joined(option.words))
                         : option.value == CompletedValue::Number ? "return"
                                                                  : "files=1";
    lines += "    " + joined(patterns, "|") + ") " + action + " ;;\n";
  }
  return lines;
}

/// Returns what completes a word behind which no value is wanted: an option, or what stands by itself.
static std::string bashWord(const std::vector<CompletedOption> &options, const std::vector<CompletedOption> &positionals, bool takesOneDash) {
  std::vector<std::string> names;
  for (const CompletedOption &option : options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  std::vector<std::string> choices = choicesOf(positionals);
  return "if [[ $current == -* ]]; then words=" + quoted(joined(names)) + (takesOneDash ? "; [[ $current == -[!-]* ]] && words=${words//--/-}" : "") +
         "; else " + (choices.empty() ? "files=1" : "words=" + quoted(joined(choices))) + "; fi";
}

static std::string forBash(const CompletedProgram &program, const std::string &function) {
  std::string body;
  if (program.commands.empty()) {
    body = "  case $previous$sign in\n" + bashValues(program.options, "", program.takesOneDash) + "    *) " +
           bashWord(program.options, program.positionals, program.takesOneDash) + " ;;\n  esac\n";
  } else {
    std::vector<std::string> first;
    std::string values, words;
    for (const CompletedCommand &command : program.commands) {
      first.push_back(command.name);
      values += bashValues(command.options, command.name + " ", program.takesOneDash);
      words += "    " + command.name + ") " + bashWord(command.options, command.positionals, program.takesOneDash) + " ;;\n";
    }
    for (const CompletedOption &option : program.options)
      first.insert(first.end(), option.names.begin(), option.names.end());
    body = "  if ((COMP_CWORD == 1)); then\n    words=" + quoted(joined(first)) + "\n  else\n    case \"${COMP_WORDS[1]} $previous$sign\" in\n" + values +
           "    *) case ${COMP_WORDS[1]} in\n" + words + "    esac ;;\n    esac\n  fi\n";
  }
  return "# bash completion of " + program.name + ": eval \"$(" + program.call + "bash)\"\n" + function + R"(() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} sign= words= files=
  COMPREPLY=()
  # bash takes the sign in --option=value for a word.
  [[ $previous == = ]] && sign== previous=${COMP_WORDS[COMP_CWORD-2]}
  [[ $current == = ]] && sign== current=
)" + body + R"(  if [[ $files ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  fi
}
complete -F )" + function + " " + program.name + "\n";
}

//===----------------------------------------------------------------------===//
// zsh
//===----------------------------------------------------------------------===//

/// `text` where zsh's _arguments ends a description at `]` and an item at `:`.
static std::string escapedForZsh(const std::string &text) {
  std::string escaped;
  for (char c : text)
    escaped += (c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") + std::string(1, c);
  return escaped;
}

static std::string zshAction(const CompletedOption &option) {
  std::string colon = option.isOptional ? "::" : ":";
  switch (option.value) {
  case CompletedValue::None:
    return "";
  case CompletedValue::Number:
    return colon + "number: ";
  case CompletedValue::Choice:
    // Behind a key no space follows.
    return colon + (option.words.front().ends_with('=') ? "key:{compadd -S \"\" -- " + joined(option.words) + "}" : "value:(" + joined(option.words) + ")");
  case CompletedValue::File:
    break;
  }
  return colon + "file:_files";
}

static std::string zshArguments(const std::vector<CompletedOption> &options, const std::vector<CompletedOption> &positionals) {
  std::string text = "_arguments";
  for (const CompletedOption &option : options)
    for (const std::string &each : option.names) {
      // `=-` is a value that only a sign joins, `=` one that may be the next word, too.
      const char *sign = option.value == CompletedValue::None ? "" : option.isOptional ? "=-" : each.starts_with("--") ? "=" : "";
      text += " \\\n    " + quoted((option.mayRepeat ? "*" : "") + each + sign + "[" + escapedForZsh(option.help) + "]" + zshAction(option));
    }
  std::vector<std::string> choices = choicesOf(positionals);
  if (!positionals.empty())
    text += " \\\n    " + (choices.empty() ? std::string("'*:file:_files'") : quoted("*:value:(" + joined(choices) + ")"));
  return text;
}

static std::string forZsh(const CompletedProgram &program, const std::string &function) {
  std::string head = "#compdef " + program.name + "\n# zsh completion of " + program.name + ": eval \"$(" + program.call + "zsh)\" after compinit\n" + function +
                     "() {\n",
              tail = "}\ncompdef " + function + " " + program.name + "\n";
  if (program.commands.empty())
    return head + "  " + zshArguments(program.options, program.positionals) + "\n" + tail;
  std::string commands, cases;
  for (const CompletedCommand &command : program.commands) {
    commands += "    " + quoted(command.name + ":" + command.help) + "\n";
    cases += "  " + command.name + ") " + zshArguments(command.options, command.positionals) + " ;;\n";
  }
  return head + "  local -a commands\n  commands=(\n" + commands + R"(  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  shift words
  ((CURRENT--))
  case $words[1] in
)" + cases + "  esac\n" + tail;
}

//===----------------------------------------------------------------------===//
// fish
//===----------------------------------------------------------------------===//

static std::string fishOptions(const std::string &head, const std::vector<CompletedOption> &options, bool takesOneDash) {
  std::string lines;
  for (const CompletedOption &option : options) {
    lines += head;
    for (const std::string &each : option.names) {
      lines += each.starts_with("--") ? " -l " + each.substr(2) : " -s " + each.substr(1);
      if (takesOneDash && each.starts_with("--"))
        lines += " -o " + each.substr(2);
    }
    if (option.value == CompletedValue::Choice) // without x, a value is behind the sign or not there
      lines += (option.isOptional ? " -f -a " : " -xa ") + quoted(joined(option.words));
    else if (option.value == CompletedValue::Number && !option.isOptional)
      lines += " -x";
    else if (option.value == CompletedValue::File && !option.isOptional)
      lines += " -rF";
    lines += " -d " + quoted(option.help) + "\n";
  }
  return lines;
}

static std::string forFish(const CompletedProgram &program) {
  std::string head = "complete -c " + program.name;
  std::string script = "# fish completion of " + program.name + ": " + program.call + "fish | source\n";
  // Words of a choice are offered beside files unless these are left out, and they are offered by themselves.
  auto words = [](const std::string &head, const std::vector<std::string> &choices) { return head + " -f -a " + quoted(joined(choices)) + "\n"; };
  if (program.commands.empty()) {
    if (std::vector<std::string> choices = choicesOf(program.positionals); !choices.empty())
      script += words(head, choices);
    else if (program.positionals.empty())
      script += head + " -f\n";
    return script + fishOptions(head, program.options, program.takesOneDash);
  }
  script += head + " -f\n";
  for (const CompletedCommand &command : program.commands) {
    std::string within = head + " -n " + quoted("__fish_seen_subcommand_from " + command.name);
    script += head + " -n __fish_use_subcommand -a " + command.name + " -d " + quoted(command.help) + "\n" +
              fishOptions(within, command.options, program.takesOneDash);
    if (std::vector<std::string> choices = choicesOf(command.positionals); !choices.empty())
      script += words(within, choices);
    else if (!command.positionals.empty())
      script += within + " -F\n";
  }
  return script;
}

std::string completionScript(const CompletedProgram &program, const std::string &shell) {
  std::string function = "_" + program.name;
  std::ranges::replace(function, '-', '_');
  if (shell == "bash")
    return forBash(program, function);
  return shell == "zsh" ? forZsh(program, function) : forFish(program);
}

} // namespace segue::tool
