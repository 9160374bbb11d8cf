//===- SavePrecisionState.cpp - precision across checkpoints --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Units go by name. What the configuration says (forced units) is not saved: a
// resumed run obeys its own. Infinite errors are written as null.
//
//===----------------------------------------------------------------------===//

#include "PrecisionState.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/JsonNumbers.h"
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr Precision lowForms[] = {Precision::Int8, Precision::Fp8E4M3};

static Precision precisionOf(const std::string &text) {
  for (Precision precision : {Precision::Bf16, Precision::Int8, Precision::Fp8E4M3})
    if (name(precision) == text)
      return precision;
  throw Error(ErrorCode::FileCorrupt, "selective precision: the state has the precision \"" + text + "\"");
}

/// Null stands for infinity in states that were saved before it had a text.
static double errorIn(const Json &saved) {
  double error = saved.is_null() ? INFINITY : numberOf(saved).value_or(NAN);
  if (!(error >= 0))
    throw Error(ErrorCode::FileCorrupt, "selective precision: the state has the error " + saved.dump());
  return error;
}

Json SelectivePrecision::saveState() const {
  Json units = Json::object(), watches = Json::array();
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit &unit = now_->units[i];
    Json errors = Json::object();
    for (Precision form : lowForms)
      if (const auto &error = unit.errors[uint8_t(form)])
        errors[std::string(name(form))] = numberOrText(*error);
    units[units_[i].name] = {{"precision", name(unit.precision)},
                             {"decided", unit.decided},
                             {"last_switch", unit.lastSwitch ? Json(*unit.lastSwitch) : Json()},
                             {"quarantined_until", unit.quarantinedUntil},
                             {"history", unit.history},
                             {"errors", errors}};
  }
  for (const Watch &watch : now_->watches)
    watches.push_back({{"step", watch.step}, {"limit", watch.limit}, {"streak", watch.streak}, {"units", watch.units}});
  return {{"version", 1},
          {"step", now_->step},
          {"units", units},
          {"losses", now_->losses},
          {"watches", watches},
          {"rollbacks", now_->rollbacks},
          {"stats_skipped", now_->skipped},
          {"silent_units", now_->silent}};
}

void SelectivePrecision::restoreState(const Json &saved) { prepareState(saved)(); }

std::function<void()> SelectivePrecision::prepareState(const Json &saved) {
  State state = *now_;
  try {
    if (saved.at("version") != 1)
      throw Error(ErrorCode::VersionUnsupported, "selective precision: state of another version");
    state.step = saved.at("step").get<int64_t>();
    const Json &units = saved.at("units");
    if (units.size() != units_.size())
      throw Error(ErrorCode::FileCorrupt, "selective precision: the state is of " + std::to_string(units.size()) +
                                              " units, there are " + std::to_string(units_.size()));
    for (size_t i = 0; i < units_.size(); ++i) {
      if (!units.contains(units_[i].name))
        throw Error(ErrorCode::FileCorrupt, "selective precision: the state lacks unit \"" + units_[i].name + "\"");
      const Json &from = units.at(units_[i].name);
      Unit &unit = state.units[i];
      unit.precision = precisionOf(from.at("precision").get<std::string>());
      unit.decided = from.at("decided").get<bool>();
      const Json &lastSwitch = from.at("last_switch");
      unit.lastSwitch = lastSwitch.is_null() ? std::nullopt : std::optional(lastSwitch.get<int64_t>());
      unit.quarantinedUntil = from.at("quarantined_until").get<int64_t>();
      unit.history = from.at("history").get<std::deque<double>>();
      unit.errors = {};
      for (const auto &[form, error] : from.at("errors").items())
        unit.errors[uint8_t(precisionOf(form))] = errorIn(error);
    }
    state.losses = saved.at("losses").get<std::deque<double>>();
    state.watches.clear();
    for (const Json &from : saved.at("watches")) {
      Watch watch{from.at("step").get<int64_t>(), from.at("limit").get<double>(), from.at("streak").get<int64_t>(),
                  from.at("units").get<std::vector<size_t>>()};
      for (size_t index : watch.units)
        if (index >= units_.size())
          throw Error(ErrorCode::FileCorrupt, "selective precision: the state watches a unit that does not exist");
      state.watches.push_back(std::move(watch));
    }
    state.rollbacks = saved.at("rollbacks").get<int64_t>();
    state.skipped = saved.at("stats_skipped").get<int64_t>();
    state.silent = saved.at("silent_units").get<int64_t>();
  } catch (const Json::exception &error) {
    throw Error(ErrorCode::FileCorrupt, std::string("selective precision: bad state: ") + error.what());
  }
  return [this, now = std::make_shared<State>(state), before = std::make_shared<State>(state)] {
    std::swap(*now_, *now);
    std::swap(*before_, *before);
  };
}

} // namespace segue::inline runtime
