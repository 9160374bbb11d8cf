//===- Session.cpp - a training step over stitched modules ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The optimizer programs are the only writers of parameters and states, and
// they run last: whatever fails before them leaves the last finished step. Where
// modules are compiled with their optimizer in backward, that is so up to the loss.
//
//===----------------------------------------------------------------------===//

#include "../Services/Actors/PrecisionActor.h"
#include "SessionState.h"
#include "SilentConfig.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

namespace segue::inline runtime {

std::vector<Module> makeModules(const DeviceRef &device, std::vector<SessionModule> given) {
  if (given.empty())
    throw Error(ErrorCode::InvalidArgument, "a session needs at least one module");
  std::vector<Module> modules;
  std::set<std::string> names;
  for (size_t i = 0; i < given.size(); ++i) {
    std::string name = given[i].name.empty() ? std::to_string(i) : given[i].name;
    if (!names.insert(name).second)
      throw Error(ErrorCode::InvalidArgument,
                  "two modules of the session are called \"" + name + "\"; give each its own name");
    modules.emplace_back(device, std::move(given[i].binary), std::move(name));
  }
  return modules;
}

//===----------------------------------------------------------------------===//
// Construction
//===----------------------------------------------------------------------===//

/// Returns the config for a rank other than the first, which writes the files that it names. A service that is refused on
/// the one is refused on all.
static Config withoutFiles(const Config &config) {
  return silentConfig(config, [&](Json &stagehand) {
    constexpr const char *precision = "selective_precision";
    if (Json given = config.json("memory.stagehand"); given.contains(precision)) {
      stagehand[precision] = given[precision];
      stagehand[precision]["telemetry_enabled"] = false;
    }
  });
}

SessionState::SessionState(DeviceRef givenDevice, std::vector<SessionModule> given, SessionOptions givenOptions)
    : device(std::move(givenDevice)), options(std::move(givenOptions)), modules(makeModules(device, std::move(given))),
      table(modules, options.tied), values(table.size()), tape(table.size()) {
  if (options.collectives && options.collectives->ranks() > 1) {
    ranks = options.collectives->join(*this);
    ranks->share();
  }
  for (const Module &module : modules) {
    ports.push_back({module.name(), module.inputs(), module.outputs()});
    checkHypers(module);
  }
  checkWires(ports, options.wires);
  if (!options.warn)
    options.warn = [](const std::string &text) { std::fprintf(stderr, "segue: warning: %s\n", text.c_str()); };
  bool leavesFiles = !ranks || ranks->rank() == 0;
  if (!leavesFiles)
    options.recordEvents.clear();
  if (options.config)
    configure(leavesFiles ? *options.config : withoutFiles(*options.config));
  std::vector<std::pair<size_t, size_t>> stateDescs; // module, input of its optimizer
  for (size_t m = 0; m < modules.size(); ++m) {
    plans.push_back(planOptimizer(modules[m], m, table));
    const OptimizerPlan &plan = plans.back();
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i)
      if (plan.optimizerInputs[i].feed == Feed::State)
        stateDescs.push_back({m, i});
  }
  checkPhases(modules);
  if (updatesInBackward() && options.maxGradNorm > 0)
    throw Error(ErrorCode::InvalidArgument,
                "gradients are to be clipped by their norm, which needs all of them before the first update, and a module "
                "was compiled with its optimizer in backward; compile it without in-backward, or do not clip");
  if (options.lossScaling) {
    options.lossScaling->check();
    if (updatesInBackward())
      throw Error(ErrorCode::InvalidArgument,
                  "the loss is to be scaled, so that steps whose gradients are not finite are skipped, and a module "
                  "was compiled with its optimizer in backward, which updates before that is known; compile it "
                  "without in-backward");
  }
  bool isInForward = std::ranges::any_of(plans, &OptimizerPlan::isInForward);
  if (isInForward && (options.weights || (services && (!services->wantsPlan() || services->weights()))))
    throw Error(ErrorCode::Unsupported,
                "a module was compiled with its optimizer in forward, whose gradients stay between two steps: within a "
                "budget that goes by a plan alone (\"mode\": \"planned\"), without a ring of weights; or compile it "
                "without in-forward");
  residency = services ? services->residency() : options.residency;
  streamed.emplace(weights(), residency, !services || services->wantsPlan(), modules, plans, table, values,
                   ranks ? ranks->gatherBlocks() : nullptr);
  takeForPrograms();
  if (services && services->statesLeave() == StatesLeave::Always)
    holdGradients();
  allocateStates(stateDescs);
  streamed->takeFromSlab(device, values, [this](size_t slot) { return isElsewhere(slot); });
  startPrecision();
  if (ranks)
    ranks->leaveElsewhere();
}

