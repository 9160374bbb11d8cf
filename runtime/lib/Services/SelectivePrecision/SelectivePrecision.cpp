//===- SelectivePrecision.cpp - which blocks may be quantised -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PrecisionState.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/JsonNumbers.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The number of losses before a decision that a watch needs to know what is usual.
static constexpr size_t leastLosses = 5;
/// A watch that ends well, and a rollback, multiply the calibrated error by these.
static constexpr double trustFactor = 0.9, distrustFactor = 2.0, greatestDistrust = 1.0;
/// The share of a new measurement in the smoothed error.
static constexpr double newErrorShare = 0.2;

SelectivePrecision::SelectivePrecision(SelectivePrecisionConfig config, std::vector<PrecisionUnit> units)
    : config_(std::move(config)), units_(std::move(units)), now_(std::make_unique<State>()) {
  std::vector<std::string> names;
  for (const PrecisionUnit &unit : units_)
    names.push_back(unit.name);
  config_.checkUnits(names);
  now_->units.resize(units_.size());
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit &unit = now_->units[i];
    bool low = std::ranges::find(config_.forceInt8, names[i]) != config_.forceInt8.end();
    bool high = std::ranges::find(config_.forceBf16, names[i]) != config_.forceBf16.end();
    std::string why = !units_[i].eligible                   ? units_[i].why
                      : low && !hasForm(i, Precision::Int8) ? "no slab has it in int8"
                                                            : "";
    if (low && !why.empty())
      throw ConfigError("memory.stagehand.selective_precision", "force_int8_blocks",
                        "\"" + names[i] + "\" cannot be int8: " + why, why);
    if (!units_[i].eligible)
      unit.precision = units_[i].stays;
    if ((low || high) && units_[i].eligible)
      unit.forced = low ? Precision::Int8 : Precision::Bf16;
    // Lists alone decide in static mode, from the first step on.
    if (low && config_.mode == SelectivePrecisionConfig::Mode::Static)
      unit.precision = Precision::Int8;
  }
  before_ = std::make_unique<State>(*now_);
}
SelectivePrecision::~SelectivePrecision() = default;
SelectivePrecision::SelectivePrecision(SelectivePrecision &&) noexcept = default;

size_t SelectivePrecision::indexOf(std::string_view name) const {
  for (size_t i = 0; i < units_.size(); ++i)
    if (units_[i].name == name)
      return i;
  throw Error(ErrorCode::NameUnknown, "selective precision: there is no unit \"" + std::string(name) + "\"");
}

/// The first event of a later step makes the earlier ones final.
void SelectivePrecision::enter(int64_t step) {
  if (step < now_->step)
    throw Error(ErrorCode::InvalidArgument, "selective precision: an event of step " + std::to_string(step) +
                                                " comes after one of step " + std::to_string(now_->step));
  if (step > now_->step) {
    *before_ = *now_;
    now_->step = step;
  }
}

void SelectivePrecision::abortStep(int64_t step) {
  if (step == now_->step)
    *now_ = *before_;
  abortedStep_ = step;
}

std::vector<Precision> SelectivePrecision::precisions(int64_t step) const {
  std::vector<Precision> result;
  for (const Unit &unit : (step > now_->step ? *now_ : *before_).units)
    result.push_back(unit.precision);
  return result;
}

//===----------------------------------------------------------------------===//
// Errors of the low forms
//===----------------------------------------------------------------------===//

static void checkError(std::string_view unit, double error) {
  if (!(error >= 0))
    throw Error(ErrorCode::InvalidArgument, "selective precision: the error of \"" + std::string(unit) + "\" is " +
                                                std::to_string(error) + "; it is 0 or more");
}

void SelectivePrecision::calibrate(std::string_view unit, Precision form, double error) {
  checkError(unit, error);
  size_t index = indexOf(unit);
  // Measured before training: no abort takes it back.
  now_->units[index].errors[uint8_t(form)] = error;
  before_->units[index].errors[uint8_t(form)] = error;
}

void SelectivePrecision::observeError(std::string_view unit, Precision form, double error) {
  checkError(unit, error);
  std::optional<double> &known = now_->units[indexOf(unit)].errors[uint8_t(form)];
  known = known && std::isfinite(*known) ? (1 - newErrorShare) * *known + newErrorShare * error : error;
}

