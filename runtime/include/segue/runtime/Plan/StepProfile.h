//===- StepProfile.h - the memory and time of one step ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a planner knows of a training step: the events that services are told,
// in order, with the memory and the computing between each and the next, and
// the gaps in which a tensor lies on the device and is not read. Bytes are
// counted in the order of submits, as DeviceMemory counts them: a freed block
// counts as free from there on, and who takes it waits for its last use. So the
// curve depends on the programs alone and on no clock.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_STEPPROFILE_H
#define SEGUE_RUNTIME_PLAN_STEPPROFILE_H

#include "segue/runtime/Program/Events.h"
#include <cstdint>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// An event, and what lies between it and the next.
struct StepEvent {
  enum class Kind : uint8_t { Phase, BlockBegin, BlockEnd, Save, Restore };
  Kind kind = Kind::Phase;
  /// The phase in which it happens; of a Phase event, the new one.
  Phase phase = Phase::StepBegin;
  /// Name of the phase, block or tensor.
  std::string label;
  /// If nothing leaves: the bytes of device_dram live at the event, and the most
  /// until the next.
  uint64_t liveBytes = 0, peakBytes = 0;
  /// What the work submitted until the next event takes on the device.
  double seconds = 0;
};

/// "phase", "block_begin", ...
std::string_view name(StepEvent::Kind kind);

/// A tensor is on the device from one event to another and nothing reads it.
struct ResidencyGap {
  std::string tensor, block, location;
  /// Bytes of device_dram that it holds.
  uint64_t bytes = 0;
  /// Bytes over the link when it leaves, 0 if the host has them already, and
  /// when it comes back.
  uint64_t outBytes = 0, inBytes = 0;
  /// Indices of events: it can be gone from `leaves` on, and is needed at
  /// `needed`, which is later.
  uint32_t leaves = 0, needed = 0;
};

/// The link between host and device.
struct LinkSpeed {
  double h2dBytesPerSecond = 0, d2hBytesPerSecond = 0, latencySeconds = 0;
};

struct StepProfile {
  std::vector<StepEvent> events;
  std::vector<ResidencyGap> gaps;
  LinkSpeed link;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_STEPPROFILE_H
