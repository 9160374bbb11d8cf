//===- WeightNames.cpp - what a weight may be called in a source ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/WeightNames.h"
#include <algorithm>

namespace segue::inline runtime {

static constexpr size_t mostNames = 64;
static constexpr std::string_view adapterComponent = "orig";

/// Returns `name` with the run at `position` replaced, if whole components stand there.
static std::string replaced(std::string_view name, size_t position, std::string_view from, std::string_view to) {
  size_t end = position + from.size();
  bool whole = (position == 0 || name[position - 1] == '.') && (end == name.size() || name[end] == '.');
  return whole ? std::string(name.substr(0, position)) + std::string(to) + std::string(name.substr(end))
               : std::string();
}

static void addAliased(std::vector<std::string> &names, std::string_view from, std::string_view to) {
  if (from.empty())
    return;
  // Names added here are looked at too: a name may have several runs.
  for (size_t i = 0; i < names.size(); ++i) {
    std::string name = names[i];
    for (size_t at = name.find(from); at != std::string::npos; at = name.find(from, at + 1)) {
      std::string other = replaced(name, at, from, to);
      if (!other.empty() && names.size() < mostNames && std::find(names.begin(), names.end(), other) == names.end())
        names.push_back(std::move(other));
    }
  }
}

std::vector<std::string> sourceNames(std::string_view name, const NameAliases &aliases) {
  std::vector<std::string> names{std::string(name)};
  size_t last = name.rfind('.');
  std::string_view leaf = last == std::string_view::npos ? name : name.substr(last + 1);
  std::string_view module = last == std::string_view::npos ? std::string_view() : name.substr(0, last);
  std::string_view wrapper = module.substr(module.rfind('.') + 1);
  if (leaf == adapterComponent && !module.empty()) // "to_q.orig"
    names.emplace_back(module);
  else if (wrapper == adapterComponent && module.size() > wrapper.size()) // "to_q.orig.weight"
    names.push_back(std::string(module.substr(0, module.size() - wrapper.size())) + std::string(leaf));
  else if (!module.empty())
    names.push_back(std::string(module) + "." + std::string(adapterComponent) + "." + std::string(leaf));
  for (const auto &[one, other] : aliases) {
    addAliased(names, one, other);
    addAliased(names, other, one);
  }
  return names;
}

} // namespace segue::inline runtime
