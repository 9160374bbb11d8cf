//===- KeepRules.cpp - which layers stay bf16 -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KeepRules.h"
#include <charconv>
#include <cmath>
#include <cstdio>

namespace segue::inline runtime {

/// Returns true if `text` matches `glob` whole. Linear but for the last `*` seen.
static bool matches(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g, ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string_view::npos;
}

/// Takes "rmse>0.02" apart. The limit is NaN if the text has no number.
static bool asBound(std::string_view pattern, bool &isRmse, double &limit) {
  size_t sign = pattern.find_first_of("<>");
  if (sign == std::string_view::npos)
    return false;
  isRmse = pattern.substr(0, sign + 1) == "rmse>";
  std::string_view number = pattern.substr(sign + 1);
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), limit);
  if (error != std::errc() || end != number.data() + number.size() ||
      (!isRmse && pattern.substr(0, sign + 1) != "cosine<"))
    limit = NAN;
  return true;
}

std::string KeepRules::whatIsWrong(std::string_view pattern) {
  bool isRmse = false;
  double limit = 0;
  if (pattern.empty())
    return "an empty pattern";
  if (asBound(pattern, isRmse, limit) && !(limit >= 0 && limit <= (isRmse ? INFINITY : 1)))
    return "\"" + std::string(pattern) + "\" is not a bound; write \"rmse>0.02\" or \"cosine<0.999\"";
  return {};
}

KeepRules::KeepRules(std::span<const std::string> patterns) {
  for (const std::string &pattern : patterns) {
    Bound bound{.isRmse = false, .limit = 0, .text = pattern};
    if (asBound(pattern, bound.isRmse, bound.limit))
      bounds_.push_back(bound);
    else
      globs_.push_back(pattern);
  }
}

std::string KeepRules::reasonFor(std::string_view layer) const {
  for (const std::string &glob : globs_)
    if (matches(glob, layer))
      return "keep_bf16 \"" + glob + "\"";
  return {};
}

std::string KeepRules::reasonFor(double relRmse, double cosine) const {
  for (const Bound &bound : bounds_) {
    double found = bound.isRmse ? relRmse : cosine;
    if (bound.isRmse ? found > bound.limit : found < bound.limit) {
      char text[32];
      std::snprintf(text, sizeof text, "%.6g", found);
      return "keep_bf16 \"" + bound.text + "\": " + text;
    }
  }
  return {};
}

} // namespace segue::inline runtime
