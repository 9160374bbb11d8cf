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

std::span<const ReplayService> replayServices() {
  static const std::vector<ReplayService> services = {};
  return services;
}

} // namespace segue::tool
