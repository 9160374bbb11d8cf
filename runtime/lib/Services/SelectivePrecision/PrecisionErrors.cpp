//===- PrecisionErrors.cpp - what the low forms of units change -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Finds what is known of a form's error: first what the builder of the slab measured
// of the weights, then what calibration measured of outputs, which is kept on
// disk for the next run, and while training what it is on a batch of the step.
//
//===----------------------------------------------------------------------===//

#include "../../Program/SubmitLane.h"
#include "BlockCalibration.h"
#include "SelectivePrecisionActor.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/ReadFile.h"
#include "segue/runtime/Services/CalibrationCache.h"
#include "segue/runtime/Transfer/ToLayout.h"

namespace segue::inline runtime {

static bool isEligible(const UnitPlan &plan, Precision form) {
  return plan.unit.eligible && std::ranges::find(plan.unit.forms, form) != plan.unit.forms.end();
}

const Slab *SelectivePrecisionActor::slabOf(Precision form) const {
  for (const auto &slab : slabs_)
    for (const SlabLayer &layer : slab->slab().manifest().layers)
      if (precisionOf(layer) == form)
        return &slab->slab();
  return nullptr;
}

std::vector<std::string> SelectivePrecisionActor::namesWith(Precision form) const {
  std::vector<std::string> names;
  for (const UnitPlan &plan : plan_.units)
    if (isEligible(plan, form))
      names.push_back(plan.unit.name);
  return names;
}

/// Takes what the builder of a slab measured of its weights as a first estimate.
void SelectivePrecisionActor::readEstimates() {
  std::map<const Slab *, Json> reports;
  for (const auto &slab : slabs_) {
    std::filesystem::path path = slab->slab().path();
    std::string text;
    try {
      text = readFile(path.replace_extension(".report.json"));
    } catch (const Error &) { // a slab may be without its report
    }
    Json report;
    if (!readJson(text, report) && report.is_object() && report.contains("per_layer") && report["per_layer"].is_array())
      for (const Json &layer : report["per_layer"])
        if (layer.is_object() && layer.contains("name") && layer["name"].is_string() && layer.contains("rel_rmse") &&
            layer["rel_rmse"].is_number())
          reports[&slab->slab()][layer["name"].get<std::string>()] = layer["rel_rmse"];
  }
  for (size_t i = 0; i < plan_.units.size(); ++i)
    for (Precision form : plan_.units[i].unit.forms) {
      double squares = 0;
      int64_t count = 0;
      for (const UnitWeight &weight : plan_.units[i].weights)
        if (auto slab = weight.forms.find(form); slab != weight.forms.end()) {
          const Json &report = reports[&slab->second->slab()];
          std::string layer = slab->second->slab().layer(weight.parameter.name).canonicalName;
          if (report.is_object() && report.contains(layer)) {
            squares += std::pow(report[layer].get<double>(), 2);
            ++count;
          }
        }
      if (count && squares >= 0)
        calibrateUnit(i, form, std::sqrt(squares / double(count)));
    }
}

std::string SelectivePrecisionActor::fingerprint(Precision form, int64_t samples) const {
  const Slab &slab = *slabOf(form);
  std::vector<PrecisionUnit> units;
  for (const UnitPlan &plan : plan_.units)
    if (isEligible(plan, form))
      units.push_back(plan.unit);
  std::string scheme;
  for (const SlabLayer &layer : slab.manifest().layers)
    if (precisionOf(layer) == form)
      scheme = layer.quantScheme + ":bits" + std::to_string(layer.quantBits) + ":pad" + std::to_string(layer.padK);
  return calibrationFingerprint(slab.manifest().modelSignature, scheme, samples, units);
}

/// One file per form: the config's, or beside the slab of the form.
std::filesystem::path SelectivePrecisionActor::cachePath(Precision form) const {
  std::filesystem::path path = config_.calibrationCache;
  if (path.empty())
    return std::filesystem::path(slabOf(form)->path()).replace_extension(".calibration.json");
  if (form != Precision::Int8)
    path.replace_extension("." + std::string(name(form)) + path.extension().string());
  return path;
}

void SelectivePrecisionActor::readCaches() {
  for (Precision form : config_.lowPrecisions) {
    std::vector<std::string> units = namesWith(form);
    if (units.empty())
      continue;
    std::string warning;
    auto errors = loadCalibration(cachePath(form), fingerprint(form, config_.calibrationSamples), units, warning);
    if (!warning.empty())
      warnOnce(warning);
    if (!errors) {
      uncalibrated_.push_back(form);
      continue;
    }
    for (size_t i = 0, next = 0; i < plan_.units.size() && next < units.size(); ++i)
      if (plan_.units[i].unit.name == units[next])
        calibrateUnit(i, form, (*errors)[next++]);
  }
}

/// Takes errors by unit, nothing where a unit lacks the form; `samples` were taken.
void SelectivePrecisionActor::calibrated(Precision form, std::span<const std::optional<double>> errors,
                                         int64_t samples) {
  std::erase(uncalibrated_, form);
  std::vector<std::string> units;
  std::vector<double> known;
  for (size_t i = 0; i < errors.size(); ++i) {
    if (!errors[i])
      continue;
    if (!std::isfinite(*errors[i]))
      warnOnce("selective precision: the outputs of \"" + plan_.units[i].unit.name + "\" in " +
               std::string(name(form)) + " are not finite; its error counts as infinite");
    calibrateUnit(i, form, *errors[i]);
    units.push_back(plan_.units[i].unit.name);
    known.push_back(*errors[i]);
  }
  if (Json state = policy().saveState(); state["step"] == -1)
    initial_ = std::move(state);
  if (units != namesWith(form) || host_->rank() != 0)
    return; // a unit was refused: its slab is damaged, and nothing of it is kept
  try {
    saveCalibration(cachePath(form), fingerprint(form, samples), units, known);
  } catch (const Error &error) {
    warnOnce(std::string("selective precision: the calibration is not kept: ") + error.what());
  }
}

//===----------------------------------------------------------------------===//
// Measuring
//===----------------------------------------------------------------------===//

int64_t SelectivePrecisionActor::calibrationSamples() const {
  return uncalibrated_.empty() ? 0 : config_.calibrationSamples;
}

void SelectivePrecisionActor::giveUpCalibration(const std::string &reason) {
  uncalibrated_.clear();
  warnOnce("selective precision: units are not calibrated: " + reason);
}

/// Copies and arenas that were kept for another time would be missing in the
/// ring, and above the watermarks.
void SelectivePrecisionActor::giveRoomBack() {
  context_.engine().dropDerived(Space::DeviceDram, UINT64_MAX);
  context_.device->lane().makeRoom(Space::DeviceDram, UINT64_MAX);
}

void SelectivePrecisionActor::calibrate(std::span<const TensorMap> batches) {
  if (const Module *module = BlockCalibration::lacksSegments(host_->modules()))
    return giveUpCalibration("module \"" + module->name() +
                             "\" has no programs for its blocks; compile it with --block-programs");
  std::set<UnitForm> wanted;
  for (Precision form : uncalibrated_)
    for (size_t i = 0; i < plan_.units.size(); ++i)
      if (isEligible(plan_.units[i], form))
        wanted.insert({i, form});
  size_t samples = std::min(batches.size(), size_t(config_.calibrationSamples));
  if (host_->isShared()) {
    std::vector<std::string> told = host_->exchange("how many batches calibrate", std::to_string(samples));
    samples = std::stoul(told.front());
    if (host_->isPipelined())
      for (const std::string &text : told)
        samples = std::min<size_t>(samples, std::stoul(text));
  }
  Measured measured;
  try {
    measured = measure(batches, samples, wanted, /*measuring=*/0, /*givesRing=*/true);
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw;
    return giveUpCalibration(std::string("there is no memory for it: ") + error.what());
  }
  for (const auto &[unit, error] : measured.failures)
    refused(unit, error);
  for (Precision form : std::vector(uncalibrated_)) {
    std::vector<std::optional<double>> errors(plan_.units.size());
    for (const auto &[which, error] : measured.errors)
      if (which.second == form)
        errors[which.first] = error;
    calibrated(form, errors, measured.samples);
  }
}

SelectivePrecisionActor::Measured SelectivePrecisionActor::measure(std::span<const TensorMap> batches, size_t samples,
                                                                   const std::set<UnitForm> &wanted,
                                                                   int measuring, bool givesRing) {
  Measured own;
  std::exception_ptr failure;
  try {
    try {
      host_->settle(givesRing); // blocks come one at a time, and without a ring
    } catch (const std::exception &error) {
      if (host_->isShared()) // others wait for what this rank was to send
        host_->abandon(error.what());
      throw;
    }
    BlockCalibration calibration(*host_, plan_, wanted);
    for (size_t i = 0; i < samples; ++i)
      isMeasuring(measuring) ? calibration.sample(batches[i]) : calibration.serve();
    giveRoomBack();
    for (const auto &[unit, form] : wanted)
      if (auto error = calibration.errors(form)[unit])
        own.errors[{unit, form}] = *error;
    own.samples = calibration.samples();
    own.failures = calibration.failures();
  } catch (const std::exception &) {
    failure = std::current_exception();
  }
  return tellMeasured(std::move(own), failure, measuring);
}

/// Returns true if the step that ends now takes a decision for which the errors of units in
/// a low form are to be measured again.
bool SelectivePrecisionActor::wantsErrors() const {
  return policy_ && config_.mode == SelectivePrecisionConfig::Mode::Dynamic && config_.runCalibration &&
         context_.device->hasBytes() && step_ >= config_.warmupSteps && step_ % config_.updateIntervalSteps == 0 &&
         std::ranges::any_of(inForce_, [](Precision precision) { return precision != Precision::Bf16; }) &&
         !BlockCalibration::lacksSegments(host_->modules());
}

/// A copy, since the caller has his memory back before the step ends.
void SelectivePrecisionActor::batchEnded(const TensorMap &batch) {
  lastBatch_.clear();
  if (!wantsErrors() || !isMeasuring(host_->ranks() - 1))
    return;
  for (const auto &[name, tensor] : batch) {
    lastBatch_[name] = copyTo(context_.device, tensor, tensor.desc());
    wait(lastBatch_[name]);
  }
}

void SelectivePrecisionActor::stepEnded(double loss) {
  loss_ = loss;
  TensorMap batch = std::move(lastBatch_);
  lastBatch_.clear();
  if (!wantsErrors()) // any more, if it did: forms may have failed since
    return;
  std::set<UnitForm> wanted;
  for (size_t i = 0; i < plan_.units.size(); ++i)
    if (isEligible(plan_.units[i], inForce_[i]))
      wanted.insert({i, inForce_[i]});
  Measured measured;
  try {
    measured = measure(std::span(&batch, 1), 1, wanted, host_->ranks() - 1, /*givesRing=*/false);
  } catch (const Error &) { // one that cannot be made is left out: the step has been taken
  }
  for (const auto &[which, error] : measured.errors)
    policy_->tell(precision_calls::observe, nameOf(which.first), which.second, AnyNumber{error});
  giveRoomBack();
}

} // namespace segue::inline runtime
