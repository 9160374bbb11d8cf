//===- CalibrationCache.h - calibrated errors on disk -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Calibration costs a few passes over the model; its errors are kept in a JSON
// file with a fingerprint of everything they depend on. A cache that belongs to
// something else, is damaged or lacks a unit is ignored as a whole.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_CALIBRATIONCACHE_H
#define SEGUE_RUNTIME_SERVICES_CALIBRATIONCACHE_H

#include "segue/runtime/Services/OutputError.h"
#include "segue/runtime/Services/SelectivePrecision.h"

namespace segue::inline runtime {

/// Returns the first 16 hex digits of the SHA-256 of these lines, each ended by a line
/// feed: `segue-calib-v1`, `model=<signature>`, `quant=<quantisation>`, `samples=<n>`, then
/// per unit in forward order `unit=<id>:<out>x<in>,...`. `quantisation` is
/// "per_row_symmetric:bits8:pad64".
std::string calibrationFingerprint(std::string_view model, std::string_view quantisation, int64_t samples,
                                   std::span<const PrecisionUnit> units);

/// Returns the errors by unit, in the order of `units`; nothing if the fingerprint is
/// another, a unit is missing, or a value is negative, NaN or no number.
std::optional<std::vector<double>> readCalibration(const Json &cache, std::string_view fingerprint,
                                                   std::span<const std::string> units);

/// Reads the errors from a file. `warning` says why a file that is there was not used;
/// it stays empty for a file that is not there or has another fingerprint.
std::optional<std::vector<double>> loadCalibration(const std::filesystem::path &path, std::string_view fingerprint,
                                                   std::span<const std::string> units, std::string &warning);

/// Writes the file whole or not at all. An infinite error is written as "inf".
/// Throws IoFailed.
void saveCalibration(const std::filesystem::path &path, std::string_view fingerprint,
                     std::span<const std::string> units, std::span<const double> errors);

/// Returns the OutputError of one output.
double calibrationError(std::span<const float> high, std::span<const float> low);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_CALIBRATIONCACHE_H