void SessionState::prepareStreamed(const StepSizes &step, std::span<const TensorMap> batches) {
  try {
    streamed->prepare();
  } catch (const Error &error) {
    bool isTooSmall = error.code() == ErrorCode::DeviceOom || error.code() == ErrorCode::BudgetInfeasible;
    if (plannedFor.empty() && isTooSmall && letStatesLeave())
      return prepareStreamed(step, batches);
    refuseTooSmall(error, step, batches);
    throw;
  }
}

void SessionState::checkHypers(const Module &module) const {
  for (const Value &hyper : module.hypers())
    if (hyper.name != "seed" && hyper.name != "step")
      throw Error(ErrorCode::Unsupported, "module \"" + module.name() + "\" wants the hyper \"" + hyper.name +
                                              "\", but a session gives seed and step only");
}

/// Follows the phases that a step of these programs goes through, so that a file
/// which cannot be trained with is refused before anything runs.
void SessionState::checkPhases(std::span<const Module> modules) const {
  if (!std::ranges::all_of(modules, &Module::hasBackward))
    return; // evaluations only
  Phase now = Phase::StepBegin;
  auto fail = [&](const Module &module, const std::string &which, Phase next) {
    throw Error(ErrorCode::PhaseOrder, "module \"" + module.name() + "\": " + which + " " + std::string(name(next)) +
                                           " after " + std::string(name(now)) +
                                           ", which no step does; compile the module again");
  };
  auto follow = [&](const Module &module, const Program *program) {
    for (Phase next : program ? program->phases() : std::vector<Phase>()) {
      if (next != now && !canFollow(now, next))
        fail(module, "program \"" + program->name() + "\" enters", next);
      now = next;
    }
  };
  for (const Module &module : modules)
    follow(module, module.find("forward"));
  for (size_t m = modules.size(); m-- > 0;)
    follow(modules[m], modules[m].find("backward"));
  for (auto program : {&OptimizerPlan::gradNorm, &OptimizerPlan::optimizer})
    for (size_t m = 0; m < modules.size(); ++m)
      if (plans[m].ownsParameters && !plans[m].isInBackward)
        follow(modules[m], plans[m].*program);
  if (updatesInBackward() && now == Phase::Backward)
    now = Phase::Optimizer; // entered with nothing left to do
  if (!canFollow(now, Phase::StepEnd))
    fail(modules[0], "none of its programs enters a phase, and a step would go to", Phase::StepEnd);
}

/// Does what a config file says of the device and of records.
void SessionState::configure(const Config &config) {
  if (!config.foreign().empty()) {
    constexpr size_t mostNamed = 20;
    std::string keys;
    for (const std::string &key : std::span(config.foreign()).first(std::min(config.foreign().size(), mostNamed)))
      keys += (keys.empty() ? "" : ", ") + key;
    if (config.foreign().size() > mostNamed)
      keys += " and " + std::to_string(config.foreign().size() - mostNamed) + " more";
    options.warn("config: keys of another program are left to it: " + keys);
  }
  services = MemoryServices::create(device, config,
                                    {.makePrecision = options.makePrecision,
                                     .next = options.events,
                                     .recordEvents = options.recordEvents,
                                     .openSlab = options.openSlab,
                                     .program = programWeights(table.infos()),
                                     .aliases = options.aliases,
                                     .warn = options.warn,
                                     .log = options.log});
  if (services)
    options.events = services.get();
  if (!config.has("memory.stitch"))
    return;
  ConfigReader section = config.section("memory.stitch");
  StitchOptions stitch = StitchOptions::read(section);
  if (stitch.telemetry.enabled) {
    stitchTelemetry.emplace(stitch.telemetry.file);
    device->transfer().record(0); // what others did before is not of the first step
  }
  stitchOptions = device->transfer().hold(std::move(stitch));
  device->transfer().use(stitchOptions);
}

