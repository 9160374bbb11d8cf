//===- SelectivePrecision.h - which blocks may be quantised -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Watches the gradient norms of units (blocks, or layers of them) and decides,
// slowly and with hysteresis, which of them are stored in bf16 and which in a
// low precision; watches the loss after units were lowered and takes them back
// if it suffers. A policy: events in, decisions out, all arithmetic in f64, so
// that the same events give the same precisions on any machine.
//
//   SelectivePrecision precision(config, {{.name = "h.0"}, {.name = "h.1"}});
//   precision.calibrate("h.0", Precision::Int8, 0.012);
//   precision.loss(step, value);
//   precision.stats(step, norms);               // after backward
//   PrecisionDecision decision = precision.decide(step);
//   precision.precisions(step + 1);             // what the next step runs with
//
// Events of a later step make those of the step before final; until then
// abortStep takes them back. The loss that ended an aborted step is told after
// the abort: the units that it takes back to bf16 stay so when the step is
// tried again.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SELECTIVEPRECISION_H
#define SEGUE_RUNTIME_SERVICES_SELECTIVEPRECISION_H

#include "segue/runtime/Services/SelectivePrecisionConfig.h"
#include <deque>
#include <functional>
#include <optional>

namespace segue::inline runtime {

/// Weights that get one precision together.
struct PrecisionUnit {
  std::string name;
  /// False for a unit that stays as it is: trained base weights, or a form that the slab or
  /// the checkpoint lacks.
  bool eligible = true;
  /// The reason why it is not eligible, for messages.
  std::string why;
  /// The low forms that it can be stored in; empty for all of the config.
  std::vector<Precision> forms = {};
  /// The precision that a unit which is not eligible is stored in.
  Precision stays = Precision::Bf16;
  /// The stored size per form, in bytes; 0 where unknown.
  int64_t bf16Bytes = 0, int8Bytes = 0, fp8Bytes = 0;
  /// The shapes of its linear layers, out × in, for the fingerprint.
  std::vector<std::pair<int64_t, int64_t>> shapes;
};

struct UnitDecision {
  /// The precision from the next step on.
  Precision precision = Precision::Bf16;
  /// One of forced, first, quarantine, cooldown, down, up, keep, silent, ineligible.
  std::string_view reason = "keep";
  /// The figures of the decision; nothing where the unit was not evaluated.
  std::optional<double> sensitivity, relative, error;
};

struct PrecisionDecision {
  /// False if this step takes no decision: every unit keeps what it has.
  bool evaluated = false;
  /// A decision for each unit, in forward order.
  std::vector<UnitDecision> units;
  /// True if a watch over the loss was opened.
  bool watch = false;
  int64_t changes = 0;
};

class SelectivePrecision {
public:
  /// Throws ConfigError for forced ids that are no units, or not eligible.
  SelectivePrecision(SelectivePrecisionConfig config, std::vector<PrecisionUnit> units);
  ~SelectivePrecision();
  SelectivePrecision(SelectivePrecision &&) noexcept;

  const SelectivePrecisionConfig &config() const { return config_; }
  const std::vector<PrecisionUnit> &units() const { return units_; }

  /// Sets the calibrated error of a form, relative to the output in high precision: >= 0 or
  /// +infinity. Throws NameUnknown, InvalidArgument for NaN or less.
  void calibrate(std::string_view unit, Precision form, double error);
  /// Notes an error measured while training, which is smoothed into the calibrated one.
  void observeError(std::string_view unit, Precision form, double error);

  /// Takes gradient norms (L2, over all gradients of a unit) after one backward, by unit;
  /// nothing for a unit without gradients. Returns false if a norm was not finite, so that
  /// the whole collection was dropped.
  bool stats(int64_t step, std::span<const std::optional<double>> norms);

  /// Decides, after the step's collection.
  PrecisionDecision decide(int64_t step);

  /// Notes the loss of a step. Returns the units (indices) that go back to bf16 at the next step because of it.
  std::vector<size_t> loss(int64_t step, double value);

  /// Notes that a unit could not be stored or read in its low form: it is bf16 from now on,
  /// and quarantined; no abort takes that back.
  void refuse(std::string_view unit, int64_t step);
  /// Notes that there was no memory for the other form: the unit keeps what it had before
  /// the decision at `step`, or, if it has that form for longer, goes to bf16 without
  /// having switched.
  void postpone(std::string_view unit, int64_t step);

  /// Forgets what happened in this step.
  void abortStep(int64_t step);

  /// Returns the precisions that the units run with in `step`: by decisions and rollbacks
  /// of earlier steps, not those of the step itself.
  std::vector<Precision> precisions(int64_t step) const;

  /// Returns the bytes of all units as they are stored with these forms, and in bf16.
  std::pair<int64_t, int64_t> storedBytes(std::span<const Precision> precisions) const;

  /// Returns the record of a decision, without its time.
  Json telemetry(int64_t step, const PrecisionDecision &decision) const;

  /// Returns the whole state: a run that restores it decides as if it had never been interrupted.
  Json saveState() const;
  /// Restores a state. Throws FileCorrupt, VersionUnsupported, with nothing changed.
  void restoreState(const Json &state);
  /// Loads a state in two parts: checks it, and returns a function that puts it in
  /// force and throws nothing.
  std::function<void()> prepareState(const Json &state);

private:
  struct Unit;
  struct Watch;
  struct State;

  size_t indexOf(std::string_view unit) const;
  void enter(int64_t step);
  std::optional<double> errorOf(const Unit &unit, Precision form) const;
  bool hasForm(size_t index, Precision form) const;
  Precision lowFormOf(size_t index) const;
  std::optional<double> sensitivityOf(size_t index, UnitDecision &decision) const;
  UnitDecision decideUnit(size_t index, int64_t step);
  bool openWatch(int64_t step, std::vector<size_t> lowered);
  void closeWatch(double errorFactor);

  SelectivePrecisionConfig config_;
  std::vector<PrecisionUnit> units_;
  /// The state now, and as it was at the end of the step before.
  std::unique_ptr<State> now_, before_;
  /// The step that was aborted and not tried again yet.
  std::optional<int64_t> abortedStep_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SELECTIVEPRECISION_H