std::optional<double> SelectivePrecision::errorOf(const Unit &unit, Precision form) const {
  return form == Precision::Bf16 ? std::nullopt : unit.errors[uint8_t(form)];
}

bool SelectivePrecision::hasForm(size_t index, Precision form) const {
  const std::vector<Precision> &forms = units_[index].forms;
  return forms.empty() || std::ranges::find(forms, form) != forms.end();
}

/// The allowed form with the smaller known error; int8 on a tie. Bf16 if it has
/// none of the allowed ones.
Precision SelectivePrecision::lowFormOf(size_t index) const {
  const Unit &unit = now_->units[index];
  Precision best = Precision::Bf16;
  for (Precision form : config_.lowPrecisions) {
    if (!hasForm(index, form))
      continue;
    if (best == Precision::Bf16)
      best = form;
    double error = errorOf(unit, form).value_or(INFINITY), least = errorOf(unit, best).value_or(INFINITY);
    if (error < least || (error == least && form == Precision::Int8))
      best = form;
  }
  return best;
}

//===----------------------------------------------------------------------===//
// Collecting and scoring
//===----------------------------------------------------------------------===//

bool SelectivePrecision::stats(int64_t step, std::span<const std::optional<double>> norms) {
  if (norms.size() != units_.size())
    throw Error(ErrorCode::InvalidArgument, "selective precision: " + std::to_string(norms.size()) + " norms for " +
                                                std::to_string(units_.size()) + " units");
  enter(step);
  abortedStep_.reset();
  double sum = 0;
  int64_t count = 0, silent = 0;
  for (const std::optional<double> &norm : norms) {
    if (norm && !std::isfinite(*norm)) {
      ++now_->skipped;
      return false; // one bad norm would poison the mean of all
    }
    silent += !norm;
    if (norm)
      sum += *norm, ++count;
  }
  double mean = count ? sum / double(count) : 0;
  now_->silent = silent;
  for (size_t i = 0; i < norms.size(); ++i) {
    if (!norms[i])
      continue;
    std::deque<double> &history = now_->units[i].history;
    history.push_back(mean == 0 ? 0 : *norms[i] / mean);
    while (int64_t(history.size()) > config_.historyWindow)
      history.pop_front();
  }
  return true;
}

std::optional<double> SelectivePrecision::sensitivityOf(size_t index, UnitDecision &decision) const {
  const Unit &unit = now_->units[index];
  if (unit.history.empty())
    return std::nullopt;
  double sum = 0;
  for (double relative : unit.history)
    sum += relative;
  decision.relative = sum / double(unit.history.size());
  Precision form = unit.precision == Precision::Bf16 ? lowFormOf(index) : unit.precision;
  decision.error = errorOf(unit, form);
  double gradScore = std::min(*decision.relative / config_.gradSensitivityThreshold, 1.0);
  double score = gradScore;
  if (decision.error)
    score = config_.gradWeight * gradScore +
            config_.errorWeight * std::min(*decision.error / config_.quantErrorThreshold, 1.0);
  else if (config_.uncalibratedScore == SelectivePrecisionConfig::Uncalibrated::DropTerm)
    score = config_.gradWeight * gradScore;
  return std::clamp(score, 0.0, 1.0);
}

//===----------------------------------------------------------------------===//
// Deciding
//===----------------------------------------------------------------------===//

/// The order of the rules is the contract: the first that matches decides.
UnitDecision SelectivePrecision::decideUnit(size_t index, int64_t step) {
  Unit &unit = now_->units[index];
  UnitDecision decision;
  decision.precision = unit.precision;
  auto become = [&](Precision precision, std::string_view reason) {
    decision.precision = precision;
    decision.reason = reason;
    return decision;
  };
  decision.sensitivity = sensitivityOf(index, decision);
  if (unit.forced)
    return become(*unit.forced, "forced");
  if (!units_[index].eligible)
    return become(unit.precision, "ineligible");
  if (!decision.sensitivity)
    return become(unit.precision, "silent");
  double score = *decision.sensitivity;
  bool quarantined = step < unit.quarantinedUntil;
  if (!unit.decided) {
    unit.decided = true;
    Precision low = lowFormOf(index);
    Precision between = config_.ambiguousDefault == Precision::Bf16 ? Precision::Bf16 : low;
    Precision first = score >= config_.bf16Threshold ? Precision::Bf16 : score < config_.int8Threshold ? low : between;
    if (quarantined)
      return become(Precision::Bf16, "quarantine");
    if (first != Precision::Bf16)
      unit.lastSwitch = step;
    return become(first, "first");
  }
  if (quarantined)
    return become(Precision::Bf16, "quarantine");
  if (unit.lastSwitch && step - *unit.lastSwitch < config_.minStepsBetweenSwitches)
    return become(unit.precision, "cooldown");
  if (unit.precision == Precision::Bf16 && score < config_.int8Threshold - config_.hysteresisMargin) {
    unit.lastSwitch = step;
    return become(lowFormOf(index), "down");
  }
  if (unit.precision != Precision::Bf16 && score >= config_.bf16Threshold) {
    unit.lastSwitch = step;
    return become(Precision::Bf16, "up");
  }
  return become(unit.precision, "keep");
}

