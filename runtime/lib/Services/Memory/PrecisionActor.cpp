//===- PrecisionActor.cpp - which blocks are streamed in int8 -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Nothing here waits for the device before the step ends: then backward is long
// over, and the statistics that it returned are on the host.
//
//===----------------------------------------------------------------------===//

#include "PrecisionActor.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/CalibrationCache.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr const char *precisionSection = "memory.stagehand.selective_precision";

/// Conductor's block_precision_map reaches the streamer here: what SquareQ is to
/// serve in the step that begins.
class PrecisionActor::Hints final : public ConductorAdapter {
public:
  explicit Hints(PrecisionActor &actor) : actor_(actor) {}

  std::string owner() const override { return "squareq"; }
  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override {
    if (phase == StepPhase::StepBegin && hints.blockPrecision)
      actor_.apply(*hints.blockPrecision);
  }
  Json knobs() const override { return Json::object(); }

  ServiceId handle{};

private:
  PrecisionActor &actor_;
};

PrecisionActor::PrecisionActor(ServiceContext &context, SelectivePrecisionConfig config, Json section,
                               std::vector<std::shared_ptr<SlabServer>> slabs)
    : context_(context), config_(std::move(config)), section_(std::move(section)), slabs_(std::move(slabs)) {
  if (config_.telemetry.enabled)
    telemetry_.emplace(config_.telemetry.file, context_.warn);
  if (context_.conductor.isEnabled()) {
    hints_ = std::make_unique<Hints>(*this);
    hints_->handle = context_.conductor.attach(*hints_);
  }
}

PrecisionActor::~PrecisionActor() {
  if (hints_)
    context_.conductor.detach(hints_->handle);
}

void PrecisionActor::warnOnce(const std::string &text) {
  if (warned_.insert(text).second)
    context_.warn(text);
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

void PrecisionActor::start(WeightStreamer &streamer, std::vector<Backward> backwards) {
  streamer_ = &streamer;
  backwards_ = std::move(backwards);
  plan_ = planPrecision(streamer.parameters(), slabs_, config_.granularity);
  std::vector<PrecisionUnit> units;
  for (const UnitPlan &plan : plan_.units)
    units.push_back(plan.unit);
  bool hasStatistics = false, isOfUnit = false;
  for (const auto &[program, module] : backwards_)
    for (const Value &output : program.outputs())
      if (output.role == Role::Statistics) {
        hasStatistics = true;
        isOfUnit |= plan_.unitOf(module, output.of, config_.granularity) != SIZE_MAX;
      }
  if (hasStatistics && !isOfUnit && !plan_.units.empty())
    throw ConfigError(precisionSection, "granularity",
                      "the programs return statistics of other units than \"" + units.front().name +
                          "\"; compile them with --gradient-statistics=" +
                          (config_.granularity == SelectivePrecisionConfig::Granularity::Layer ? "layer" : "block"),
                      "--gradient-statistics");
  policy_ =
      std::make_unique<RecordedPrecision>(config_, std::move(units), section_, context_.recordEvents, context_.warn);
  inForce_ = policy_->policy().precisions(0);
  streamer.onFormFailed([this](const std::string &unit, const Error &error) { formFailed(unit, error); });
  if (config_.mode != SelectivePrecisionConfig::Mode::Dynamic)
    return;
  if (std::ranges::none_of(plan_.units, [](const UnitPlan &plan) { return plan.unit.eligible; }))
    warnOnce("selective precision: no unit can change its form" +
             (plan_.units.empty() ? std::string(": no block has parameters that are streamed")
                                  : ": \"" + plan_.units.front().unit.name + "\": " + plan_.units.front().unit.why));
  if (!hasStatistics)
    warnOnce("selective precision: the backward programs return no statistics, so that nothing will be decided; "
             "compile them with --gradient-statistics");
  readEstimates();
  if (config_.runCalibration)
    readCaches();
}

Json PrecisionActor::report() const {
  Json units = Json::array();
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    const PrecisionUnit &unit = plan_.units[i].unit;
    Json forms = Json::array(), weights = Json::array();
    for (Precision form : unit.forms)
      forms.push_back(name(form));
    for (const UnitWeight &weight : plan_.units[i].weights)
      if (!weight.forms.empty())
        weights.push_back(weight.parameter.key);
    units.push_back({{"name", unit.name},
                     {"precision", name(inForce_[i])},
                     {"eligible", unit.eligible},
                     {"why", unit.why},
                     {"forms", std::move(forms)},
                     {"weights", std::move(weights)},
                     {"bf16_bytes", unit.bf16Bytes},
                     {"int8_bytes", unit.int8Bytes},
                     {"fp8_bytes", unit.fp8Bytes}});
  }
  return {{"units", std::move(units)}, {"kept", plan_.kept}};
}

