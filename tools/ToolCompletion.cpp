//===- ToolCompletion.cpp - `--completion` of the tools above LLVM --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ToolCompletion.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/raw_ostream.h"
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

using namespace llvm;

namespace segue::tool {

/// Descriptions of several lines go on behind this column; titles of groups stand before it.
static constexpr size_t lastTitleColumn = 16;

/// Gives `option` a value of a form such as "number", or of words with `between` between them, as "block|layer".
static void setValue(CompletedOption &option, StringRef value, char between = '|') {
  static constexpr StringRef numbers[] = {"number", "int", "uint", "long", "ulong", "ulonglong", "int64_t", "unsigned"};
  if (value.contains(between)) {
    option.value = CompletedValue::Choice;
    SmallVector<StringRef> words;
    value.split(words, between);
    for (StringRef word : words)
      option.words.push_back(word.str());
  } else {
    option.value = is_contained(numbers, value) ? CompletedValue::Number : CompletedValue::File;
  }
}

/// Reads "--name=<value>   - help", "--name[=<value>]", "-o <file>" or "--name".
static CompletedOption readOption(StringRef line) {
  CompletedOption option;
  StringRef form = line.take_until([](char c) { return c == ' ' || c == '=' || c == '['; });
  option.names.push_back(form.str());
  StringRef rest = line.drop_front(form.size());
  if (rest.consume_front("[")) // "[=<value>]"
    option.isOptional = true;
  bool hasValue = rest.consume_front("=<") || rest.consume_front(" <");
  if (hasValue) {
    setValue(option, rest.take_until([](char c) { return c == '>'; }));
    rest = rest.substr(rest.find('>') + 1);
  }
  if (size_t dash = rest.find("- "); dash != StringRef::npos)
    option.help = rest.drop_front(dash + 2).trim().str();
  // "{a,b}" says what the parser does not know: the texts that our own code takes.
  StringRef list = StringRef(option.help).split('{').second;
  if (option.value == CompletedValue::File && list.contains('}'))
    setValue(option, list.split('}').first, ',');
  return option;
}

std::vector<CompletedOption> optionsInHelp(StringRef help) {
  std::vector<CompletedOption> options;
  size_t base = StringRef::npos; // the column of the options of this group
  bool isBelowKey = false;       // values that follow are those of a key of a pass
  for (StringRef rest = help; !rest.empty();) {
    auto [line, behind] = rest.split('\n');
    rest = behind;
    StringRef text = line.ltrim(' ');
    size_t column = line.size() - text.size();
    if (text.starts_with("=") && !options.empty() && base != StringRef::npos) {
      StringRef word = text.drop_front().take_until([](char c) { return c == ' '; });
      if (isBelowKey || word.starts_with("<")) // "<empty>" is the option without a value
        continue;
      options.back().value = CompletedValue::Choice;
      options.back().words.push_back(word.str());
    } else if (text.starts_with("-") && text.size() > 1 && text[1] != ' ') {
      CompletedOption option = readOption(text);
      isBelowKey = base != StringRef::npos && column > base;
      if (isBelowKey) {
        CompletedOption &pass = options.back();
        pass.value = CompletedValue::Choice;
        pass.isOptional = true;
        pass.words.push_back(StringRef(option.names.front()).ltrim('-').str() + "=");
        continue;
      }
      base = column;
      // An option whose value may be left out is listed without it first.
      auto before = llvm::find_if(options, [&](const CompletedOption &other) { return other.names == option.names; });
      if (before != options.end()) {
        option.isOptional = true;
        if (option.help.empty())
          option.help = before->help;
        options.erase(before);
      }
      options.push_back(std::move(option));
    } else if (!text.empty() && column < lastTitleColumn) {
      base = StringRef::npos;
    }
  }
  return options;
}

/// Returns what `--help` prints, which LLVM prints to stdout and nowhere else.
static std::string helpText() {
  std::string text;
  std::FILE *file = std::tmpfile();
  int out = file ? dup(STDOUT_FILENO) : -1;
  if (out < 0 || dup2(fileno(file), STDOUT_FILENO) < 0)
    return text;
  cl::PrintHelpMessage(/*Hidden=*/false, /*Categorized=*/true);
  outs().flush();
  std::fflush(stdout);
  dup2(out, STDOUT_FILENO);
  close(out);
  std::rewind(file);
  char buffer[4096];
  for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, file)) > 0;)
    text.append(buffer, count);
  std::fclose(file);
  return text;
}

void addCompletion(StringRef tool, cl::OptionCategory *category) {
  enum class Shell { Bash, Zsh, Fish };
  auto print = [name = tool.str()](const Shell &shell) {
    CompletedProgram program{.name = name, .call = name + " --completion=", .options = optionsInHelp(helpText()), .takesOneDash = true};
    program.positionals.push_back({.value = CompletedValue::File});
    outs() << completionScript(program, completedShells[size_t(shell)]);
    outs().flush();
    std::exit(EXIT_SUCCESS);
  };
  static cl::opt<Shell> option("completion", cl::desc("Print what makes a shell complete options, passes and values"),
                               cl::values(clEnumValN(Shell::Bash, "bash", "eval \"$(TOOL --completion=bash)\" in ~/.bashrc"),
                                          clEnumValN(Shell::Zsh, "zsh", "eval \"$(TOOL --completion=zsh)\" in ~/.zshrc, after compinit"),
                                          clEnumValN(Shell::Fish, "fish", "TOOL --completion=fish | source in config.fish")),
                               cl::callback(print));
  if (category)
    option.addCategory(*category);
}

} // namespace segue::tool