PrecisionDecision SelectivePrecision::decide(int64_t step) {
  enter(step);
  PrecisionDecision decision;
  decision.evaluated = config_.mode == SelectivePrecisionConfig::Mode::Dynamic && step >= config_.warmupSteps &&
                       step % config_.updateIntervalSteps == 0;
  std::vector<size_t> lowered;
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit &unit = now_->units[i];
    if (!decision.evaluated) {
      decision.units.push_back({.precision = unit.precision, .reason = unit.forced ? "forced" : "keep"});
      continue;
    }
    UnitDecision one = decideUnit(i, step);
    if (one.precision != unit.precision) {
      ++decision.changes;
      if (one.precision != Precision::Bf16 && !unit.forced)
        lowered.push_back(i);
    }
    unit.precision = one.precision;
    decision.units.push_back(one);
  }
  if (decision.evaluated && config_.lossFeedback && !lowered.empty())
    decision.watch = openWatch(step, std::move(lowered));
  return decision;
}

void SelectivePrecision::refuse(std::string_view name, int64_t step) {
  size_t index = indexOf(name);
  for (State *state : {now_.get(), before_.get()}) {
    Unit &unit = state->units[index];
    unit.precision = Precision::Bf16;
    unit.lastSwitch = step;
    unit.quarantinedUntil = step + config_.quarantineSteps;
    // Nothing of the unit is left to be watched.
    for (Watch &watch : state->watches)
      std::erase(watch.units, index);
  }
}

void SelectivePrecision::postpone(std::string_view name, int64_t step) {
  size_t index = indexOf(name);
  const Unit &old = before_->units[index];
  Unit &unit = now_->units[index];
  if (unit.precision == old.precision) {
    unit.precision = Precision::Bf16;
    return;
  }
  unit.precision = old.precision;
  unit.decided = old.decided;
  unit.lastSwitch = old.lastSwitch;
  if (!now_->watches.empty() && now_->watches.back().step == step)
    std::erase(now_->watches.back().units, index);
}

//===----------------------------------------------------------------------===//
// Loss feedback
//===----------------------------------------------------------------------===//

bool SelectivePrecision::openWatch(int64_t step, std::vector<size_t> lowered) {
  const std::deque<double> &losses = now_->losses;
  if (losses.size() < leastLosses)
    return false;
  double sum = 0, squares = 0;
  for (double value : losses)
    sum += value;
  double mean = sum / double(losses.size());
  for (double value : losses)
    squares += (value - mean) * (value - mean);
  double sigma = std::sqrt(squares / double(losses.size()));
  Watch watch;
  watch.step = step;
  watch.limit = mean + std::max(config_.lossSigma * sigma, config_.lossMinRel * std::fabs(mean));
  watch.units = std::move(lowered);
  now_->watches.push_back(std::move(watch));
  return true;
}

/// Closes the most recent watch; the one below goes on with no streak.
void SelectivePrecision::closeWatch(double errorFactor) {
  for (size_t index : now_->watches.back().units)
    for (std::optional<double> &error : now_->units[index].errors)
      if (error)
        error =
            errorFactor > 1 ? std::min(*error * errorFactor, std::max(*error, greatestDistrust)) : *error * errorFactor;
  now_->watches.pop_back();
  if (!now_->watches.empty())
    now_->watches.back().streak = 0;
}

