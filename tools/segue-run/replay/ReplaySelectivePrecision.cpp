//===- ReplaySelectivePrecision.cpp - logs of Selective Precision ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Logs that people write also ask for fingerprints and caches of calibration.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Services/CalibrationCache.h"
#include "segue/runtime/Services/PrecisionCalls.h"
#include <map>

namespace segue::tool {

namespace {
struct ShapedUnits {
  std::vector<PrecisionUnit> units;
};

/// Visits a unit with its shapes, for reading only.
void visitFields(CallFields &fields, ShapedUnits &shaped) {
  Json list;
  visitField(fields, "units", list);
  for (const Json &each : list) {
    if (!each.is_array() || each.size() != 3 || !each[0].is_string() || !each[1].is_number_integer() ||
        !each[2].is_number_integer())
      fields.refuse("units", "[[id, out, in], ...] is");
    std::string id = each[0].get<std::string>();
    if (shaped.units.empty() || shaped.units.back().name != id)
      shaped.units.push_back({.name = id});
    shaped.units.back().shapes.push_back({each[1].get<int64_t>(), each[2].get<int64_t>()});
  }
}

class PrecisionOfLog {
public:
  PrecisionOfLog(SelectivePrecisionConfig config, std::vector<PrecisionUnit> units)
      : policy_(std::move(config), std::move(units)) {}
  operator SelectivePrecision &() { return policy_; }

  std::string fingerprint(const std::string &model, const std::string &quant, int64_t samples,
                          const ShapedUnits &shaped, const std::optional<std::string> &save) {
    std::string hex = calibrationFingerprint(model, quant, samples, shaped.units);
    if (save)
      fingerprints_[*save] = hex;
    return hex;
  }

  bool loadCache(const std::string &stored, const std::string &wanted, const Json &errors,
                 const std::optional<std::vector<std::string>> &given) const {
    std::vector<std::string> units = given.value_or(std::vector<std::string>());
    if (!given)
      for (const PrecisionUnit &unit : policy_.units())
        units.push_back(unit.name);
    Json cache = {{"fingerprint", known("stored", stored)}, {"errors", errors}};
    return readCalibration(cache, known("wanted", wanted), units).has_value();
  }

private:
  const std::string &known(const char *field, const std::string &name) const {
    auto found = fingerprints_.find(name);
    if (found == fingerprints_.end())
      throw MalformedEvent("field \"" + std::string(field) + "\" is \"" + name +
                           "\"; the name of a saved fingerprint is allowed");
    return found->second;
  }

  SelectivePrecision policy_;
  std::map<std::string, std::string> fingerprints_;
};
} // namespace

static std::vector<PrecisionUnit> unitsOf(const ReplayLog &log) {
  std::vector<PrecisionUnit> units;
  for (size_t i = 0; i < log.units.size(); ++i) {
    PrecisionUnit &unit = units.emplace_back();
    unit.name = log.units[i];
    if (i >= log.unitDetails.size() || log.unitDetails[i].is_null())
      continue;
    EventReader entry = EventReader::ofHead(log.unitDetails[i]);
    try {
      visitFields(entry, unit);
    } catch (const MalformedEvent &error) {
      throw MalformedEvent("\"units\": \"" + unit.name + "\": " + error.what());
    }
  }
  return units;
}

static std::unique_ptr<Replayer> createSelectivePrecisionReplayer(const ReplayLog &log) {
  ConfigReader reader = log.readConfig();
  std::tuple questions(PolicyCall("fingerprint", &PrecisionOfLog::fingerprint, AnswerAs{"hex"}, "model", "quant",
                                  "samples", "", "save"),
                       PolicyCall("load_cache", &PrecisionOfLog::loadCache, AnswerAs{"used"}, "stored", "wanted",
                                  "errors", "units"));
  // The units of a case count, too.
  return replay(log, PrecisionOfLog(SelectivePrecisionConfig::read(reader), unitsOf(log)),
                std::tuple_cat(precision_calls::all, questions),
                [names = log.units](ConfigReader &config, EventReader &event) {
                  SelectivePrecisionConfig::read(config).checkUnits(event.has("units") ? event.texts("units") : names);
                });
}

ReplayService replayOfSelectivePrecision() { return {"selective_precision", createSelectivePrecisionReplayer}; }

} // namespace segue::tool
