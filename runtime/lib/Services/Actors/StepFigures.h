//===- StepFigures.h - what a step has measured -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The figures by which recompute or spill is decided between steps: when each
// tensor is saved and needed, what is in use then, and what computing again
// takes. The thread that submits runs ahead of a device with queues, so that
// its clock does not tell when a command runs: times are the costs of the
// commands before it, as the programs state them, and the clock of the whole
// step tells what they are in seconds.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_STEPFIGURES_H
#define SEGUE_LIB_SERVICES_ACTORS_STEPFIGURES_H

#include "segue/runtime/Services/RecomputeChoice.h"
#include "segue/runtime/Program/Recomputer.h"
#include <map>
#include <vector>

namespace segue::inline runtime {

/// The program that makes a saved tensor again.
struct MadeAgain {
  /// The relativeCost of the program, and the bytes that it takes of the device.
  double cost = 0;
  int64_t runBytes = 0;
  /// The bytes of parameters that cross the link for it, as they were not on the device
  /// when its value was needed. They lie in the ring, and take no more memory.
  uint64_t broughtBytes = 0;
  /// The tensors that it is made from, and those that come along with it.
  std::vector<SavedPlace> sources, together;
};

class StepFigures {
public:
  void beginStep();
  /// Notes a submit. `cost` is its relativeCost.
  void onSubmit(const Program &program, double cost);
  /// Notes that backward begins. `heldBytes` of device_dram would be in use if nothing were away.
  void onTurn(int64_t heldBytes);
  /// Returns the number of the next save.
  size_t count() const { return saved_.size(); }
  /// Notes a save. `heldBytes` of device_dram are in use, without other saved tensors that wait for
  /// their need, and without what anybody gives up when asked. `again` is absent if nothing makes the
  /// tensor again.
  void onSave(SavedPlace place, int64_t bytes, int64_t heldBytes, std::optional<MadeAgain> again);
  /// Notes a save whose bytes are those of another, or somebody else's.
  void onSaveOfNothing() { onSave({}, 0, 0, std::nullopt); }
  /// Notes that `record` is needed, with so many bytes in use. `broughtBytes` are those of
  /// the parameters that would have to be brought to make it again now.
  void onNeed(size_t record, int64_t heldBytes, uint64_t broughtBytes);
  bool isBetweenNeeds() const { return last_.has_value(); }
  /// Notes the bytes in use between two needs.
  void see(int64_t heldBytes);

  /// Returns the records to compute again in steps like the one that ends, which computed
  /// for `seconds`, so that the step fits below the high watermark at the end of forward
  /// and always into the budget. The fastest step so far says what a unit of cost takes,
  /// since others were disturbed. Returns none if the link has carried nothing yet.
  std::vector<bool> toRecompute(double seconds, const LinkRates &link, const DeviceRoom &room);

private:
  double within() const;

  /// The seconds of a unit of cost, the least that was seen; 0 if there was none yet.
  double scale_ = 0;
  /// Costs of the programs before the current one, its own, and how many of the
  /// saves or needs that divide it are past.
  double before_ = 0, current_ = 0;
  int64_t past_ = 0, parts_ = 0;
  int64_t peakHeld_ = 0;
  /// The costs of all saved tensors, in whose times a unit is one of cost.
  std::vector<SavedCost> saved_;
  std::vector<MadeAgain> again_;
  std::map<SavedPlace, size_t> byPlace_;
  /// The record that was needed last; nothing if forward has come since.
  std::optional<size_t> last_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_STEPFIGURES_H
