//===- ConductorAdapter.cpp - a service as Conductor sees it --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/ConductorAdapter.h"
#include "../../JsonFields.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

Json ConductorAdapter::knobs() const { return Json::object(); }

StagehandKnobs StagehandKnobs::under(const RuntimeLimitHints &hints) const {
  StagehandKnobs knobs;
  knobs.maxInflight = std::min(maxInflight, hints.maxInflightH2d);
  knobs.prefetchWindow = std::min(prefetchWindow, hints.prefetchWindowCap);
  if (hints.suppressSpeculative)
    knobs.prefetchWindow = std::min(knobs.prefetchWindow, 1);
  return knobs;
}

ActivationKnobs ActivationKnobs::under(const RuntimeLimitHints &hints, StepPhase phase) const {
  ActivationKnobs knobs;
  knobs.maxD2h = std::min(maxD2h, hints.maxInflightD2h);
  knobs.maxH2d = std::min(maxH2d, hints.maxInflightH2d);
  if (hints.suppressSpeculative && phase == StepPhase::Optimizer)
    knobs.maxD2h = 0;
  return knobs;
}

Json StagehandAdapter::knobs() const {
  return jsonOf({{"max_inflight", knobs_->maxInflight}, {"prefetch_window", knobs_->prefetchWindow}});
}

Json ActivationAdapter::knobs() const { return jsonOf({{"max_d2h", knobs_->maxD2h}, {"max_h2d", knobs_->maxH2d}}); }

} // namespace segue::inline runtime
