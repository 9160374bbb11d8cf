//===- CompareAnswer.cpp - an answer against what was expected ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CompareAnswer.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::tool {

static constexpr double relativeTolerance = 1e-9;

static bool agree(const Json &expected, const Json &found) {
  if (!expected.is_number() || !found.is_number())
    return expected == found;
  double a = expected.get<double>(), b = found.get<double>();
  return a == b || std::fabs(a - b) <= relativeTolerance * std::max(std::fabs(a), std::fabs(b));
}

static void compare(const Json &expected, const Json *found, const std::string &where,
                    std::vector<std::string> &lines) {
  auto differ = [&] {
    lines.push_back((where.empty() ? "the answer" : where) + ": " + expected.dump() + " expected, " +
                    (found ? found->dump() : "nothing") + " found");
  };
  if (!found || found->is_null()) {
    if (!expected.is_null())
      differ();
  } else if (expected.is_object() && found->is_object()) {
    for (const auto &[key, value] : expected.items()) {
      auto item = found->find(key);
      // "max_err_over_scale_below": what is expected is a bound.
      if (key.ends_with("_below") && item != found->end() && item->is_number() && value.is_number() &&
          item->get<double>() <= value.get<double>())
        continue;
      compare(value, item == found->end() ? nullptr : &*item, (where.empty() ? "" : where + ".") + key, lines);
    }
  } else if (expected.is_array() && found->is_array() && expected.size() == found->size()) {
    for (size_t i = 0; i < expected.size(); ++i)
      compare(expected[i], &(*found)[i], where + "[" + std::to_string(i) + "]", lines);
  } else if (!agree(expected, *found)) {
    differ();
  }
}

std::vector<std::string> compareAnswer(const Json &expected, const Json &answer) {
  std::vector<std::string> lines;
  compare(expected, &answer, "", lines);
  return lines;
}

} // namespace segue::tool
