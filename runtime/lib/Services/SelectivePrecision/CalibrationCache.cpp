//===- CalibrationCache.cpp - calibrated errors on disk -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/CalibrationCache.h"
#include "../SquareQ/Digest.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/JsonNumbers.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/ReadFile.h"
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

std::string calibrationFingerprint(std::string_view model, std::string_view quantisation, int64_t samples,
                                   std::span<const PrecisionUnit> units) {
  std::string text = "segue-calib-v1\nmodel=" + std::string(model) + "\nquant=" + std::string(quantisation) +
                     "\nsamples=" + std::to_string(samples) + "\n";
  for (const PrecisionUnit &unit : units) {
    text += "unit=" + unit.name + ":";
    for (size_t i = 0; i < unit.shapes.size(); ++i)
      text += (i ? "," : "") + std::to_string(unit.shapes[i].first) + "x" + std::to_string(unit.shapes[i].second);
    text += "\n";
  }
  return sha256Hex(std::as_bytes(std::span(text))).substr(0, 16);
}

std::optional<std::vector<double>> readCalibration(const Json &cache, std::string_view fingerprint,
                                                   std::span<const std::string> units) {
  if (!cache.is_object() || cache.value("fingerprint", Json()) != Json(fingerprint))
    return std::nullopt;
  auto errors = cache.find("errors");
  if (errors == cache.end() || !errors->is_object())
    return std::nullopt;
  std::vector<double> result;
  for (const std::string &unit : units) {
    auto it = errors->find(unit);
    if (it == errors->end())
      return std::nullopt;
    double error = numberOf(*it).value_or(NAN);
    if (!(error >= 0))
      return std::nullopt;
    result.push_back(error);
  }
  return result;
}

std::optional<std::vector<double>> loadCalibration(const std::filesystem::path &path, std::string_view fingerprint,
                                                   std::span<const std::string> units, std::string &warning) {
  warning.clear();
  if (std::error_code unknown; !std::filesystem::exists(path, unknown))
    return std::nullopt;
  try {
    Json cache = parseJson(readFile(path), path.string());
    auto errors = readCalibration(cache, fingerprint, units);
    if (!errors && cache.is_object() && cache.value("fingerprint", Json()) == Json(fingerprint))
      warning = path.string() + ": a unit is missing or its error is not a number from 0 up; calibrating again";
    return errors;
  } catch (const Error &error) {
    warning = std::string(error.what()) + "; calibrating again";
    return std::nullopt;
  }
}

void saveCalibration(const std::filesystem::path &path, std::string_view fingerprint,
                     std::span<const std::string> units, std::span<const double> errors) {
  Json values = Json::object();
  for (size_t i = 0; i < units.size(); ++i)
    values[units[i]] = numberOrText(errors[i]);
  OutputFile file(path);
  file.write(Json({{"fingerprint", fingerprint}, {"errors", values}}).dump(1) + "\n");
  file.commit();
}

double calibrationError(std::span<const float> high, std::span<const float> low) {
  OutputError error;
  error.add(high, low);
  return error.value();
}

} // namespace segue::inline runtime
