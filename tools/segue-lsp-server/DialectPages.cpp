//===- DialectPages.cpp - what is said of an operation --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DialectPages.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

using llvm::StringRef;

namespace segue::tool {

/// What lies between `begin` and the next `end`; empty if there is no such place.
static StringRef between(StringRef text, StringRef begin, StringRef end) {
  auto [before, after] = text.split(begin);
  return after.contains(end) ? after.split(end).first : StringRef();
}

/// "gelu_kind" for "GeluKindAttr".
static std::string mnemonicOf(StringRef title) {
  std::string mnemonic;
  title.consume_back("Attr");
  for (char c : title)
    mnemonic += (llvm::isUpper(c) && !mnemonic.empty() ? "_" : "") + std::string(1, llvm::toLower(c));
  return mnemonic;
}

static PageEntry readEntry(StringRef body) {
  PageEntry entry;
  entry.summary = between(body, "\n_", "_\n").str();
  StringRef first = between(body, "operation ::= `", "\n").split("` ").second.split(' ').first;
  if (first.consume_front("$"))
    entry.first = first.str();
  for (StringRef line : llvm::split(body, '\n')) {
    if (line.starts_with("Traits:") || line.starts_with("Interfaces:") || line.starts_with("Effects:"))
      continue;
    if (StringRef word = line; word.consume_front("* ") && word.contains(" (`"))
      entry.cases.push_back(word.split(" (`").first.str());
    if (line.starts_with("<tr><td><code>")) {
      std::string name = between(line, "<code>", "</code>").str();
      auto [type, help] = line.split("</code></td><td>").second.split("</td><td>");
      entry.attributes.push_back({name, help.split("</td>").first.str()});
      entry.typeOf[name] = type.rsplit("::").second.str();
    }
    entry.text += line.str() + "\n";
  }
  return entry;
}

void DialectPages::read(std::string_view page) {
  auto [intro, rest] = StringRef(page).split("\n### ");
  std::string dialect = between(intro, "# '", "' Dialect").str();
  for (StringRef line : llvm::split(intro, '\n'))
    if (line.consume_front("| `" + dialect + ".")) {
      std::string name = dialect + "." + line.split('`').first.str();
      carried_[dialect].push_back({name, line.rtrim("| ").rsplit("| ").second.str()});
    }
  while (!rest.empty()) {
    auto [entry, after] = rest.split("\n### ");
    auto [title, body] = entry.split("\n## ").first.split('\n');
    if (title.starts_with("`")) {
      entries_[between(title, "`", "`").str()] = readEntry(body);
    } else if (title.ends_with("Attr")) {
      StringRef syntax = between(body, "\n#" + dialect + ".", "<");
      std::string mnemonic = syntax.empty() ? mnemonicOf(title) : syntax.str();
      types_[title.str()] = entries_["#" + dialect + "." + mnemonic] = readEntry(body);
    }
    rest = after;
  }
}

DialectPages::DialectPages() {
  for (const char *const *page = dialectPages; *page; ++page)
    read(*page);
}

const PageEntry *DialectPages::find(const std::string &name) const {
  auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

const PageEntry *DialectPages::findType(const std::string &title) const {
  auto it = types_.find(title);
  return it == types_.end() ? nullptr : &it->second;
}

std::vector<Named> DialectPages::attributesOf(std::string_view dialect) const {
  std::vector<Named> found;
  std::string prefix = "#" + std::string(dialect) + ".";
  for (const auto &[name, entry] : entries_)
    if (name.starts_with(prefix))
      found.push_back({name.substr(prefix.size()), entry.summary});
  return found;
}

std::vector<Named> DialectPages::carriedBy(std::string_view dialect) const {
  auto it = carried_.find(dialect);
  return it == carried_.end() ? std::vector<Named>() : it->second;
}

} // namespace segue::tool