//===----------------------------------------------------------------------===//
// Errors of the low forms
//===----------------------------------------------------------------------===//

const Slab *PrecisionActor::slabOf(Precision form) const {
  for (const auto &slab : slabs_)
    for (const SlabLayer &layer : slab->slab().manifest().layers)
      if (precisionOf(layer) == form)
        return &slab->slab();
  return nullptr;
}

std::vector<std::string> PrecisionActor::namesWith(Precision form) const {
  std::vector<std::string> names;
  for (const UnitPlan &plan : plan_.units)
    if (plan.unit.eligible && std::ranges::find(plan.unit.forms, form) != plan.unit.forms.end())
      names.push_back(plan.unit.name);
  return names;
}

/// What the builder of a slab measured of its weights is a first estimate.
void PrecisionActor::readEstimates() {
  std::map<const Slab *, Json> reports;
  for (const auto &slab : slabs_) {
    std::filesystem::path path = slab->slab().path();
    std::ifstream file(path.replace_extension(".report.json"), std::ios::binary);
    Json report = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (file && report.is_object() && report.contains("per_layer") && report["per_layer"].is_array())
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
        policy_->calibrate(i, form, std::sqrt(squares / double(count)));
    }
}

std::string PrecisionActor::fingerprint(Precision form, int64_t samples) const {
  const Slab &slab = *slabOf(form);
  std::vector<PrecisionUnit> units;
  for (const UnitPlan &plan : plan_.units)
    if (plan.unit.eligible && std::ranges::find(plan.unit.forms, form) != plan.unit.forms.end())
      units.push_back(plan.unit);
  std::string scheme;
  for (const SlabLayer &layer : slab.manifest().layers)
    if (precisionOf(layer) == form)
      scheme = layer.quantScheme + ":bits" + std::to_string(layer.quantBits) + ":pad" + std::to_string(layer.padK);
  return calibrationFingerprint(slab.manifest().modelSignature, scheme, samples, units);
}

/// One file per form: the config's, or beside the slab of the form.
std::filesystem::path PrecisionActor::cachePath(Precision form) const {
  std::filesystem::path path = config_.calibrationCache;
  if (path.empty())
    return std::filesystem::path(slabOf(form)->path()).replace_extension(".calibration.json");
  if (form != Precision::Int8)
    path.replace_extension("." + std::string(name(form)) + path.extension().string());
  return path;
}

void PrecisionActor::readCaches() {
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
        policy_->calibrate(i, form, (*errors)[next++]);
  }
}

void PrecisionActor::calibrated(Precision form, std::span<const std::optional<double>> errors, int64_t samples) {
  std::erase(uncalibrated_, form);
  std::vector<std::string> units;
  std::vector<double> known;
  for (size_t i = 0; i < errors.size(); ++i) {
    if (!errors[i])
      continue;
    if (!std::isfinite(*errors[i]))
      warnOnce("selective precision: the outputs of \"" + plan_.units[i].unit.name + "\" in " +
               std::string(name(form)) + " are not finite; its error counts as infinite");
    policy_->calibrate(i, form, *errors[i]);
    units.push_back(plan_.units[i].unit.name);
    known.push_back(*errors[i]);
  }
  if (units != namesWith(form))
    return; // a unit was refused: its slab is damaged, and nothing of it is kept
  try {
    saveCalibration(cachePath(form), fingerprint(form, samples), units, known);
  } catch (const Error &error) {
    warnOnce(std::string("selective precision: the calibration is not kept: ") + error.what());
  }
}

void PrecisionActor::giveUpCalibration(const std::string &reason) {
  uncalibrated_.clear();
  warnOnce("selective precision: units are not calibrated: " + reason);
}

bool PrecisionActor::wantsErrors() const {
  return policy_ && config_.mode == SelectivePrecisionConfig::Mode::Dynamic && config_.runCalibration &&
         context_.device->hasBytes() && step_ >= config_.warmupSteps && step_ % config_.updateIntervalSteps == 0 &&
         std::ranges::any_of(inForce_, [](Precision precision) { return precision != Precision::Bf16; });
}

void PrecisionActor::observed(size_t unit, double error) { policy_->observeError(unit, inForce_[unit], error); }

//===----------------------------------------------------------------------===//
// The course of a step
//===----------------------------------------------------------------------===//

void PrecisionActor::chooseForms(int64_t step) {
  if (!policy_)
    return;
  step_ = step;
  std::vector<Precision> wanted = policy_->policy().precisions(step);
  BlockPrecisionMap map;
  for (size_t i = 0; i < wanted.size(); ++i)
    map[plan_.units[i].unit.name] = name(wanted[i]);
  if (context_.conductor.isEnabled())
    context_.conductor.setBlockPrecision(std::move(map));
  else
    apply(map);
}

