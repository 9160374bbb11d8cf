//===- PlanCache.h - plans by spec ------------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_ENGINE_PLANCACHE_H
#define SEGUE_LIB_ENGINE_PLANCACHE_H

#include <memory>
#include <utility>
#include <vector>

namespace segue::inline runtime {

/// The plans of an engine, equal specs once. A program has few distinct specs: a list will do.
/// Who calls from several threads guards it.
template <typename Spec, typename Plan> class PlanCache {
public:
  template <typename Make> std::shared_ptr<const Plan> findOrMake(const Spec &spec, Make make) {
    for (const auto &[known, plan] : plans_)
      if (known == spec)
        return plan;
    plans_.emplace_back(spec, make());
    return plans_.back().second;
  }

private:
  std::vector<std::pair<Spec, std::shared_ptr<const Plan>>> plans_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_ENGINE_PLANCACHE_H