void SessionState::endStep() {
  stitchReport(*device).endStep();
  if (stitchTelemetry)
    stitchTelemetry->write(device->transfer().record(step).json());
}

Session::Session(DeviceRef device, std::vector<SessionModule> modules, SessionOptions options)
    : state_(std::make_unique<SessionState>(std::move(device), std::move(modules), std::move(options))) {}

/// Tensors that PyTorch trains on go on living on the device's disk, and would keep the memory above it.
Session::~Session() {
  if (!state_ || !state_->services)
    return;
  DeviceRef device = state_->device;
  state_.reset();
  giveFreeToSystem(*device);
}

Session::Session(Session &&) noexcept = default;
Session &Session::operator=(Session &&) noexcept = default;

const DeviceRef &Session::device() const & { return state_->device; }
const std::vector<Module> &Session::modules() const & { return state_->modules; }
const MemoryServices *Session::services() const { return state_->services.get(); }
MemoryServices *Session::services() { return state_->services.get(); }
int64_t Session::stepCount() const { return state_->step; }
int64_t Session::seed() const { return state_->options.seed; }
const std::optional<LossScaling> &Session::lossScaling() const { return state_->options.lossScaling; }
const TensorMap &Session::state() const & {
  state_->flush(); // states may be newer on the device
  return state_->optimizerState;
}

//===----------------------------------------------------------------------===//
// Batches of other extents
//===----------------------------------------------------------------------===//

/// Returns the parameters and frozen values of a module.
static std::vector<const Value *> valuesOf(const Module &module) {
  std::vector<const Value *> values;
  for (const std::vector<Value> *list : {&module.parameters(), &module.frozen()})
    for (const Value &value : *list)
      values.push_back(&value);
  return values;
}

void Session::addSizes(std::vector<SessionModule> given, bool areForEvaluation) {
  SessionState &s = *state_;
  s.makeDeferred();
  if (s.precision)
    throw Error(ErrorCode::Unsupported, "Selective Precision has measured the programs of one set of extents; with it, "
                                        "all batches of a session have the same");
  if (s.waiting)
    throw Error(ErrorCode::StateTransition, "programs for other extents are added between steps, and " +
                                                std::to_string(s.waiting) + " batches of one wait for optimize()");
  auto sizes = std::make_unique<SessionState::Sizes>();
  sizes->modules = makeModules(s.device, std::move(given));
  if (s.ranks)
    s.ranks->leaveModules(sizes->modules);
  auto differs = [](const Module &module, const std::string &what) {
    return Error(ErrorCode::InvalidArgument, "module \"" + module.name() + "\" for batches of other extents " + what);
  };
  if (sizes->modules.size() != s.modules.size())
    throw Error(ErrorCode::InvalidArgument, "the session has " + std::to_string(s.modules.size()) + " modules, and " +
                                                std::to_string(sizes->modules.size()) + " are given for other extents");
  for (size_t m = 0; m < s.modules.size(); ++m) {
    const Module &module = sizes->modules[m], &first = s.modules[m];
    if (module.name() != first.name())
      throw differs(module, "stands where \"" + first.name() + "\" is");
    s.checkHypers(module);
    // An evaluation does the same whether a parameter is trained or frozen.
    auto has = [&](const Module &one, const Value &value) {
      return std::ranges::any_of(valuesOf(one), [&](const Value *other) {
        return other->name == value.name && other->desc().shape == value.desc().shape &&
               other->desc().element == value.desc().element && (areForEvaluation || other->role == value.role);
      });
    };
    for (const Value *value : valuesOf(first))
      if (!has(module, *value))
        throw differs(module, "lacks \"" + value->name + "\" of the session, or has it otherwise");
    for (const Value *value : valuesOf(module))
      if (!has(first, *value))
        throw differs(module, "has \"" + value->name + "\", which the session lacks, or has otherwise");
    auto areSame = [](std::span<const Value> a, std::span<const Value> b) {
      return std::ranges::equal(a, b, {}, &Value::name, &Value::name);
    };
    if (s.plans[m].isInBackward && !areForEvaluation && !(module.updatesInBackward() &&
                                     areSame(module.find("backward")->inputs(), s.plans[m].optimizer->inputs()) &&
                                     areSame(module.find("backward")->outputs(), s.plans[m].optimizer->outputs())))
      throw differs(module, "updates other parameters in backward, or in another order");
    sizes->ports.push_back({module.name(), module.inputs(), module.outputs()});
  }
  s.checkPhases(sizes->modules);
  s.streamed->addSizes(sizes->modules, s.modules);
  (areForEvaluation ? s.evaluationSizes : s.otherSizes).push_back(std::move(sizes));
  if (s.services && s.services->statesLeave() == StatesLeave::Always)
    s.holdGradients();
}

