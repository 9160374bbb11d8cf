//===- ConductorAdapter.h - a service as Conductor sees it ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Conductor pushes hints; what a hint means to a service is said here, by the
// service's adapter. The two services with knobs have their adapters below: a
// service keeps its knobs in the struct and reads them whenever it decides.
//
//   StagehandKnobs knobs{.maxInflight = 2, .prefetchWindow = 3};
//   StagehandAdapter adapter("stagehand", knobs);
//   conductor.attach(adapter);            // remembers 2 and 3
//   conductor.enterPhase(...);            // knobs are min(own, hint) from here
//   conductor.detach(...);                // 2 and 3 again
//
// All calls come from the thread that submits, in the order of registration.
// An adapter must not enter a phase or a block from within one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_CONDUCTORADAPTER_H
#define SEGUE_RUNTIME_SERVICES_CONDUCTORADAPTER_H

#include "segue/runtime/Services/ConductorTypes.h"

namespace segue::inline runtime {

class ConductorAdapter {
public:
  virtual ~ConductorAdapter() = default;

  /// Returns the owner's name, such as "stagehand", which is unique within a Conductor.
  virtual std::string owner() const = 0;

  /// Remembers the service's own knobs; called once, at attach.
  virtual void saveKnobs() {}
  /// Puts back what `saveKnobs` remembered; called at detach, also when the
  /// run ends by an error.
  virtual void restoreKnobs() {}
  /// Applies the hints, over the service's own knobs and never beyond them. A call that
  /// throws has changed nothing.
  virtual void applyHints(const RuntimeLimitHints &hints, StepPhase phase) {}

  virtual void onPhaseBegin(StepPhase phase) {}
  virtual void onPhaseEnd(StepPhase phase) {}
  /// Told that `bytes` of the service's reservation `id` went to a stronger request.
  virtual void onReclaimed(uint64_t id, int64_t bytes) {}

  /// Returns the knobs as they are, as an object for telemetry.
  virtual Json knobs() const;
};

/// The knobs of Weight Stagehand.
struct StagehandKnobs {
  /// The number of loads that may be in flight.
  int maxInflight = 2;
  /// The number of blocks that are wanted ahead.
  int prefetchWindow = 3;

  /// Returns these knobs under hints.
  StagehandKnobs under(const RuntimeLimitHints &hints) const;
};

/// The knobs of Activation Stagehand.
struct ActivationKnobs {
  /// The numbers of spills and of restores that may be in flight.
  int maxD2h = 1, maxH2d = 1;

  /// Returns these knobs under hints. Suppression stops spills in OPTIMIZER.
  ActivationKnobs under(const RuntimeLimitHints &hints, StepPhase phase) const;
};

/// Applies hints to knobs that outlive it.
class StagehandAdapter : public ConductorAdapter {
public:
  StagehandAdapter(std::string owner, StagehandKnobs &knobs) : owner_(std::move(owner)), knobs_(&knobs) {}

  std::string owner() const override { return owner_; }
  void saveKnobs() override { own_ = *knobs_; }
  void restoreKnobs() override { *knobs_ = own_; }
  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override { *knobs_ = own_.under(hints); }
  Json knobs() const override;

private:
  std::string owner_;
  StagehandKnobs *knobs_, own_;
};

class ActivationAdapter : public ConductorAdapter {
public:
  ActivationAdapter(std::string owner, ActivationKnobs &knobs) : owner_(std::move(owner)), knobs_(&knobs) {}

  std::string owner() const override { return owner_; }
  void saveKnobs() override { own_ = *knobs_; }
  void restoreKnobs() override { *knobs_ = own_; }
  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override { *knobs_ = own_.under(hints, phase); }
  Json knobs() const override;

private:
  std::string owner_;
  ActivationKnobs *knobs_, own_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_CONDUCTORADAPTER_H
