//===- SignatureHash.h - the hashes of a program's signature ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What Program.signature_hash and Program.interface_hash are. The exporter
// writes them and the runtime checks them at load, both by these functions.
//
// Each value is a line: `in` or `out`, name, role, element type and [extents];
// this much is the interface. The signature goes on with the layout where the
// table has one: space, storage, [strides], [tile], and, only where they are
// not the default, `offset n`, `aligned n`, `zero_points`; then ` or ` and the
// same for each alternative. Files of version 0.1 have the same text: what came
// later is not written where it is absent.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_SCHEMAS_SIGNATUREHASH_H
#define SEGUE_SCHEMAS_SIGNATUREHASH_H

#include "program_generated.h"
#include <string>
#include <string_view>
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

namespace segue::schema {

/// Appends " [1,2,3]".
template <typename Iterator> void appendNumbers(std::string &text, Iterator begin, Iterator end) {
  text += " [";
  for (Iterator at = begin; at != end; ++at)
    text += (at == begin ? "" : ",") + std::to_string(*at);
  text += "]";
}
template <typename T> void appendNumbers(std::string &text, const flatbuffers::Vector<T> *vector) {
  if (vector)
    appendNumbers(text, vector->begin(), vector->end());
  else
    text += " []";
}

/// Appends the interface of one value, without an end of line. `role` and
/// `element` are the numbers of the schema.
template <typename Iterator>
void appendInterface(std::string &text, bool isInput, std::string_view name, int role, int element, Iterator begin,
                     Iterator end) {
  text += isInput ? "in " : "out ";
  text += name;
  text += " " + std::to_string(role) + " " + std::to_string(element);
  appendNumbers(text, begin, end);
}

inline void appendLayout(std::string &text, const Layout &layout) {
  text += " " + std::to_string(int(layout.space())) + " " + std::to_string(int(layout.storage()));
  appendNumbers(text, layout.strides());
  appendNumbers(text, layout.tile());
  if (layout.offset() != 0)
    text += " offset " + std::to_string(layout.offset());
  if (layout.alignment() != 64)
    text += " aligned " + std::to_string(layout.alignment());
  if (layout.zero_points())
    text += " zero_points";
}

inline void appendValue(std::string &text, bool isInput, const Value &value, bool withLayout) {
  const flatbuffers::Vector<int64_t> *shape = value.desc()->shape();
  const int64_t *begin = shape ? shape->data() : nullptr;
  appendInterface(text, isInput, {value.name()->c_str(), value.name()->size()}, int(value.role()),
                  int(value.desc()->element()), begin, begin + (shape ? shape->size() : 0));
  if (withLayout) {
    if (value.desc()->layout())
      appendLayout(text, *value.desc()->layout());
    for (uint32_t i = 0; value.alternatives() && i < value.alternatives()->size(); ++i) {
      text += " or";
      appendLayout(text, *value.alternatives()->Get(i));
    }
  }
  text += "\n";
}

inline uint64_t hashText(const std::string &text) { return XXH3_64bits(text.data(), text.size()); }

inline uint64_t hashValues(const Program &program, bool withLayouts) {
  std::string text;
  for (uint32_t i = 0; program.inputs() && i < program.inputs()->size(); ++i)
    appendValue(text, true, *program.inputs()->Get(i), withLayouts);
  for (uint32_t i = 0; program.outputs() && i < program.outputs()->size(); ++i)
    appendValue(text, false, *program.outputs()->Get(i), withLayouts);
  return hashText(text);
}

/// The hash of a program whose table is complete up to its inputs and outputs.
inline uint64_t signatureHash(const Program &program) { return hashValues(program, true); }
inline uint64_t interfaceHash(const Program &program) { return hashValues(program, false); }

} // namespace segue::schema

#endif // SEGUE_SCHEMAS_SIGNATUREHASH_H
