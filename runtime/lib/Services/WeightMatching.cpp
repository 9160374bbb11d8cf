//===- WeightMatching.cpp - which weight comes from where -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/WeightMatching.h"
#include "segue/runtime/Error.h"
#include <unordered_map>

namespace segue::inline runtime {

static std::string describe(const Shape &shape, ElementType element) { return TensorDesc(shape, element).str(); }

WeightMatch matchWeights(std::span<const FrozenWeight> wanted, std::span<const SourceWeight> sources,
                         const NameAliases &aliases, bool strictTypes) {
  std::unordered_map<std::string_view, size_t> byName;
  for (size_t i = 0; i < sources.size(); ++i)
    byName.emplace(sources[i].name, i);
  WeightMatch match;
  std::vector<bool> used(sources.size());
  std::string unmatched;
  size_t missing = 0;
  for (const FrozenWeight &weight : wanted) {
    auto found = byName.end();
    for (const std::string &name : sourceNames(weight.name, aliases))
      if (found = byName.find(name); found != byName.end())
        break;
    std::string why;
    if (found == byName.end()) {
      why = "no source has it";
    } else {
      const SourceWeight &source = sources[found->second];
      used[found->second] = true;
      match.sources.push_back(found->second);
      if (source.shape != weight.shape || (strictTypes && source.element != weight.element))
        why = "the source has " + describe(source.shape, source.element);
    }
    if (why.empty())
      continue;
    ++missing;
    unmatched += "\n  wanted " + weight.name + " (" + describe(weight.shape, weight.element) + "): " + why;
  }
  for (size_t i = 0; i < sources.size(); ++i)
    if (!used[i])
      match.unused.push_back(sources[i].name);
  if (!missing)
    return match;
  for (const std::string &name : match.unused)
    unmatched += "\n  left over in the source: " + name;
  throw Error(ErrorCode::MissingWeight, std::to_string(missing) + " of " + std::to_string(wanted.size()) +
                                            " frozen weights have no source; declare aliases or give a file that "
                                            "has them:" +
                                            unmatched);
}

} // namespace segue::inline runtime