void PrecisionActor::apply(const BlockPrecisionMap &map) {
  std::vector<WeightStreamer::FormChoice> choices;
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    const UnitPlan &plan = plan_.units[i];
    auto found = map.find(plan.unit.name);
    if (found == map.end())
      continue;
    for (Precision precision : {Precision::Bf16, Precision::Int8, Precision::Fp8E4M3})
      if (name(precision) == found->second)
        inForce_[i] = precision;
    WeightStreamer::FormChoice choice{plan.unit.name, {}, inForce_[i]};
    for (const UnitWeight &weight : plan.weights)
      if (!weight.forms.empty())
        choice.weights.push_back(weight.parameter.key);
    choices.push_back(std::move(choice));
  }
  streamer_->setForms(std::move(choices));
}

/// The block that was being loaded comes from its source instead.
void PrecisionActor::formFailed(const std::string &name, const Error &error) {
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    if (plan_.units[i].unit.name != name)
      continue;
    inForce_[i] = Precision::Bf16;
    // No memory says nothing about the form: the next decision tries again.
    if (error.code() == ErrorCode::DeviceOom)
      return policy_->postpone(i, step_ - 1);
    policy_->refuse(i, step_);
    warnOnce("selective precision: \"" + name + "\" goes back to bf16: " + error.what());
  }
}

void PrecisionActor::beginStep(int64_t step) {
  step_ = step - 1;
  collections_.clear();
  loss_.reset();
}

void PrecisionActor::onPhase(Phase phase) {
  if (phase == Phase::Backward) {
    collections_.emplace_back();
    returned_.clear();
  } else if (phase == Phase::StepEnd) {
    endStep();
  }
}

void PrecisionActor::onStatistics(const Program &program, uint32_t output, const Tensor &statistics) {
  if (!policy_ || collections_.empty() || !context_.device->hasBytes())
    return;
  // Two modules of one file: they run in the order that start() was given.
  size_t skip = returned_[{program.image().get(), program.index(), output}]++;
  for (const auto &[backward, module] : backwards_)
    if (backward.image() == program.image() && backward.index() == program.index() && skip-- == 0) {
      size_t unit = plan_.unitOf(module, program.outputs()[output].of, config_.granularity);
      if (unit == SIZE_MAX)
        return;
      TensorDesc desc = statistics.desc();
      desc.layout = Layout{.space = Space::Host};
      collections_.back().push_back({unit, toLayout(context_.device, statistics, std::move(desc))});
      return;
    }
}

void PrecisionActor::collect(const Collection &collection) {
  statistics_.assign(plan_.units.size(), std::nullopt);
  for (const Part &part : collection) {
    std::optional<GradientStatistics> &of = statistics_[part.unit];
    if (!of)
      of.emplace();
    try {
      wait(part.values);
      of->add(std::span<const float, 4>(part.values.data<float>(), 4));
    } catch (const Error &) { // a number that never came is no number
      of->squares = std::numeric_limits<double>::quiet_NaN();
    }
  }
  std::vector<std::optional<double>> norms;
  for (const auto &of : statistics_)
    norms.push_back(of ? std::optional(of->l2()) : std::nullopt);
  policy_->stats(step_, norms);
}

void PrecisionActor::endStep() {
  if (!policy_ || !context_.device->hasBytes())
    return;
  for (const Collection &collection : collections_)
    if (!collection.empty())
      collect(collection);
  collections_.clear();
  if (loss_)
    policy_->loss(step_, *loss_);
  PrecisionDecision decision = policy_->decide(step_);
  if (decision.evaluated) {
    record_ = policy_->policy().telemetry(step_, decision);
    record_["timestamp"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    if (telemetry_)
      telemetry_->write(record_);
  }
  policy_->flush();
}

void PrecisionActor::abortStep() {
  collections_.clear();
  loss_.reset();
  if (policy_)
    policy_->abortStep(step_);
}

void PrecisionActor::tellLossOfAborted(double loss) {
  if (policy_ && context_.device->hasBytes())
    policy_->loss(step_, loss);
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

std::string PrecisionActor::saveState() const { return policy_ ? policy_->policy().saveState().dump() : std::string(); }

void PrecisionActor::restoreState(const std::string &text) {
  Json state = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (state.is_discarded())
    throw Error(ErrorCode::FileCorrupt,
                "the checkpoint's state of Selective Precision is no JSON; use another checkpoint");
  policy_->restoreState(state);
}

} // namespace segue::inline runtime
