//===- DialectPages.h - what is said of an operation ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The reference of our dialects, which mlir-tblgen writes from ODS, by name: a
// summary, the syntax, the constraints, operands, results and attributes of
// `segue.reduce`, or of `#segue.layout`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUELSPSERVER_DIALECTPAGES_H
#define SEGUE_TOOLS_SEGUELSPSERVER_DIALECTPAGES_H

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace segue::tool {

/// The pages of all dialects, in Markdown; a null pointer ends them. Made when Segue is built.
extern const char *const dialectPages[];

/// A name and what is said of it.
struct Named {
  std::string name, help;
};

struct PageEntry {
  std::string summary;
  /// All that is said, in Markdown, without what only the compiler's own code goes by (traits, interfaces).
  std::string text;
  /// The words of an enumeration.
  std::vector<std::string> cases;
  /// The attributes of an operation; the type of each is the title of its entry.
  std::vector<Named> attributes;
  std::map<std::string, std::string> typeOf;
  /// The attribute that the assembly begins with, as `$kind`; empty if it begins otherwise.
  std::string first;
};

class DialectPages {
public:
  DialectPages();

  /// Returns what is said of "segue.reduce" or "#segue.layout"; null for other names.
  const PageEntry *find(const std::string &name) const;
  /// Returns what is said of an attribute by its C++ name, such as "ReduceKindAttr"; null for those of MLIR.
  const PageEntry *findType(const std::string &title) const;
  /// Returns the attributes of a dialect: "layout" for "#segue.layout".
  std::vector<Named> attributesOf(std::string_view dialect) const;
  /// Returns what functions' arguments and results, or with "prog" a module, may carry: "segue.role" and so on.
  std::vector<Named> carriedBy(std::string_view dialect) const;

private:
  void read(std::string_view page);

  std::map<std::string, PageEntry> entries_, types_;
  std::map<std::string, std::vector<Named>, std::less<>> carried_;
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUELSPSERVER_DIALECTPAGES_H
