//===- ConductorInspection.h - all that Conductor decides by ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SERVICES_CONDUCTORINSPECTION_H
#define SEGUE_RUNTIME_TEST_SERVICES_CONDUCTORINSPECTION_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Services/Conductor.h"

namespace segue::inline runtime {

struct ConductorInspection {
  /// Everything that decisions depend on, but the plan and the services: two that
  /// have it in common answer alike. Null when Conductor is off.
  static Json state(const Conductor &conductor);
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TEST_SERVICES_CONDUCTORINSPECTION_H
