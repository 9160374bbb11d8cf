//===- RepeatedPassOption.cpp - keys that stand twice for one pass --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RepeatedPassOption.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/ADT/StringSet.h"

using llvm::StringRef;

/// Returns the length of what `text` begins with: up to the first character of `ends` that stands in no quotes and no
/// brackets.
static size_t lengthUntil(StringRef text, StringRef ends) {
  size_t depth = 0;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quote) {
      quote = c == quote ? 0 : quote;
      continue;
    }
    if (depth == 0 && ends.contains(c))
      return i;
    if (c == '"' || c == '\'')
      quote = c;
    else if (c == '{' || c == '(' || c == '[')
      ++depth;
    else if (depth && (c == '}' || c == ')' || c == ']'))
      --depth;
  }
  return text.size();
}

/// Returns the key that stands twice among options such as `a=1 b={c d}`; empty where none does.
static StringRef repeatedKey(StringRef options) {
  llvm::StringSet<> keys;
  for (options = options.ltrim(); !options.empty(); options = options.ltrim()) {
    StringRef option = options.take_front(lengthUntil(options, " \t\n"));
    options = options.drop_front(option.size());
    StringRef key = option.split('=').first;
    if (!keys.insert(key).second)
      return key;
  }
  return {};
}

static std::string sentence(StringRef pass, StringRef key) {
  return ("--" + pass + ": the option \"" + key + "\" is given twice").str();
}

/// Looks at each `pass{options}` of a pipeline.
static std::string repeatedInPipeline(StringRef pipeline) {
  for (size_t brace = pipeline.find('{'); brace != StringRef::npos; brace = pipeline.find('{')) {
    StringRef before = pipeline.take_front(brace), pass = before.drop_front(before.find_last_of("(), ") + 1);
    StringRef options = pipeline.drop_front(brace + 1);
    options = options.take_front(lengthUntil(options, "}"));
    if (StringRef key = repeatedKey(options); !key.empty())
      return sentence(pass, key);
    pipeline = pipeline.drop_front(brace + 1 + options.size());
  }
  return "";
}

std::string segue::tool::repeatedPassOption(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    StringRef argument = argv[i];
    if (argument == "--")
      break;
    if (!argument.consume_front("-"))
      continue;
    argument.consume_front("-");
    auto [name, value] = argument.split('=');
    if (name == "pass-pipeline") {
      if (std::string what = repeatedInPipeline(value); !what.empty())
        return what;
    } else if (mlir::PassInfo::lookup(name) || mlir::PassPipelineInfo::lookup(name)) {
      if (StringRef key = repeatedKey(value); !key.empty())
        return sentence(name, key);
    }
  }
  return "";
}
