//===- PrecisionService.h - Selective Precision for a session ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Selective Precision is a library of its own, SegueRuntime::SeguePrecision. A
// program whose config files may ask for it links that and says so:
//
//   SessionOptions options{.config = Config::load("segue.json"), .makePrecision = precisionService()};
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_PRECISIONSERVICE_H
#define SEGUE_RUNTIME_SERVICES_PRECISIONSERVICE_H

#include "segue/runtime/Services/MemoryServices.h"

namespace segue::inline runtime {

/// Returns the function that makes Selective Precision, for SessionOptions and MemoryServicesOptions.
MakePrecision precisionService();

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_PRECISIONSERVICE_H