/// Returns true if a batch has the extents of the inputs that it names.
static bool haveExtentsOf(std::span<const ModulePorts> modules, const BatchDescs &batch) {
  for (const ModulePorts &module : modules)
    for (const Value &input : module.inputs)
      if (auto given = batch.find(input.name); given != batch.end() && given->second->shape != input.desc().shape)
        return false;
  return true;
}

//===----------------------------------------------------------------------===//
// FORWARD and BACKWARD
//===----------------------------------------------------------------------===//

static BatchDescs descsOf(const TensorMap &batch) {
  BatchDescs descs;
  for (const auto &[name, tensor] : batch) {
    if (!tensor)
      throw Error(ErrorCode::InvalidArgument, "the batch has a null tensor for \"" + name + "\"");
    descs[name] = &tensor.desc();
  }
  return descs;
}

const SessionState::Sizes *SessionState::sizesFor(const BatchDescs &batch, bool isEvaluation) const {
  auto among = [&](const std::vector<std::unique_ptr<const Sizes>> &others) {
    auto found = std::ranges::find_if(others, [&](const auto &each) { return haveExtentsOf(each->ports, batch); });
    return found == others.end() ? nullptr : found->get();
  };
  const Sizes *found = isEvaluation ? among(evaluationSizes) : nullptr;
  return found || haveExtentsOf(ports, batch) ? found : among(otherSizes);
}

SessionState::StepSizes SessionState::stepSizes(std::span<const TensorMap> batches) const {
  StepSizes step;
  for (const TensorMap &batch : batches)
    step.push_back(sizesFor(descsOf(batch)));
  return step;
}

Wiring SessionState::wiringFor(const TensorMap &batch, bool isEvaluation) {
  device->transfer().use(stitchOptions);
  BatchDescs descs = descsOf(batch);
  sizes = sizesFor(descs, isEvaluation);
  std::vector<std::string> notes;
  Wiring wiring = wireModules(portsNow(), options.wires, descs, &notes);
  for (const std::string &note : notes)
    if (warned.insert(note).second)
      options.warn(note);
  return wiring;
}

/// A batch crosses the link once, whoever reads it: two modules may, and
/// backward may again. What would lose bits is left to submit, which has rules
/// for it.
TensorMap SessionState::placeBatch(const Wiring &wiring, const TensorMap &batch) const {
  TensorMap placed = batch;
  const std::vector<Module> &modules = modulesNow();
  for (auto [m, end] = ownModules(); m < end; ++m)
    for (size_t i = 0; i < modules[m].inputs().size(); ++i) {
      if (wiring[m][i])
        continue;
      const Value &input = modules[m].inputs()[i];
      const TensorDesc &wanted = input.desc();
      Tensor &tensor = placed.find(input.name)->second;
      bool leavesHost = isHostSpace(tensor.desc().layout.space) && !isHostSpace(wanted.layout.space);
      if (!leavesHost || !isLossless(tensor.desc(), wanted))
        continue;
      TransferOptions options;
      options.owner = device->memory().intern({.value = input.name, .role = std::string(name(input.role))});
      tensor = device->transfer().toLayout(device, tensor, input.sharedDesc, options);
    }
  return placed;
}

