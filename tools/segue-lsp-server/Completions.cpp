//===- Completions.cpp - what may stand at a place of a text --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Completions.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

using llvm::StringRef;

namespace segue::tool {

static bool isPartOfName(char c) { return llvm::isAlnum(c) || c == '_' || c == '.' || c == '$'; }

size_t byteAt(std::string_view text, int64_t line, int64_t column) {
  size_t at = 0;
  for (; line > 0; --line) {
    size_t end = text.find('\n', at);
    if (end == text.npos)
      return text.size();
    at = end + 1;
  }
  while (column > 0 && at < text.size() && text[at] != '\n') {
    auto first = static_cast<unsigned char>(text[at]);
    size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    column -= bytes == 4 ? 2 : 1; // a surrogate pair
    at = std::min(at + bytes, text.size());
  }
  return at;
}

std::string nameAt(std::string_view text, size_t at) {
  at = std::min(at, text.size());
  size_t begin = at, end = at;
  while (begin > 0 && isPartOfName(text[begin - 1]))
    --begin;
  while (end < text.size() && isPartOfName(text[end]))
    ++end;
  if (begin > 0 && text[begin - 1] == '#')
    --begin;
  return std::string(text.substr(begin, end - begin));
}

/// The end of `text` that is a part of a name.
static StringRef nameBefore(StringRef text) {
  size_t begin = text.size();
  while (begin > 0 && isPartOfName(text[begin - 1]))
    --begin;
  return text.substr(begin);
}

std::string dialectBefore(std::string_view before) {
  StringRef text(before), name = nameBefore(text);
  if (!name.contains('.') || text.drop_back(name.size()).ends_with("#") || text.drop_back(name.size()).ends_with("!"))
    return "";
  return name.rsplit('.').first.str();
}

/// The last `{`, `<`, `(` or `[` of the text that is still open; npos for none.
static size_t openBracket(StringRef text) {
  int depth = 0;
  for (size_t i = text.size(); i-- > 0;) {
    char c = text[i];
    if (c == '>' && i > 0 && text[i - 1] == '-')
      continue; // an arrow
    if (c == '}' || c == '>' || c == ')' || c == ']')
      ++depth;
    else if ((c == '{' || c == '<' || c == '(' || c == '[') && depth-- == 0)
      return i;
  }
  return StringRef::npos;
}

/// The last name of an operation in the text, which is a dialect's, `func.func` or `module`; empty for none.
static std::string operationBefore(StringRef text) {
  for (size_t end = text.size(); end > 0;) {
    StringRef name = nameBefore(text.take_front(end));
    if (name.empty()) {
      --end;
      continue;
    }
    size_t begin = end - name.size();
    char before = begin ? text[begin - 1] : '\n';
    bool isOperation = before == '\n' || before == ' ' || before == '"';
    // `segue.role = ...` in a dictionary is no operation: one is followed by no sign of that.
    bool isKey = text.substr(end).ltrim(" \"").starts_with("=");
    if (isOperation && !isKey && (name == "module" || name == "func.func" || name.starts_with("segue.") || name.starts_with("prog.") || name.starts_with("check.")))
      return name.str();
    end = begin;
  }
  return "";
}

static std::vector<Named> casesOf(const PageEntry *entry) {
  std::vector<Named> found;
  if (entry)
    for (const std::string &word : entry->cases)
      found.push_back({word, entry->summary});
  return found;
}

std::vector<Named> attributesAt(const DialectPages &pages, std::string_view given) {
  StringRef before(given);
  StringRef partial = nameBefore(before);
  StringRef front = before.drop_back(partial.size());
  if (front.ends_with("#") && partial.contains('.'))
    return pages.attributesOf(std::string_view(partial.split('.').first));
  if (StringRef head = front; head.consume_back("<")) {
    StringRef name = nameBefore(head);
    return head.drop_back(name.size()).ends_with("#") ? casesOf(pages.find("#" + name.str())) : std::vector<Named>();
  }
  StringRef spaceless = front.rtrim(' ');
  if (spaceless.size() < front.size() && !partial.contains('.'))
    if (const PageEntry *operation = pages.find(nameBefore(spaceless).str()); operation && !operation->first.empty())
      if (auto it = operation->typeOf.find(operation->first); it != operation->typeOf.end())
        return casesOf(pages.findType(it->second));
  if (size_t bracket = openBracket(front); bracket != StringRef::npos && front[bracket] == '{') {
    StringRef within = front.drop_front(bracket + 1).rtrim();
    std::string operation = operationBefore(front.take_front(bracket));
    if (!within.empty() && !within.ends_with(","))
      return {};
    if (operation == "func.func")
      return pages.carriedBy("segue");
    if (operation == "module")
      return pages.carriedBy("prog");
    if (const PageEntry *entry = pages.find(operation)) {
      std::vector<Named> found = entry->attributes;
      if (StringRef(operation).starts_with("segue."))
        found.push_back({"segue.block", "the block of the model that it belongs to"});
      return found;
    }
  }
  return {};
}

} // namespace segue::tool
