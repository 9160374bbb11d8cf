//===- Completions.h - what may stand at a place of a text ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR's parser completes operations, values and types, and knows nothing of
// attributes: where one belongs, what is in front of the cursor says which of the
// dialects' pages (DialectPages.h) have the words.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUELSPSERVER_COMPLETIONS_H
#define SEGUE_TOOLS_SEGUELSPSERVER_COMPLETIONS_H

#include "DialectPages.h"

namespace segue::tool {

/// Returns the byte of a position of the language server protocol, whose columns are units of UTF-16.
size_t byteAt(std::string_view text, int64_t line, int64_t column);

/// Returns the name of an operation or attribute around byte `at`, as "segue.reduce" or "#segue.layout"; empty: none.
std::string nameAt(std::string_view text, size_t at);

/// Returns what may follow at the end of `before`, by rules in this order: after `#segue.` its attributes; after
/// `#segue.role<` the words of the enumeration; after `segue.reduce ` those that its assembly begins with; after `{` or a
/// comma within, the attributes of the operation, or what arguments, results and modules carry.
std::vector<Named> attributesAt(const DialectPages &pages, std::string_view before);

/// Returns "segue" after `segue.` and a part of a name; empty elsewhere.
std::string dialectBefore(std::string_view before);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUELSPSERVER_COMPLETIONS_H
