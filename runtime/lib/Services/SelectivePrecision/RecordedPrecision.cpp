//===- RecordedPrecision.cpp - decisions that can be played again ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RecordedPrecision.h"
#include "segue/runtime/JsonNumbers.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// JSON has no numbers for what is not finite.
static Json describe(const PrecisionUnit &unit) {
  Json forms = Json::array();
  for (Precision form : unit.forms)
    forms.push_back(name(form));
  return {{"name", unit.name}, {"eligible", unit.eligible},
          {"why", unit.why},   {"stays", name(unit.stays)},
          {"forms", forms},    {"bytes", {unit.bf16Bytes, unit.int8Bytes, unit.fp8Bytes}}};
}

RecordedPrecision::RecordedPrecision(SelectivePrecisionConfig config, std::vector<PrecisionUnit> units, Json section,
                                     const std::filesystem::path &folder,
                                     const std::function<void(const std::string &)> &warn)
    : policy_(std::move(config), std::move(units)) {
  if (folder.empty())
    return;
  Json list = Json::array();
  for (const PrecisionUnit &unit : policy_.units())
    list.push_back(describe(unit));
  Json head = {{"service", "selective_precision"},
               {"name", "recorded run"},
               {"config", std::move(section)},
               {"units", std::move(list)}};
  log_ = std::make_unique<EventLog>(folder / "selective_precision.json", std::move(head), warn);
}

void RecordedPrecision::calibrate(size_t unit, Precision form, double error) {
  policy_.calibrate(nameOf(unit), form, error);
  if (log_)
    log_->add({{"op", "calibration"}, {"errors", {{nameOf(unit), {{name(form), numberOrText(error)}}}}}});
}

void RecordedPrecision::observeError(size_t unit, Precision form, double error) {
  policy_.observeError(nameOf(unit), form, error);
  if (log_)
    log_->add({{"op", "observe"}, {"unit", nameOf(unit)}, {"form", name(form)}, {"error", numberOrText(error)}});
}

bool RecordedPrecision::stats(int64_t step, std::span<const std::optional<double>> norms) {
  bool taken = policy_.stats(step, norms);
  if (!log_)
    return taken;
  Json l2 = Json::object();
  for (size_t i = 0; i < norms.size(); ++i)
    l2[nameOf(i)] = norms[i] ? numberOrText(*norms[i]) : Json();
  log_->add({{"op", "stats"}, {"step", step}, {"l2", std::move(l2)}}, {{"skipped", !taken}});
  return taken;
}

std::vector<size_t> RecordedPrecision::loss(int64_t step, double value) {
  std::vector<size_t> taken = policy_.loss(step, value);
  if (!log_)
    return taken;
  Json units = Json::array();
  for (size_t unit : taken)
    units.push_back(nameOf(unit));
  log_->add({{"op", "loss"}, {"step", step}, {"value", numberOrText(value)}}, {{"rollback", std::move(units)}});
  return taken;
}

PrecisionDecision RecordedPrecision::decide(int64_t step) {
  PrecisionDecision decision = policy_.decide(step);
  if (!log_)
    return decision;
  Json precisions = Json::object(), reasons = Json::object();
  for (size_t i = 0; i < decision.units.size(); ++i) {
    precisions[nameOf(i)] = name(decision.units[i].precision);
    reasons[nameOf(i)] = decision.units[i].reason;
  }
  Json answer = {{"evaluated", decision.evaluated}, {"precision", std::move(precisions)}};
  if (decision.evaluated) {
    answer["reason"] = std::move(reasons);
    answer.update(policy_.telemetry(step, decision));
  }
  log_->add({{"op", "decide"}, {"step", step}}, std::move(answer));
  return decision;
}

void RecordedPrecision::refuse(size_t unit, int64_t step) {
  policy_.refuse(nameOf(unit), step);
  if (log_)
    log_->add({{"op", "refuse"}, {"step", step}, {"unit", nameOf(unit)}});
}

void RecordedPrecision::postpone(size_t unit, int64_t step) {
  policy_.postpone(nameOf(unit), step);
  if (log_)
    log_->add({{"op", "postpone"}, {"step", step}, {"unit", nameOf(unit)}});
}

void RecordedPrecision::abortStep(int64_t step) {
  policy_.abortStep(step);
  if (log_)
    log_->add({{"op", "abort_step"}, {"step", step}});
}

std::function<void()> RecordedPrecision::prepareState(const Json &state) {
  return [this, state, commit = policy_.prepareState(state)] {
    commit();
    if (log_)
      log_->add({{"op", "restore"}, {"state", state}});
  };
}

} // namespace segue::inline runtime
