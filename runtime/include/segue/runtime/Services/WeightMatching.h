//===- WeightMatching.h - which weight comes from where ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Finds the source of every frozen parameter, by name, then by declared aliases
// (WeightNames.h). All of them have one, of the right shape and type, or the
// start is refused with all that did not match, on both sides: a weight that is
// quietly zero trains a wrong model for days. Pure functions.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_WEIGHTMATCHING_H
#define SEGUE_RUNTIME_SERVICES_WEIGHTMATCHING_H

#include "segue/runtime/Services/WeightNames.h"
#include "segue/runtime/Layout/TensorDesc.h"
#include <span>

namespace segue::inline runtime {

struct FrozenWeight {
  std::string name;
  Shape shape;
  ElementType element = ElementType::bf16;
};

/// A parameter of a session, for a source that stands for the whole model: a slab.
struct ProgramWeight {
  /// The names that a source may have for it, before aliases: the program's where only one
  /// parameter has it, then "module.name".
  std::vector<std::string> names;
  /// The tensor as programs read it.
  TensorDesc desc;
  bool isTrained = false;
};

/// A tensor that a source holds under a name; `element` is the type that it stands for.
struct SourceWeight {
  std::string name;
  Shape shape;
  ElementType element = ElementType::bf16;
};

struct WeightMatch {
  /// For each wanted weight, the index of its source.
  std::vector<size_t> sources;
  /// Sources that nobody wants.
  std::vector<std::string> unused;
};

/// Matches weights with their sources. Throws MissingWeight listing every wanted weight
/// without a source, with what was wrong, and every source that was left over. Without
/// `strictTypes`, a source of another element type matches: it is converted.
WeightMatch matchWeights(std::span<const FrozenWeight> wanted, std::span<const SourceWeight> sources,
                         const NameAliases &aliases = {}, bool strictTypes = true);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTMATCHING_H
