//===- StepProfile.h - the memory and time of one step ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A StepProfile is all that a planner knows of a training step: the events that services are told,
// in order, with the memory and the computing between each and the next, and
// the gaps in which a tensor lies on the device and is not read. Saved tensors
// have one gap each; parameters, gradients and states of optimizers, the
// residents, have one between each two blocks that touch them, and those that
// outlive the step one around its end. Bytes are
// counted in the order of submits, as DeviceMemory counts them: a freed block
// counts as free from there on, and who takes it waits for its last use. So the
// curve depends on the programs alone and on no clock.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_STEPPROFILE_H
#define SEGUE_RUNTIME_PLAN_STEPPROFILE_H

#include "segue/runtime/Device/LinkSpeed.h"
#include "segue/runtime/Program/Events.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// An event, and what lies between it and the next.
struct StepEvent {
  /// The kind of an event. At Output a gradient is final; at Accumulate one is about to be
  /// added to a sum, at Accumulated it was.
  enum class Kind : uint8_t { Phase, BlockBegin, BlockEnd, Save, Restore, Output, Accumulate, Accumulated };
  Kind kind = Kind::Phase;
  /// The phase in which it happens; for a Phase event, the new one.
  Phase phase = Phase::StepBegin;
  /// The name of the phase, block or tensor.
  std::string label;
  /// The bytes of device_dram that are live at the event if nothing leaves, and the most
  /// until the next.
  uint64_t liveBytes = 0, peakBytes = 0;
  /// The seconds on the device of the work that is submitted until the next event.
  double seconds = 0;
  /// The part of `seconds` in which the work waits for weights that come over the link.
  double linkWaitSeconds = 0;
  /// The bytes that are queued to the device until the next event and belong to no gap, as
  /// those of such weights.
  uint64_t h2dBytes = 0;
};

/// Returns "phase", "block_begin", ...
std::string_view name(StepEvent::Kind kind);

inline constexpr uint32_t noIndex = UINT32_MAX;

/// A parameter, a gradient or a state of an optimizer that comes by block.
struct Resident {
  std::string name;
  Role role = Role::Parameter;
  uint64_t bytes = 0;
};

/// An event at which a resident is needed or has got its value. `index` is the input of the
/// program whose block begins; for Accumulate, 0 is the sum and 1 the gradient; for other
/// events it is 0.
struct ResidentUse {
  uint32_t event = 0, index = 0, resident = 0;
};

/// A program that makes saved tensors again, once they were dropped, from others that
/// are on the device then.
struct StepRemake {
  /// The seconds of its work on the device.
  double seconds = 0;
  /// The most bytes of device_dram that it takes, its outputs included.
  uint64_t bytes = 0;
  /// The indices of the saved gaps and of the residents whose tensors it reads.
  std::vector<uint32_t> gaps, residents;
  /// The last event at which all saved tensors that it reads are known to be there:
  /// backward frees them once it has read them itself.
  uint32_t latest = noIndex;
};

/// A time from one event to another in which a tensor is on the device and nothing reads it.
struct ResidencyGap {
  std::string tensor, block, location;
  /// Bytes of device_dram that it holds.
  uint64_t bytes = 0;
  /// The bytes that go over the link when it leaves, 0 if the host has them already, and
  /// when it comes back.
  uint64_t outBytes = 0, inBytes = 0;
  /// Indices of events: it can be gone from `leaves` on, and is needed at
  /// `needed`, which is later; an earlier one is that of the next step, and the
  /// tensor is away when a step begins.
  uint32_t leaves = 0, needed = 0;
  /// The index of the gap without which this one cannot be, since the host has the bytes
  /// only from that gap on.
  uint32_t with = noIndex;
  /// The index into StepProfile::residents; noIndex for a saved tensor.
  uint32_t resident = noIndex;
  /// True for a parameter or state whose home lies on StepProfile::below.
  bool isOnDisk = false;
  /// Index into StepProfile::remakes of what makes the tensor again at `needed`, where
  /// something does. Tensors with the same one come from one run.
  uint32_t remake = noIndex;

  bool passesEnd() const { return needed <= leaves; }
  /// Returns true if it can be gone right after event `event`.
  bool covers(uint32_t event) const {
    return passesEnd() ? event >= leaves || event < needed : event >= leaves && event < needed;
  }
};

/// A storage that was saved more than once. No plan has it leave, as handles of it are
/// given out; watermarks, which share records, may.
struct SharedSave {
  uint64_t bytes = 0;
  /// The events at which it is saved first and read last.
  uint32_t saved = 0, needed = 0;
};

/// A disk below the host's memory, to which what leaves goes on where that has no room.
struct BelowHost {
  LinkSpeed disk;
  /// The bytes of saved tensors and gradients that the host has room for, beside the homes of parameters and states.
  uint64_t roomBytes = 0;
  /// The bytes that one direction may have between link and disk: one may be this far ahead of the other.
  uint64_t passingBytes = 0;
};

struct StepProfile {
  std::vector<StepEvent> events;
  std::vector<ResidencyGap> gaps;
  std::vector<Resident> residents;
  /// The uses by ascending events.
  std::vector<ResidentUse> uses;
  std::vector<SharedSave> sharedSaves;
  std::vector<StepRemake> remakes;
  /// The link between host and device.
  LinkSpeed link;
  std::optional<BelowHost> below;
};

/// Returns for each event the least bytes that can be live until the next if saved tensors
/// alone leave, each as soon as it is saved and until it is read.
std::vector<uint64_t> leastWithSavedAway(const StepProfile &profile);

/// Removes the gaps of these indices (ascending), and those that cannot be without them.
void removeGaps(StepProfile &profile, std::vector<uint32_t> indices);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_STEPPROFILE_H