std::vector<size_t> SelectivePrecision::loss(int64_t step, double value) {
  enter(step);
  std::vector<size_t> rolledBack;
  // Watches whose time is over end well, from the most recent down.
  while (!now_->watches.empty() && step > now_->watches.back().step + config_.lossWindow)
    closeWatch(trustFactor);
  bool finite = std::isfinite(value);
  if (!now_->watches.empty() && step > now_->watches.back().step) {
    Watch &watch = now_->watches.back();
    watch.streak = !finite || value > watch.limit ? watch.streak + 1 : 0;
    if (!finite || watch.streak >= config_.lossPatience) {
      rolledBack = watch.units;
      for (size_t index : rolledBack) {
        Unit &unit = now_->units[index];
        unit.precision = Precision::Bf16;
        unit.lastSwitch = step;
        unit.quarantinedUntil = step + config_.quarantineSteps;
      }
      ++now_->rollbacks;
      closeWatch(distrustFactor);
    } else if (step == watch.step + config_.lossWindow) {
      closeWatch(trustFactor);
    }
  }
  if (finite) {
    now_->losses.push_back(value);
    while (int64_t(now_->losses.size()) > config_.lossWindow)
      now_->losses.pop_front();
  }
  if (abortedStep_ == step)
    *before_ = *now_; // the step is over: it is tried again from here
  return rolledBack;
}

//===----------------------------------------------------------------------===//
// Telemetry
//===----------------------------------------------------------------------===//

std::pair<int64_t, int64_t> SelectivePrecision::storedBytes(std::span<const Precision> precisions) const {
  int64_t stored = 0, bf16 = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    const PrecisionUnit &unit = units_[i];
    int64_t bytes[] = {unit.bf16Bytes, unit.int8Bytes, unit.fp8Bytes};
    bf16 += unit.bf16Bytes;
    stored += bytes[uint8_t(precisions[i])];
  }
  return {stored, bf16};
}

Json SelectivePrecision::telemetry(int64_t step, const PrecisionDecision &decision) const {
  int64_t counts[3] = {}, quarantined = 0, calibrated = 0, evaluated = 0;
  double sum = 0, greatest = 0, least = 0;
  Json details = Json::object();
  std::vector<Precision> precisions;
  for (size_t i = 0; i < units_.size(); ++i) {
    const UnitDecision &one = decision.units[i];
    const PrecisionUnit &unit = units_[i];
    ++counts[uint8_t(one.precision)];
    quarantined += step < now_->units[i].quarantinedUntil;
    calibrated += std::ranges::any_of(now_->units[i].errors, [](const auto &error) { return error.has_value(); });
    precisions.push_back(one.precision);
    if (one.sensitivity) {
      sum += *one.sensitivity;
      greatest = evaluated ? std::max(greatest, *one.sensitivity) : *one.sensitivity;
      least = evaluated ? std::min(least, *one.sensitivity) : *one.sensitivity;
      ++evaluated;
    }
    auto orNull = [](const std::optional<double> &value) { return value ? numberOrText(*value) : Json(); };
    if (config_.logDecisions)
      details[unit.name] = {{"sensitivity", orNull(one.sensitivity)},
                            {"rel", orNull(one.relative)},
                            {"error", orNull(one.error)},
                            {"precision", name(one.precision)},
                            {"reason", one.reason}};
  }
  auto [stored, bf16] = storedBytes(precisions);
  double low = double(counts[1] + counts[2]), all = double(std::max<size_t>(units_.size(), 1));
  return {{"step_id", step},
          {"blocks_bf16", counts[0]},
          {"blocks_int8", counts[1]},
          {"mean_sensitivity", evaluated ? sum / double(evaluated) : 0},
          {"max_sensitivity", greatest},
          {"min_sensitivity", least},
          {"precision_changes", decision.changes},
          {"estimated_bandwidth_saving_pct", 50 * low / all},
          {"block_details", details},
          {"actual_bandwidth_saving_pct", bf16 ? 100.0 * double(bf16 - stored) / double(bf16) : 0},
          {"rollbacks", now_->rollbacks},
          {"quarantined", quarantined},
          {"stats_skipped", now_->skipped},
          {"silent_units", now_->silent},
          {"calibrated_units", calibrated},
          {"blocks_fp8", counts[2]}};
}

} // namespace segue::inline runtime
