//===- PrecisionCalls.cpp - what logs of precisions hold ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/PrecisionCalls.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/JsonNumbers.h"
#include <algorithm>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<Precision>() {
  static constexpr std::string_view names[] = {"bf16", "int8", "fp8_e4m3"};
  return names;
}

//===----------------------------------------------------------------------===//
// Fields
//===----------------------------------------------------------------------===//

void visitFields(CallFields &fields, PrecisionUnit &unit) {
  visitField(fields, "name", unit.name);
  fields.visitOptional("eligible", unit.eligible);
  fields.visitOptional("why", unit.why);
  fields.visitOptional("stays", unit.stays);
  std::vector<std::string> forms;
  for (Precision form : unit.forms)
    forms.emplace_back(nameOf(form));
  fields.visitOptional("forms", forms);
  unit.forms.clear();
  for (const std::string &form : forms) {
    auto known = fromName<Precision>(form);
    if (!known)
      fields.refuse("forms", "bf16, int8, fp8_e4m3 are");
    unit.forms.push_back(*known);
  }
  Json bytes = {unit.bf16Bytes, unit.int8Bytes, unit.fp8Bytes};
  fields.visitOptional("bytes", bytes);
  if (!bytes.is_array() || bytes.size() != 3 || !std::ranges::all_of(bytes, &Json::is_number))
    fields.refuse("bytes", "a list of three numbers is");
  unit.bf16Bytes = bytes[0].get<int64_t>();
  unit.int8Bytes = bytes[1].get<int64_t>();
  unit.fp8Bytes = bytes[2].get<int64_t>();
}

/// Visits {unit: number} of INT8, or {unit: {form: number}}.
void precision_calls::visitFields(CallFields &fields, Calibration &calibration) {
  Json object = Json::object();
  for (const UnitError &each : calibration.errors)
    object[each.unit][std::string(nameOf(each.form))] = numberOrText(each.error);
  visitField(fields, "errors", object);
  if (!object.is_object())
    fields.refuse("errors", "an object of units is");
  calibration.errors.clear();
  auto add = [&](const std::string &unit, Precision form, const Json &value) {
    std::optional<double> error = numberOf(value);
    if (!error)
      fields.refuse("errors", "numbers are");
    calibration.errors.push_back({unit, form, *error});
  };
  for (const auto &[unit, value] : object.items()) {
    if (!value.is_object())
      add(unit, Precision::Int8, value);
    else
      for (const auto &[form, error] : value.items())
        add(unit, form == nameOf(Precision::Fp8E4M3) ? Precision::Fp8E4M3 : Precision::Int8, error);
  }
}

void precision_calls::visitFields(CallFields &fields, Norms &norms) {
  Json object = Json::object();
  for (const auto &[unit, norm] : norms.l2)
    object[unit] = norm ? numberOrText(*norm) : Json();
  visitField(fields, "l2", object);
  if (!object.is_object())
    fields.refuse("l2", "an object of units is");
  norms.l2.clear();
  for (const auto &[unit, value] : object.items()) {
    std::optional<double> norm = numberOf(value);
    if (!norm && !value.is_null())
      fields.refuse("l2", "numbers, null, \"nan\" or \"inf\" are");
    norms.l2[unit] = norm;
  }
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

static void requireUnit(const SelectivePrecision &policy, const std::string &unit) {
  if (std::ranges::find(policy.units(), unit, &PrecisionUnit::name) == policy.units().end())
    throw Error(ErrorCode::NameUnknown, "there is no unit \"" + unit + "\"");
}

void precision_calls::calibrateAll(SelectivePrecision &policy, const Calibration &calibration) {
  for (const UnitError &each : calibration.errors) {
    if (!(each.error >= 0))
      throw Error(ErrorCode::InvalidArgument, "the error of \"" + each.unit + "\" is below 0 or NaN");
    requireUnit(policy, each.unit);
  }
  for (const UnitError &each : calibration.errors)
    policy.calibrate(each.unit, each.form, each.error);
}

void precision_calls::observeError(SelectivePrecision &policy, std::string_view unit, Precision form, AnyNumber error) {
  policy.observeError(unit, form, error.value);
}

bool precision_calls::takeNorms(SelectivePrecision &policy, int64_t step, const Norms &norms) {
  for (const auto &[unit, norm] : norms.l2)
    requireUnit(policy, unit);
  std::vector<std::optional<double>> byUnit;
  for (const PrecisionUnit &unit : policy.units()) {
    auto found = norms.l2.find(unit.name);
    byUnit.push_back(found == norms.l2.end() ? std::nullopt : found->second);
  }
  return policy.stats(step, byUnit);
}

precision_calls::Decision precision_calls::decideStep(SelectivePrecision &policy, int64_t step) {
  return {policy.decide(step), step};
}

std::vector<size_t> precision_calls::takeLoss(SelectivePrecision &policy, int64_t step, AnyNumber value) {
  return policy.loss(step, value.value);
}

//===----------------------------------------------------------------------===//
// Answers
//===----------------------------------------------------------------------===//

Json precision_calls::answerOf(const SelectivePrecision &policy, const Decision &decision) {
  Json precisions = Json::object(), reasons = Json::object(), sensitivities = Json::object();
  for (size_t i = 0; i < decision.units.size(); ++i) {
    const UnitDecision &unit = decision.units[i];
    const std::string &name = policy.units()[i].name;
    precisions[name] = nameOf(unit.precision);
    reasons[name] = unit.reason;
    sensitivities[name] = unit.sensitivity ? numberOrText(*unit.sensitivity) : Json();
  }
  Json answer = {{"evaluated", decision.evaluated}, {"precision", std::move(precisions)}};
  if (!decision.evaluated)
    return answer;
  answer["reason"] = std::move(reasons);
  answer["sensitivity"] = std::move(sensitivities);
  answer["watch"] = decision.watch;
  answer.update(policy.telemetry(decision.step, decision));
  return answer;
}

Json precision_calls::skippedOf(const SelectivePrecision &, bool isTaken) { return {{"skipped", !isTaken}}; }

Json precision_calls::rollbackOf(const SelectivePrecision &policy, const std::vector<size_t> &units) {
  Json names = Json::array();
  for (size_t unit : units)
    names.push_back(policy.units()[unit].name);
  return {{"rollback", std::move(names)}};
}

} // namespace segue::inline runtime
