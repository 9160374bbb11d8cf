//===- Runtime.h - everything of the runtime --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One include for programs that embed Segue:
//
//   auto device = segue::Device::open("cpu");
//   auto a = segue::Binary::load("a.segue"), b = segue::Binary::load("b.segue");
//   auto y = segue::submit(device, a.program("forward"), {x});
//   auto z = segue::submit(device, b.program("forward"), std::move(y));
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_RUNTIME_H
#define SEGUE_RUNTIME_RUNTIME_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Binary.h"
#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Program/Program.h"
#include "segue/runtime/Program/Signatures.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Program/Module.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Session/Stitcher.h"
#include "segue/runtime/Tensor/Tensor.h"
#include "segue/runtime/Transfer/ToLayout.h"

#endif // SEGUE_RUNTIME_RUNTIME_H