/// The seed of the first module and batch is the user's. Modules number their
/// random ops alone and micro-batches share a step, hence the others get seeds
/// of their own: odd multiples of the golden ratio of 2^64 keep them apart.
int64_t SessionState::seedOf(size_t module) const {
  uint64_t batch = ranks ? ranks->batchNumber() : uint64_t(waiting);
  uint64_t stream = batch << 20 | module;
  return int64_t(uint64_t(options.seed) + stream * 0x9E3779B97F4A7C15u);
}

Module::Lookup SessionState::lookup(size_t module, const Wiring &wiring, const TensorMap &batch,
                                      const std::vector<std::vector<Tensor>> &outputs, TensorMap gathered) const {
  return [this, module, &wiring, &batch, &outputs,
          gathered = std::move(gathered)](const Value &value) mutable -> Tensor {
    switch (value.role) {
    case Role::Parameter:
    case Role::Frozen:
      if (auto found = gathered.find(value.name); found != gathered.end())
        return std::move(found->second);
      return values[table.slotOf(module, value.name)];
    case Role::Hyper: {
      Tensor scalar = Tensor::scalar(device, value.name == "seed" ? seedOf(module) : step + 1);
      return toLayout(device, scalar, value.desc());
    }
    default:
      break;
    }
    std::span<const Value> inputs = modulesNow()[module].inputs();
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].name == value.name) {
        const auto &ref = wiring[module][i];
        return ref ? outputs[ref->module][ref->output] : batch.find(value.name)->second;
      }
    return Tensor();
  };
}

static TensorMap byName(std::span<const Value> outputs, const std::vector<Tensor> &tensors) {
  TensorMap map;
  for (size_t i = 0; i < tensors.size(); ++i)
    map[outputs[i].name] = tensors[i];
  return map;
}

/// Returns true if some module has a loss.
static bool hasLoss(std::span<const ModulePorts> modules) {
  return std::ranges::any_of(
      modules, [](const ModulePorts &module) { return std::ranges::any_of(module.outputs, isLoss); });
}

