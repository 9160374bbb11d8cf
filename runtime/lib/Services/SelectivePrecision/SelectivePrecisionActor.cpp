//===- SelectivePrecisionActor.cpp - who streams in int8 ------------------===//
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

#include "SelectivePrecisionActor.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/PrecisionService.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <utility>

namespace segue::inline runtime {

static constexpr const char *precisionSection = "memory.stagehand.selective_precision";

/// Conductor's block_precision_map reaches the streamer here: what SquareQ is to
/// serve in the step that begins.
class SelectivePrecisionActor::Hints final : public ConductorAdapter {
public:
  explicit Hints(SelectivePrecisionActor &actor) : actor_(actor) {}

  std::string owner() const override { return "squareq"; }
  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override {
    if (phase == StepPhase::StepBegin && hints.blockPrecision)
      actor_.chosen_ = *hints.blockPrecision;
  }
  Json knobs() const override { return Json::object(); }

  ServiceId handle{};

private:
  SelectivePrecisionActor &actor_;
};

SelectivePrecisionActor::SelectivePrecisionActor(ServiceContext &context, SelectivePrecisionConfig config, Json section,
                                                 std::vector<std::shared_ptr<SlabServer>> slabs)
    : context_(context), config_(std::move(config)), section_(std::move(section)), slabs_(std::move(slabs)) {
  if (config_.telemetry.enabled)
    telemetry_.emplace(config_.telemetry.file, context_.warn);
}

SelectivePrecisionActor::~SelectivePrecisionActor() {
  if (hints_)
    context_.conductor.detach(hints_->handle);
}

void SelectivePrecisionActor::warnOnce(const std::string &text) {
  if (warned_.insert(text).second)
    context_.warn(text);
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

std::shared_ptr<EventLog> SelectivePrecisionActor::openLog(const std::vector<PrecisionUnit> &units) const {
  if (context_.recordEvents.empty())
    return nullptr;
  Json list = Json::array();
  for (PrecisionUnit unit : units) {
    EventWriter entry;
    visitFields(entry, unit);
    list.push_back(entry.take());
  }
  Json head = {{"service", "selective_precision"},
               {"name", "recorded run"},
               {"config", section_},
               {"units", std::move(list)}};
  return std::make_shared<EventLog>(context_.recordEvents / "selective_precision.json", std::move(head), context_.warn);
}

void SelectivePrecisionActor::start(PrecisionHost &host) {
  host_ = &host;
  streamer_ = &host.weights();
  for (const auto &slab : slabs_)
    streamer_->addSlab(slab);
  if (context_.conductor.isEnabled()) {
    hints_ = std::make_unique<Hints>(*this);
    hints_->handle = context_.conductor.attach(*hints_);
  }
  const std::vector<Module> &modules = host.modules();
  for (size_t m = modules.size(); m-- > 0;)
    if (const Program *backward = modules[m].find("backward"))
      backwards_.emplace_back(*backward, modules[m].name());
  for (auto [m, end] = host.ownModules(); m < end; ++m)
    ownModules_.insert(modules[m].name());
  plan_ = planPrecision(host.parameters(), slabs_, config_.granularity);
  std::vector<PrecisionUnit> units;
  for (const UnitPlan &plan : plan_.units)
    units.push_back(plan.unit);
  bool hasStatistics = false, isOfUnit = false; // of the modules of all ranks, which decide alike
  for (const Module &module : modules) {
    if (!module.binary().hasProgram("backward"))
      continue;
    for (const Value &output : module.binary().program("backward").outputs())
      if (output.role == Role::Statistics) {
        hasStatistics = true;
        isOfUnit |= plan_.unitOf(module.name(), output.of, config_.granularity) != SIZE_MAX;
      }
  }
  if (hasStatistics && !isOfUnit && !plan_.units.empty())
    throw ConfigError(precisionSection, "granularity",
                      "the programs return statistics of other units than \"" + units.front().name +
                          "\"; compile them with --gradient-statistics=" +
                          (config_.granularity == SelectivePrecisionConfig::Granularity::Layer ? "layer" : "block"),
                      "--gradient-statistics");
  std::shared_ptr<EventLog> log = openLog(units);
  policy_ = std::make_unique<Recorded<SelectivePrecision>>(std::move(log), config_, std::move(units));
  inForce_ = policy().precisions(0);
  streamer_->onFormFailed([this](const std::string &unit, const Error &error) { formFailed(unit, error); });
  if (config_.mode == SelectivePrecisionConfig::Mode::Dynamic)
    prepareDecisions(hasStatistics);
  initial_ = policy().saveState();
  chosen_ = wanted(0); // for an evaluation before the first step
  applyForms();
}

void SelectivePrecisionActor::prepareDecisions(bool hasStatistics) {
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

Json SelectivePrecisionActor::report() const {
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
// The course of a step
//===----------------------------------------------------------------------===//

BlockPrecisionMap SelectivePrecisionActor::wanted(int64_t step) const {
  std::vector<Precision> precisions = policy().precisions(step);
  BlockPrecisionMap map;
  for (size_t i = 0; i < precisions.size(); ++i)
    map[plan_.units[i].unit.name] = name(precisions[i]);
  return map;
}

/// Chooses the forms of a step. If Conductor is on, the map that it pushes at STEP_BEGIN counts.
void SelectivePrecisionActor::chooseForms(int64_t step) {
  if (!policy_)
    return;
  step_ = step;
  if (context_.conductor.isEnabled())
    context_.conductor.setBlockPrecision(wanted(step));
  else
    chosen_ = wanted(step);
}

void SelectivePrecisionActor::applyForms() {
  if (!policy_)
    return;
  std::vector<WeightStreamer::FormChoice> choices;
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    const UnitPlan &plan = plan_.units[i];
    auto found = chosen_.find(plan.unit.name);
    if (found == chosen_.end() || !plan.unit.eligible)
      continue;
    for (Precision precision : {Precision::Bf16, Precision::Int8, Precision::Fp8E4M3})
      if (name(precision) == found->second)
        inForce_[i] = precision;
    for (const UnitWeight &weight : plan.weights) {
      auto form = weight.forms.find(inForce_[i]);
      if (!weight.forms.empty() && ownModules_.contains(plan.module))
        choices.push_back({plan.unit.name, weight.parameter.key, form == weight.forms.end() ? nullptr : form->second});
    }
  }
  streamer_->setForms(choices);
}

/// The block that was being loaded comes from its source instead.
void SelectivePrecisionActor::formFailed(const std::string &name, const Error &error) {
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    if (plan_.units[i].unit.name != name)
      continue;
    // A lack of memory says nothing about the form: the next decision tries again.
    if (error.code() == ErrorCode::DeviceOom)
      failed({i, step_ - 1, /*isRefused=*/false});
    else
      refused(i, error);
    return;
  }
}

void SelectivePrecisionActor::refused(size_t unit, const Error &error) {
  failed({unit, step_, /*isRefused=*/true});
  warnOnce("selective precision: \"" + plan_.units[unit].unit.name + "\" goes back to bf16: " + error.what());
}

void SelectivePrecisionActor::on(const event::PhaseBegin &begin) {
  if (begin.phase == Phase::StepBegin) {
    step_ = begin.step - 1;
    collections_.clear();
    loss_.reset();
  } else if (begin.phase == Phase::Backward) {
    collections_.emplace_back();
    returned_.clear();
  } else if (begin.phase == Phase::StepEnd) {
    endStep();
  }
}

void SelectivePrecisionActor::on(const event::Statistics &result) {
  const auto &[program, output, statistics] = result;
  if (!policy_ || collections_.empty() || !context_.device->hasBytes())
    return;
  auto isIt = [&](const Backward &each) {
    return each.first.image() == program.image() && each.first.index() == program.index();
  };
  auto modules = size_t(std::ranges::count_if(backwards_, isIt));
  if (!modules)
    return;
  // A stage of a pipeline runs backwards of several batches in one phase: what comes once more is of the next one.
  std::tuple key(static_cast<const void *>(program.image().get()), program.index(), output);
  if (returned_[key] == modules) {
    collections_.emplace_back();
    returned_.clear();
  }
  // Two modules of one file: they run in the order that start() was given.
  size_t skip = returned_[key]++;
  for (const Backward &each : backwards_)
    if (isIt(each) && skip-- == 0) {
      size_t unit = plan_.unitOf(each.second, program.outputs()[output].of, config_.granularity);
      if (unit == SIZE_MAX)
        return;
      TensorDesc desc = statistics.desc();
      desc.layout = Layout{.space = Space::Host};
      collections_.back().push_back({unit, toLayout(context_.device, statistics, std::move(desc))});
      return;
    }
}

/// Returns the norms of one backward by unit, nothing for a unit without gradients.
SelectivePrecisionActor::Norms SelectivePrecisionActor::normsOf(const Collection &collection) const {
  std::vector<std::optional<GradientStatistics>> statistics(plan_.units.size());
  for (const Part &part : collection) {
    std::optional<GradientStatistics> &of = statistics[part.unit];
    if (!of)
      of.emplace();
    try {
      wait(part.values);
      of->add(std::span<const float, 4>(part.values.data<float>(), 4));
    } catch (const Error &) { // a number that never came is no number
      of->squares = std::numeric_limits<double>::quiet_NaN();
    }
  }
  Norms norms;
  for (const std::optional<GradientStatistics> &each : statistics)
    norms.push_back(each ? std::optional(each->l2()) : std::nullopt);
  return norms;
}

void SelectivePrecisionActor::tellNorms(const Norms &norms) {
  precision_calls::Norms byName;
  for (size_t i = 0; i < norms.size(); ++i)
    byName.l2[nameOf(i)] = norms[i];
  policy_->tell(precision_calls::stats, step_, byName);
}

void SelectivePrecisionActor::endStep() {
  if (!policy_ || !context_.device->hasBytes())
    return;
  for (const Collection &collection : collections_)
    if (!collection.empty())
      tellNorms(normsOf(collection));
  collections_.clear();
  if (loss_)
    policy_->tell(precision_calls::loss, step_, AnyNumber{*loss_});
  PrecisionDecision decision = policy_->tell(precision_calls::decide, step_);
  bool isOfLists = config_.mode == SelectivePrecisionConfig::Mode::Static && !std::exchange(hasToldLists_, true);
  if (decision.evaluated || isOfLists) {
    std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    record_ = {{"step_id", 0}, {"timestamp", now.count()}};
    record_.update(policy().telemetry(step_, decision));
    // Records of a run count steps from 1; the rules of the decision from 0.
    record_["step_id"] = step_ + 1;
    if (telemetry_)
      telemetry_->write(record_);
  }
  if (config_.logDecisions && context_.log)
    logChanges(decision);
  policy_->flush();
}

/// Logs what the next step stores otherwise than this one: "[PRECISION step=51] h.3 bf16 ->
/// int8 (down, sensitivity 0.12); ...".
void SelectivePrecisionActor::logChanges(const PrecisionDecision &decision) {
  std::string text;
  for (size_t i = 0; i < decision.units.size(); ++i) {
    const UnitDecision &one = decision.units[i];
    if (one.precision == inForce_[i])
      continue;
    text += (text.empty() ? " " : "; ") + plan_.units[i].unit.name + " " + std::string(name(inForce_[i])) + " -> " +
            std::string(name(one.precision)) + " (" + std::string(decision.evaluated ? one.reason : "rollback");
    char number[32];
    std::snprintf(number, sizeof number, ", sensitivity %.3g)", one.sensitivity.value_or(0));
    text += one.sensitivity ? number : ")";
  }
  if (!text.empty())
    context_.log("[PRECISION step=" + std::to_string(step_ + 1) + "]" + text);
}

void SelectivePrecisionActor::on(const event::StepAbort &) {
  collections_.clear();
  loss_.reset();
  if (policy_)
    policy_->tell(precision_calls::abortStep, step_);
}

void SelectivePrecisionActor::lossOfAborted(double loss) {
  if (!policy_ || !context_.device->hasBytes())
    return;
  if (host_->isShared())
    lostLoss_ = {step_, loss};
  else
    policy_->tell(precision_calls::loss, step_, AnyNumber{loss});
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

std::string SelectivePrecisionActor::saveState() const {
  return policy_ ? policy().saveState().dump() : std::string();
}

/// Checks the state; what is returned puts it in force and into the log.
std::function<void()> SelectivePrecisionActor::prepared(const Json &state) {
  return [this, state, commit = policy_->unrecorded().prepareState(state)] {
    commit();
    failedForms_.clear();
    lostLoss_.reset();
    policy_->note(precision_calls::restore, state);
  };
}

std::function<void()> SelectivePrecisionActor::prepareState(const std::string &text) {
  if (text.empty())
    return [this, commit = prepared(initial_)] {
      warnOnce("the checkpoint has no state of Selective Precision: its decisions begin anew");
      commit();
    };
  Json state;
  if (std::optional<JsonProblem> problem = readJson(text, state))
    throw Error(ErrorCode::FileCorrupt, "the checkpoint's state of Selective Precision is not JSON: " +
                                            problem->sentence + "; use another checkpoint");
  return prepared(state);
}

//===----------------------------------------------------------------------===//
// Construction
//===----------------------------------------------------------------------===//

/// Opens the slabs that units may come from beside their source.
static std::vector<std::shared_ptr<SlabServer>> openSlabs(const ServiceContext &context, const Config &config,
                                                          const SelectivePrecisionConfig &precision) {
  ConfigReader weightReader = config.section(WeightStagehandConfig::section),
               slabReader = config.section(SquareQConfig::section);
  WeightStagehandConfig weights = WeightStagehandConfig::read(weightReader);
  if (!(weights.enabled && weights.isGiven && weights.squareqSlab))
    throw ConfigError(std::string(WeightStagehandConfig::section), "squareq_slab_path",
                      "Selective Precision needs a slab, and Weight Stagehand to stream it", "squareq_slab_path");
  SquareQConfig squareq = SquareQConfig::read(slabReader);
  // A form is chosen between floats and codes: products of codes have no choice.
  auto codes = std::ranges::find_if(context.program, [](const ProgramWeight &weight) {
    return !weight.isTrained && isQuantized(weight.desc.layout.storage);
  });
  if (codes != context.program.end() || squareq.serve == SlabServe::Fused)
    throw ConfigError(precisionSection, "enabled",
                      codes == context.program.end()
                          ? "Selective Precision serves floats; set " + std::string(SquareQConfig::section) +
                                ".serve to dequant"
                          : "the programs read \"" + codes->names.front() +
                                "\" as codes, so that there is no form to choose; compile them without frozen_storage",
                      "true");
  std::vector<std::shared_ptr<SlabServer>> servers;
  auto open = [&](const std::filesystem::path &path, const std::filesystem::path &manifest) {
    auto slab = std::make_shared<Slab>(path, manifest);
    slab->open({.aliases = context.aliases, .program = context.program, .mayTrain = true}, squareq.verify);
    std::ranges::for_each(slab->notes(), context.warn);
    servers.push_back(
        std::make_shared<SlabServer>(context.device, std::move(slab), SlabServerOptions{.readAheadBytes = 0}));
  };
  open(*weights.squareqSlab, *weights.squareqManifest);
  if (precision.fp8SlabPath)
    open(*precision.fp8SlabPath, {});
  return servers;
}

static std::unique_ptr<PrecisionActor> make(ServiceContext &context, const Config &config) {
  ConfigReader reader = config.section(precisionSection);
  SelectivePrecisionConfig precision = SelectivePrecisionConfig::read(reader);
  auto slabs = openSlabs(context, config, precision);
  return std::make_unique<SelectivePrecisionActor>(context, std::move(precision), config.json(precisionSection),
                                                   std::move(slabs));
}

MakePrecision precisionService() { return &make; }

} // namespace segue::inline runtime
