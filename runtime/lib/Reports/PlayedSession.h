//===- PlayedSession.h - a run's session on a twin --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Forecasts play the session of a run on a twin of its device.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_REPORTS_PLAYEDSESSION_H
#define SEGUE_LIB_REPORTS_PLAYEDSESSION_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Session/Session.h"

namespace segue::inline runtime {

/// Returns what decides, of the options of a run, what its steps compute; without its config, files and listeners.
inline SessionOptions playedOptions(const SessionOptions &run) {
  SessionOptions same;
  same.maxGradNorm = run.maxGradNorm;
  same.tied = run.tied;
  same.wires = run.wires;
  same.stages = run.stages;
  same.openSlab = run.openSlab;
  same.aliases = run.aliases;
  same.warn = [](const std::string &) {}; // the run itself says it
  return same;
}

/// Takes what the device takes for programs (Device::bytesForPrograms) and its twin does not; null for 0.
inline std::shared_ptr<Storage> takeForPrograms(const DeviceRef &twin, uint64_t bytes) {
  OwnerId owner = twin->memory().intern({.value = "(programs)"});
  return bytes ? Storage::allocate(twin, Space::DeviceDram, bytes, /*alignment=*/1, owner) : nullptr;
}

} // namespace segue::inline runtime

#endif // SEGUE_LIB_REPORTS_PLAYEDSESSION_H
