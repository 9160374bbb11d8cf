//===- ReplayServices.cpp - the services that replay ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One declaration and one line per service; sorted.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"

namespace segue::tool {

std::unique_ptr<Replayer> createActivationReplayer(const ReplayLog &log);
std::unique_ptr<Replayer> createConductorReplayer(const ReplayLog &log);
std::unique_ptr<Replayer> createPlanReplayer(const ReplayLog &log);
std::unique_ptr<Replayer> createSelectivePrecisionReplayer(const ReplayLog &log);
std::unique_ptr<Replayer> createSquareQReplayer(const ReplayLog &log);
std::unique_ptr<Replayer> createStateReplayer(const ReplayLog &log);
std::unique_ptr<Replayer> createWeightReplayer(const ReplayLog &log);

std::span<const ReplayService> replayServices() {
  static constexpr ReplayService services[] = {
      {"activation", createActivationReplayer},
      {"conductor", createConductorReplayer},
      {"plan", createPlanReplayer},
      {"selective_precision", createSelectivePrecisionReplayer},
      {"squareq", createSquareQReplayer},
      {"state", createStateReplayer},
      {"weight", createWeightReplayer},
  };
  return services;
}

} // namespace segue::tool