/// Records the forwards; the batch's tensors by name are values, too.
std::vector<Tensor> SessionState::runForward(const Wiring &wiring, const TensorMap &batch) {
  batchValues.clear();
  losses.clear();
  const std::vector<Module> &modules = modulesNow();
  for (size_t m = 0; m < modules.size(); ++m)
    if (plans[m].isInForward && !modules[m].updatesInForward())
      makeDeferred();
  std::vector<std::vector<Tensor>> outputs(modules.size());
  std::vector<std::vector<GradientTape::ValueId>> ids(modules.size());
  if (ranks)
    ranks->enterStage(outputs, ids);
  std::vector<Tensor> found;
  for (auto [m, end] = ownModules(); m < end; ++m) {
    const Module &module = modules[m];
    ForwardResult result;
    if (deferred && plans[m].isInForward) {
      std::vector<Tensor> inputs = deferredInputs(m), updated;
      isUpdating = true;
      result = module.forwardUpdating(lookup(m, wiring, batch, outputs), std::move(inputs), updated, options.events);
      storeUpdated(plans[m], std::move(updated));
    } else {
      TensorMap gathered = ranks ? ranks->gatherForModule(m) : TensorMap();
      result = module.forward(lookup(m, wiring, batch, outputs, std::move(gathered)), options.events);
    }
    GradientTape::Step step{&module, std::move(result.token), {}, {}, {}};
    for (const Value &parameter : module.parameters()) {
      size_t slot = table.slotOf(m, parameter.name);
      bool isPart = ranks && ranks->isPartOfOther(slot); // which goes to that rank alone
      step.parameters.push_back(isPart ? tape.newValue() : GradientTape::ValueId(slot));
    }
    for (size_t i = 0; i < module.inputs().size(); ++i) {
      if (const auto &ref = wiring[m][i]) {
        step.inputs.push_back(ids[ref->module][ref->output]);
        continue;
      }
      auto [value, isNew] = batchValues.try_emplace(module.inputs()[i].name, 0);
      if (isNew)
        value->second = tape.newValue();
      step.inputs.push_back(value->second);
    }
    outputs[m] = std::move(result.outputs);
    for (size_t i = 0; i < outputs[m].size(); ++i) {
      step.outputs.push_back(tape.newValue());
      if (!isLoss(module.outputs()[i]))
        continue;
      found.push_back(outputs[m][i]);
      if (module.takesGradientOf(module.outputs()[i].name))
        losses.emplace_back(step.outputs.back(), &module.outputs()[i]);
    }
    if (plans[m].isInBackward)
      step.given = updateInputs(m);
    ids[m] = step.outputs;
    tape.record(std::move(step));
  }
  deferred.reset();
  isUpdating = false;
  if (ranks)
    ranks->leaveStage(outputs, ids);
  if (!hasLoss(portsNow()))
    throw Error(ErrorCode::InvalidArgument,
                "no module of the session has a float scalar output called \"loss\"; training needs one: return a scalar, or "
                "a dictionary with one under \"loss\"");
  lastOutputs = byName(portsNow().back().outputs, outputs.back());
  return found;
}

void SessionState::runBackward() {
  for (const auto &[value, output] : losses)
    tape.add(value, hyperTensor(device, *output, lossScale()));
  isUpdating = updatesInBackward();
  EventSink *sending = ranks ? ranks->beginSending() : nullptr;
  tape.play(GradientTape::Play::All, sending ? sending : options.events);
  if (sending)
    ranks->sendingEnded();
  squares.assign(modules.size(), Tensor());
  for (size_t m = 0; m < modules.size(); ++m) {
    if (!plans[m].isInBackward)
      continue;
    std::vector<Tensor> updated = tape.takeUpdated(m);
    for (size_t i = 0; i < updated.size(); ++i)
      if (updated[i] && plans[m].optimizer->output(i).name == gradSquaresName)
        squares[m] = std::exchange(updated[i], Tensor());
    storeUpdated(plans[m], std::move(updated));
  }
  for (const auto &[name, value] : batchValues)
    if (Tensor &gradient = tape.gradient(value))
      inputGradients[name] = std::move(gradient);
  if (ranks)
    ranks->takeGradients();
  tape.dropSteps();
}

void SessionState::drop() {
  if (ranks)
    ranks->drop();
  tape.drop();
  isUpdating = false;
  squares.clear();
  inputGradients.clear();
  lateFailure.reset();
  waiting = 0;
  lossSum = 0;
  isOverflowed = false;
}

void SessionState::abort() {
  drop();
  lastOutputs.clear(); // which would be in the way of the next step's
  hasAborted = true;
  if (services)
    services->abortStep();
}

void SessionState::giveUp(const std::exception &error, const std::string &midway) {
  if (std::exchange(isUpdating, false)) {
    noteTorn(deferred ? step : step + 1, midway);
    deferred.reset();
  }
  settlesWhole();
  if (ranks)
    ranks->tellFailure(error);
  abort();
}

void SessionState::requireTrainable() const {
  requireWhole();
  requireValues();
  for (const Module &module : modules)
    if (!module.hasBackward())
      throw Error(ErrorCode::InvalidArgument,
                  "module \"" + module.name() + "\" has no program \"backward\"; compile it for training");
}

void SessionState::requireOutsideOfHooks(std::string_view what) const {
  if (isInHook)
    throw Error(ErrorCode::StateTransition,
                std::string(what) + " was called by a hook on a gradient, within a step of the same session; call it when "
                                    "the step has ended");
}

