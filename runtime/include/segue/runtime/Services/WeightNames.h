//===- WeightNames.h - what a weight may be called in a source --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program and the file that its weights come from may name them differently
// in declared ways: an adapter wraps a layer and its weight becomes
// `to_q.orig.weight`; families of models have their own words (`to_q`,
// `q_proj`). Nothing is guessed beyond these. Pure functions.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_WEIGHTNAMES_H
#define SEGUE_RUNTIME_SERVICES_WEIGHTNAMES_H

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segue::inline runtime {

/// Pairs of dotted runs of components that mean the same, both ways:
/// {"attn.to_q", "self_attn.q_proj"}.
using NameAliases = std::vector<std::pair<std::string, std::string>>;

/// Returns the names under which a source may hold `name`, the likeliest first: its own;
/// without the component `orig` of an adapter (or with it, before the last component); then
/// each with aliases put in, every run on its own. They are at most 64.
std::vector<std::string> sourceNames(std::string_view name, const NameAliases &aliases = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTNAMES_H
