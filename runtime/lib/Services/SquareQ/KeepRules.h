//===- KeepRules.h - which layers stay bf16 ---------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The patterns of `keep_bf16`. A glob (`*` any text, `?` any one character)
// is held against the whole name of a layer; a bound, `rmse>0.02` or
// `cosine<0.9995`, against what quantising the layer has cost.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_KEEPRULES_H
#define SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_KEEPRULES_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::inline runtime {

class KeepRules {
public:
  /// Returns the rule that `pattern` breaks, or an empty text.
  static std::string whatIsWrong(std::string_view pattern);

  /// Takes patterns, which must be right.
  explicit KeepRules(std::span<const std::string> patterns);

  /// Returns why a layer of this name stays bf16; empty if nothing says so.
  std::string reasonFor(std::string_view layer) const;
  /// Returns why a layer stays bf16 for what quantising it has cost.
  std::string reasonFor(double relRmse, double cosine) const;
  /// Returns true if a layer must be quantised to know whether it stays bf16.
  bool hasBounds() const { return !bounds_.empty(); }

private:
  struct Bound {
    bool isRmse;
    double limit;
    std::string text;
  };
  std::vector<std::string> globs_;
  std::vector<Bound> bounds_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_KEEPRULES_H
