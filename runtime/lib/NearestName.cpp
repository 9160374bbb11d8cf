//===- NearestName.cpp - "did you mean" -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/NearestName.h"
#include <algorithm>
#include <numeric>
#include <vector>

namespace segue::inline runtime {

/// Returns the Levenshtein distance, with one row of memory.
static size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t(0));
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string_view nearestName(std::string_view name, std::span<const std::string_view> known) {
  std::string_view best;
  size_t bestDistance = 0;
  for (std::string_view candidate : known) {
    size_t distance = editDistance(name, candidate);
    if (best.empty() || distance < bestDistance)
      best = candidate, bestDistance = distance;
  }
  return best;
}

bool isMisspelling(std::string_view name, std::string_view of) {
  return editDistance(name, of) <= std::min<size_t>(2, of.size() / 3);
}

std::string nearestHint(std::string_view name, std::span<const std::string_view> known) {
  std::string_view nearest = nearestName(name, known);
  return nearest.empty() ? std::string() : "; the nearest is \"" + std::string(nearest) + "\"";
}

} // namespace segue::inline runtime