void SessionState::noteLoss(double loss) {
  if (std::isfinite(loss))
    return;
  if (options.lossScaling && options.lossScaling->canFall())
    isOverflowed = true; // a step to be skipped
  else if (!lateFailure)
    lateFailure.emplace(ErrorCode::NanLoss, "step " + std::to_string(step + 1) + ": the loss is " +
                                                std::to_string(loss) +
                                                "; parameters and optimizer state are those of step " +
                                                std::to_string(step) +
                                                "; try a smaller learning rate or look at the batch");
}

double Session::forwardBackward(const TensorMap &batch) {
  SessionState &s = *state_;
  s.requireOutsideOfHooks("forwardBackward");
  std::optional<double> badLoss;
  try {
    if (!s.waiting && s.announced.empty()) {
      if (s.ranks)
        s.ranks->beginStep();
      if (s.ranks)
        s.ranks->meetToBegin({});
      s.calibrateIfNeeded(std::span(&batch, 1));
    }
    s.requireTrainable();
    s.checkInBackward();
    if (s.ranks && s.ranks->sharesGradients() && s.announced.empty())
      throw Error(ErrorCode::InvalidArgument, "ranks that have the sums of some gradients alone, or some modules, take whole "
                                              "steps: give all batches to step()");
    Wiring wiring = s.wiringFor(batch);
    if (!s.waiting) {
      if (s.announced.empty()) {
        SessionState::StepSizes guess(std::max<size_t>(s.plannedFor.size(), 1), s.sizes);
        s.prepareStreamed(guess, std::span(&batch, 1));
        s.planFor(guess, std::span(&batch, 1));
      } else {
        s.prepareStreamed(s.announced, std::span(&batch, 1));
      }
      if (s.ranks)
        s.ranks->beginGathering();
      if (s.services)
        s.services->setStep(s.step + 1);
      s.enter(Phase::StepBegin);
    }
    s.inputGradients.clear(); // those of the batch before would lie beside this one, where no plan has them
    std::vector<Tensor> losses = s.runForward(wiring, s.placeBatch(wiring, batch));
    double loss = 0;
    auto readLoss = [&] {
      for (const Tensor &each : losses)
        loss += each.item();
      s.noteLoss(loss);
      if (s.lateFailure)
        badLoss = loss;
      if (s.lateFailure && !(s.ranks && s.ranks->gathersMore()))
        throw *std::exchange(s.lateFailure, std::nullopt);
    };
    // The host reads the loss while the device works on backward, unless that updates
    // parameters: then it must not begin for a loss that is none.
    if (s.updatesInBackward())
      readLoss();
    s.runBackward();
    if (s.ranks)
      s.ranks->backwardEnded();
    if (!s.updatesInBackward())
      readLoss();
    if (s.precision)
      s.precision->batchEnded(batch);
    for (const auto &[name, tensor] : batch)
      giveBack(tensor);
    s.lossSum += loss;
    ++s.waiting;
    return loss;
  } catch (const std::exception &error) {
    s.giveUp(error, std::string(s.deferred ? "forward" : "backward") + ", which updates parameters, failed midway (" +
                        error.what() + ")");
    if (s.precision && badLoss)
      s.precision->lossOfAborted(*badLoss);
    for (const auto &[name, tensor] : batch)
      if (tensor)
        giveBack(tensor);
    s.requireWhole(); // the failure may be that of the optimizer of the step before, in its queue
    throw;
  }
}

const Tensor &Session::gradient(std::string_view key) const & {
  size_t slot = state_->table.require(key);
  if (!state_->tape.gradient(GradientTape::ValueId(slot)))
    throw Error(ErrorCode::InvalidArgument, "parameter \"" + state_->table.infos()[slot].key +
                                                "\" has no gradient now; gradients wait between forwardBackward " +
                                                "and optimize, for trained parameters");
  if (state_->residency)
    state_->residency->writeBack();
  return state_->tape.gradient(GradientTape::ValueId(slot));
}

