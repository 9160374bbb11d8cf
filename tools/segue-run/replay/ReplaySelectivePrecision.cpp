//===- ReplaySelectivePrecision.cpp - logs of Selective Precision ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/JsonNumbers.h"
#include "segue/runtime/Services/CalibrationCache.h"
#include "segue/runtime/Services/SelectivePrecision.h"
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace segue::tool {

namespace {
class SelectivePrecisionReplayer : public Replayer {
public:
  explicit SelectivePrecisionReplayer(const ReplayLog &log) : log_(log), precision_(read(log), unitsOf(log)) {}

  Json apply(EventReader &event) override;

private:
  static SelectivePrecisionConfig read(const ReplayLog &log) {
    ConfigReader reader = log.readConfig();
    return SelectivePrecisionConfig::read(reader);
  }
  static std::vector<PrecisionUnit> unitsOf(const ReplayLog &log);
  Json calibration(EventReader &event);
  Json stats(EventReader &event);
  Json decide(EventReader &event);
  Json fingerprint(EventReader &event);
  Json loadCache(EventReader &event);
  Json configCase(EventReader &event);
  Json observe(EventReader &event);
  Json precisions(const PrecisionDecision &decision) const;

  ReplayLog log_;
  SelectivePrecision precision_;
  std::map<std::string, std::string> fingerprints_;
};
} // namespace

static std::optional<Precision> parsePrecision(const Json &text) {
  for (Precision precision : {Precision::Bf16, Precision::Int8, Precision::Fp8E4M3})
    if (text == name(precision))
      return precision;
  return std::nullopt;
}

/// Of a log that a run wrote: see RecordedPrecision.cpp.
std::vector<PrecisionUnit> SelectivePrecisionReplayer::unitsOf(const ReplayLog &log) {
  std::vector<PrecisionUnit> units;
  for (size_t i = 0; i < log.units.size(); ++i) {
    PrecisionUnit &unit = units.emplace_back();
    unit.name = log.units[i];
    if (i >= log.unitDetails.size() || log.unitDetails[i].is_null())
      continue;
    const Json &details = log.unitDetails[i];
    try {
      unit.eligible = details.value("eligible", true);
      unit.why = details.value("why", "");
      unit.stays = parsePrecision(details.value("stays", "bf16")).value_or(Precision::Bf16);
      for (const Json &form : details.value("forms", Json::array()))
        if (auto precision = parsePrecision(form))
          unit.forms.push_back(*precision);
      if (details.contains("bytes")) {
        unit.bf16Bytes = details["bytes"].at(0).get<int64_t>();
        unit.int8Bytes = details["bytes"].at(1).get<int64_t>();
        unit.fp8Bytes = details["bytes"].at(2).get<int64_t>();
      }
    } catch (const Json::exception &error) {
      throw MalformedEvent("\"units\": \"" + unit.name + "\": " + error.what());
    }
  }
  return units;
}

static const Json &objectOf(EventReader &event, std::string_view field) {
  const Json &value = event.json(field);
  if (!value.is_object())
    event.refuse(field, "an object of units");
  return value;
}

Json SelectivePrecisionReplayer::calibration(EventReader &event) {
  // All are read before the first is taken: an error changes nothing.
  std::vector<std::tuple<std::string, Precision, double>> errors;
  auto add = [&](const std::string &unit, Precision form, const Json &value) {
    std::optional<double> error = numberOf(value);
    if (!error)
      event.refuse("errors", "numbers");
    if (!(*error >= 0))
      throw Error(ErrorCode::InvalidArgument, "the error of \"" + unit + "\" is below 0 or NaN");
    if (std::ranges::find(log_.units, unit) == log_.units.end())
      throw Error(ErrorCode::NameUnknown, "there is no unit \"" + unit + "\"");
    errors.push_back({unit, form, *error});
  };
  for (const auto &[unit, value] : objectOf(event, "errors").items()) {
    if (value.is_object())
      for (const auto &[form, error] : value.items())
        add(unit, form == "fp8_e4m3" ? Precision::Fp8E4M3 : Precision::Int8, error);
    else
      add(unit, Precision::Int8, value);
  }
  for (const auto &[unit, form, error] : errors)
    precision_.calibrate(unit, form, error);
  return Json::object();
}

Json SelectivePrecisionReplayer::stats(EventReader &event) {
  int64_t step = event.integer("step");
  const Json &l2 = objectOf(event, "l2");
  std::vector<std::optional<double>> norms;
  for (const std::string &unit : log_.units) {
    auto it = l2.find(unit);
    bool silent = it == l2.end() || it->is_null();
    norms.push_back(silent ? std::nullopt : numberOf(*it));
    if (!silent && !norms.back())
      event.refuse("l2", "numbers, null, \"nan\" or \"inf\"");
  }
  for (const auto &[unit, value] : l2.items())
    if (std::ranges::find(log_.units, unit) == log_.units.end())
      throw Error(ErrorCode::NameUnknown, "there is no unit \"" + unit + "\"");
  return {{"skipped", !precision_.stats(step, norms)}};
}

Json SelectivePrecisionReplayer::observe(EventReader &event) {
  std::optional<Precision> form = parsePrecision(event.json("form"));
  std::optional<double> error = numberOf(event.json("error"));
  if (!form)
    event.refuse("form", "int8 or fp8_e4m3");
  if (!error)
    event.refuse("error", "a number or \"inf\"");
  precision_.observeError(event.text("unit"), *form, *error);
  return Json::object();
}

Json SelectivePrecisionReplayer::precisions(const PrecisionDecision &decision) const {
  Json result = Json::object();
  for (size_t i = 0; i < log_.units.size(); ++i)
    result[log_.units[i]] = name(decision.units[i].precision);
  return result;
}

Json SelectivePrecisionReplayer::decide(EventReader &event) {
  int64_t step = event.integer("step");
  PrecisionDecision decision = precision_.decide(step);
  Json answer = {{"evaluated", decision.evaluated}, {"precision", precisions(decision)}};
  if (!decision.evaluated)
    return answer;
  Json reasons = Json::object(), sensitivities = Json::object();
  for (size_t i = 0; i < log_.units.size(); ++i) {
    const UnitDecision &unit = decision.units[i];
    reasons[log_.units[i]] = unit.reason;
    sensitivities[log_.units[i]] = unit.sensitivity ? Json(*unit.sensitivity) : Json();
  }
  answer["reason"] = reasons;
  answer["sensitivity"] = sensitivities;
  answer["watch"] = decision.watch;
  Json record = precision_.telemetry(step, decision);
  for (const auto &[key, value] : record.items())
    answer[key] = value;
  return answer;
}

static std::vector<PrecisionUnit> shapedUnits(EventReader &event) {
  std::vector<PrecisionUnit> units;
  const Json &list = event.json("units");
  for (const Json &each : list) {
    if (!each.is_array() || each.size() != 3 || !each[0].is_string() || !each[1].is_number_integer() ||
        !each[2].is_number_integer())
      event.refuse("units", "[[id, out, in], ...]");
    std::string id = each[0].get<std::string>();
    if (units.empty() || units.back().name != id)
      units.push_back({.name = id});
    units.back().shapes.push_back({each[1].get<int64_t>(), each[2].get<int64_t>()});
  }
  return units;
}

Json SelectivePrecisionReplayer::fingerprint(EventReader &event) {
  std::string hex =
      calibrationFingerprint(event.text("model"), event.text("quant"), event.integer("samples"), shapedUnits(event));
  if (event.has("save"))
    fingerprints_[event.text("save")] = hex;
  return {{"hex", hex}};
}

Json SelectivePrecisionReplayer::loadCache(EventReader &event) {
  auto known = [&](const char *field) {
    auto it = fingerprints_.find(event.text(field));
    if (it == fingerprints_.end())
      event.refuse(field, "the name of a saved fingerprint");
    return it->second;
  };
  std::string stored = known("stored"), wanted = known("wanted");
  std::vector<std::string> units = event.has("units") ? event.texts("units") : log_.units;
  Json cache = {{"fingerprint", stored}, {"errors", event.json("errors")}};
  return {{"used", readCalibration(cache, wanted, units).has_value()}};
}

Json SelectivePrecisionReplayer::configCase(EventReader &event) {
  // The units of the case count, so the policy is made from it as a whole.
  ReplayLog log = log_;
  if (event.has("units"))
    log.units = event.texts("units");
  static thread_local std::vector<std::string> units;
  units = log.units;
  return answerConfigCase(log, event,
                          [](ConfigReader &reader) { SelectivePrecisionConfig::read(reader).checkUnits(units); });
}

Json SelectivePrecisionReplayer::apply(EventReader &event) {
  const std::string &op = event.op();
  if (op == "calibration")
    return calibration(event);
  if (op == "stats")
    return stats(event);
  if (op == "decide")
    return decide(event);
  if (op == "loss") {
    std::optional<double> value = numberOf(event.json("value"));
    if (!value)
      event.refuse("value", "a number, \"nan\" or \"inf\"");
    Json units = Json::array();
    for (size_t index : precision_.loss(event.integer("step"), *value))
      units.push_back(log_.units[index]);
    return {{"rollback", units}};
  }
  if (op == "abort_step") {
    precision_.abortStep(event.integer("step"));
    return Json::object();
  }
  if (op == "observe")
    return observe(event);
  if (op == "refuse" || op == "postpone") {
    std::string unit = event.text("unit");
    int64_t step = event.integer("step");
    op == "refuse" ? precision_.refuse(unit, step) : precision_.postpone(unit, step);
    return Json::object();
  }
  if (op == "restore") {
    precision_.restoreState(event.json("state"));
    return Json::object();
  }
  if (op == "fingerprint")
    return fingerprint(event);
  if (op == "load_cache")
    return loadCache(event);
  if (op == "config_case")
    return configCase(event);
  event.unknownOp({"calibration", "stats", "decide", "loss", "abort_step", "observe", "refuse", "postpone", "restore",
                   "fingerprint", "load_cache", "config_case"});
}

std::unique_ptr<Replayer> createSelectivePrecisionReplayer(const ReplayLog &log) {
  return std::make_unique<SelectivePrecisionReplayer>(log);
}

} // namespace segue::tool