const TensorMap &Session::inputGradients() const & { return state_->inputGradients; }
void Session::clearGradients() {
  state_->requireOutsideOfHooks("clearGradients");
  if (state_->waiting)
    state_->abort();
  else
    state_->drop();
}

TensorMap Session::evaluate(const TensorMap &batch) {
  SessionState &s = *state_;
  Wiring wiring;
  TensorMap placed;
  try {
    s.requireWhole();
    s.requireValues();
    s.makeDeferred();
    wiring = s.wiringFor(batch, /*isEvaluation=*/true);
    placed = s.placeBatch(wiring, batch);
    if (!s.waiting)
      s.prepareStreamed({s.sizes}, std::span(&batch, 1));
  } catch (const std::exception &error) {
    if (s.ranks)
      s.ranks->meetToEvaluate(error.what());
    throw;
  }
  if (s.ranks)
    s.ranks->meetToEvaluate();
  std::vector<std::vector<Tensor>> outputs(s.modules.size());
  const std::vector<Module> &modules = s.modulesNow();
  EventSink::PhasesApart apart(s.options.events);
  bool isPipelined = s.ranks && s.ranks->isPipelined();
  bool isServed = false; // other ranks get what they wait for, whatever happens here
  try {
    if (s.services)
      s.services->beginEvaluation();
    isServed = isPipelined;
    if (isPipelined)
      outputs.back() = s.ranks->evaluatePipeline(wiring, placed);
    for (size_t m = 0; m < modules.size() && !isPipelined; ++m) {
      TensorMap gathered = s.ranks ? s.ranks->gatherForModule(m) : TensorMap();
      outputs[m] = modules[m].infer(s.lookup(m, wiring, placed, outputs, std::move(gathered)), s.options.events);
    }
    if (s.services)
      s.services->endEvaluation();
  } catch (const std::exception &error) {
    if (s.ranks && (s.ranks->isGathered() || isPipelined) && !isServed)
      s.ranks->group().abandon(error.what()); // others wait for what is left
    if (s.services)
      s.services->abortEvaluation();
    throw;
  }
  for (const auto &[name, tensor] : batch)
    giveBack(tensor);
  return byName(s.portsNow().back().outputs, outputs.back());
}

StepResult Session::step(const TensorMap &batch, const LearningRates &rates) {
  return step(std::span(&batch, 1), rates);
}

StepResult Session::step(std::span<const TensorMap> microBatches, const LearningRates &rates,
                         std::span<const GradientHook> hooks) {
  if (microBatches.empty())
    throw Error(ErrorCode::InvalidArgument, "a step needs at least one batch");
  state_->requireOutsideOfHooks("a step");
  clearGradients();
  SessionState::StepSizes step;
  SessionRanks *ranks = state_->ranks.get();
  try {
    if (ranks)
      ranks->beginStep();
    if (ranks)
      ranks->meetToBegin(microBatches);
    state_->calibrateIfNeeded(microBatches);
    step = state_->stepSizes(microBatches);
    state_->planFor(step, microBatches);
    state_->checkRates(rates);
  } catch (const std::exception &error) {
    if (ranks) {
      ranks->tellFailure(error);
      ranks->throwCause();
    }
    if (auto *known = dynamic_cast<const Error *>(&error); !known || known->code() != ErrorCode::RankFailed)
      state_->requireWhole();
    throw;
  }
  struct Announced {
    SessionState &state;
    ~Announced() {
      state.announced.clear();
      state.rates.reset();
    }
  } announced{*state_};
  state_->announced = std::move(step);
  state_->rates = rates;
  try {
    if (ranks && ranks->isPipelined())
      ranks->runPipeline(microBatches);
    else
      for (const TensorMap &batch : microBatches)
        forwardBackward(batch);
    return optimize(rates, hooks);
  } catch (const std::exception &) {
    if (ranks)
      ranks->throwCause();
    throw;
  }
}

} // namespace segue::inline runtime
