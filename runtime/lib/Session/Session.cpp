//===- Session.cpp - a training step over stitched modules ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The optimizer programs are the only writers of parameters and states, and
// they run last: whatever fails before them leaves the last finished step.
//
//===----------------------------------------------------------------------===//

#include "../Services/Memory/PrecisionActor.h"
#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

namespace segue::inline runtime {

static std::vector<Module> makeModules(const DeviceRef &device, std::vector<SessionModule> given) {
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

/// A scalar for a hyper value, in the element type that the program declares.
static Tensor hyperTensor(const DeviceRef &device, const Value &value, double number) {
  Tensor scalar =
      isFloat(value.desc().element) ? Tensor::scalar(device, float(number)) : Tensor::scalar(device, int64_t(number));
  return toLayout(device, scalar, value.desc());
}

static bool sameTensor(const Tensor &a, const Tensor &b) {
  return a.storage() == b.storage() && a.desc().layout.offset == b.desc().layout.offset;
}

//===----------------------------------------------------------------------===//
// Construction
//===----------------------------------------------------------------------===//

Session::State::State(DeviceRef givenDevice, std::vector<SessionModule> given, SessionOptions givenOptions)
    : device(std::move(givenDevice)), options(std::move(givenOptions)), modules(makeModules(device, std::move(given))),
      table(modules, options.tied), values(table.size()), tape(table.size()) {
  for (const Module &module : modules) {
    ports.push_back({module.name(), module.inputs(), module.outputs()});
    checkHypers(module);
  }
  checkWires(ports, options.wires);
  if (!options.warn)
    options.warn = [](const std::string &text) { std::fprintf(stderr, "segue: warning: %s\n", text.c_str()); };
  if (options.config)
    configure(*options.config);
  std::vector<std::pair<size_t, size_t>> stateDescs; // module, input of its optimizer
  for (size_t m = 0; m < modules.size(); ++m) {
    plans.push_back(planOptimizer(modules[m], m, table));
    const OptimizerPlan &plan = plans.back();
    for (size_t i = 0; i < plan.optimizerInputs.size(); ++i)
      if (plan.optimizerInputs[i].feed == Feed::State)
        stateDescs.push_back({m, i});
  }
  checkPhases(modules);
  residency = services ? services->residency() : options.residency;
  streamed.emplace(services ? services->weights() : options.weights, residency, !services || services->wantsPlan(),
                   modules, plans, table, values);
  if (services && services->statesLeave() == StatesLeave::Always)
    services->letStatesLeave(gradientsByBlock());
  allocateStates(stateDescs);
  streamed->takeFromSlab(device, values);
  startPrecision();
}

void Session::State::prepareStreamed(size_t microBatches, std::span<const TensorMap> batches) {
  try {
    streamed->prepare();
  } catch (const Error &error) {
    bool isTooSmall = error.code() == ErrorCode::DeviceOom || error.code() == ErrorCode::BudgetInfeasible;
    if (!plannedFor && isTooSmall && letStatesLeave())
      return prepareStreamed(microBatches, batches);
    refuseTooSmall(error, microBatches, batches);
    throw;
  }
}

void Session::State::checkHypers(const Module &module) const {
  for (const Value &hyper : module.hypers())
    if (hyper.name != "seed" && hyper.name != "step")
      throw Error(ErrorCode::Unsupported, "module \"" + module.name() + "\" wants the hyper \"" + hyper.name +
                                              "\", but a session gives seed and step only");
}

/// Follows the phases that a step of these programs goes through, so that a file
/// which cannot be trained with is refused before anything runs.
void Session::State::checkPhases(std::span<const Module> modules) const {
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
      if (plans[m].ownsParameters)
        follow(modules[m], plans[m].*program);
  if (!canFollow(now, Phase::StepEnd))
    fail(modules[0], "none of its programs enters a phase, and a step would go to", Phase::StepEnd);
}

/// Does what a config file says of the device and of records.
void Session::State::configure(const Config &config) {
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
  device->transfer().configure(std::move(stitch));
}

void Session::State::endStep() {
  stitchReport(*device).endStep();
  if (stitchTelemetry)
    stitchTelemetry->write(device->transfer().record(step).json());
}

Session::Session(DeviceRef device, std::vector<SessionModule> modules, SessionOptions options)
    : state_(std::make_unique<State>(std::move(device), std::move(modules), std::move(options))) {}
Session::~Session() = default;
Session::Session(Session &&) noexcept = default;
Session &Session::operator=(Session &&) noexcept = default;

const DeviceRef &Session::device() const { return state_->device; }
const std::vector<Module> &Session::modules() const { return state_->modules; }
const MemoryServices *Session::services() const { return state_->services.get(); }
MemoryServices *Session::services() { return state_->services.get(); }
int64_t Session::stepCount() const { return state_->step; }
int64_t Session::seed() const { return state_->options.seed; }
const TensorMap &Session::state() const { return state_->optimizerState; }

//===----------------------------------------------------------------------===//
// Batches of other extents
//===----------------------------------------------------------------------===//

void Session::addSizes(std::vector<SessionModule> given) {
  State &s = *state_;
  if (s.services || s.options.residency || s.options.weights)
    throw Error(ErrorCode::Unsupported, "memory services know the programs of one set of extents; with them, all "
                                        "batches of a session have the same");
  auto sizes = std::make_unique<State::Sizes>();
  sizes->modules = makeModules(s.device, std::move(given));
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
    for (auto values : {&Module::parameters, &Module::frozen}) {
      std::span<const Value> wanted = (first.*values)(), found = (module.*values)();
      auto has = [](std::span<const Value> all, const Value &value) {
        return std::ranges::any_of(all, [&](const Value &other) {
          return other.name == value.name && other.desc().shape == value.desc().shape &&
                 other.desc().element == value.desc().element && other.role == value.role;
        });
      };
      for (const Value &value : wanted)
        if (!has(found, value))
          throw differs(module, "lacks \"" + value.name + "\" of the session, or has it otherwise");
      for (const Value &value : found)
        if (!has(wanted, value))
          throw differs(module, "has \"" + value.name + "\", which the session lacks");
    }
    sizes->ports.push_back({module.name(), module.inputs(), module.outputs()});
  }
  s.checkPhases(sizes->modules);
  s.otherSizes.push_back(std::move(sizes));
}

/// True if a batch has the extents of the inputs that it names.
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

Wiring Session::State::wiringFor(const TensorMap &batch) {
  BatchDescs descs;
  for (const auto &[name, tensor] : batch) {
    if (!tensor)
      throw Error(ErrorCode::InvalidArgument, "the batch has a null tensor for \"" + name + "\"");
    descs[name] = &tensor.desc();
  }
  sizes = nullptr;
  if (!haveExtentsOf(ports, descs))
    for (const auto &others : otherSizes)
      if (haveExtentsOf(others->ports, descs))
        sizes = others.get();
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
TensorMap Session::State::placeBatch(const Wiring &wiring, const TensorMap &batch) const {
  TensorMap placed = batch;
  const std::vector<Module> &modules = modulesNow();
  for (size_t m = 0; m < modules.size(); ++m)
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
int64_t Session::State::seedOf(size_t module) const {
  uint64_t stream = uint64_t(waiting) << 20 | module;
  return int64_t(uint64_t(options.seed) + stream * 0x9E3779B97F4A7C15u);
}

Module::Lookup Session::State::lookup(size_t module, const Wiring &wiring, const TensorMap &batch,
                                      const std::vector<std::vector<Tensor>> &outputs) const {
  return [this, module, &wiring, &batch, &outputs](const Value &value) -> Tensor {
    switch (value.role) {
    case Role::Parameter:
    case Role::Frozen:
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

/// Records the forwards; the batch's tensors by name are values, too.
std::vector<Tensor> Session::State::runForward(const Wiring &wiring, const TensorMap &batch) {
  batchValues.clear();
  losses.clear();
  const std::vector<Module> &modules = modulesNow();
  std::vector<std::vector<Tensor>> outputs(modules.size());
  std::vector<Tensor> found;
  for (size_t m = 0; m < modules.size(); ++m) {
    const Module &module = modules[m];
    ForwardResult result = module.forward(lookup(m, wiring, batch, outputs), options.events);
    GradientTape::Step step{&module, std::move(result.token), {}, {}, {}};
    for (const Value &parameter : module.parameters())
      step.parameters.push_back(GradientTape::ValueId(table.slotOf(m, parameter.name)));
    for (size_t i = 0; i < module.inputs().size(); ++i) {
      if (const auto &ref = wiring[m][i]) {
        step.inputs.push_back(tape.steps()[ref->module].outputs[ref->output]);
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
    tape.record(std::move(step));
  }
  if (found.empty())
    throw Error(ErrorCode::InvalidArgument,
                "no module of the session has a float scalar output called \"loss\"; training needs one");
  lastOutputs = byName(portsNow().back().outputs, outputs.back());
  return found;
}

void Session::State::runBackward() {
  for (const auto &[value, output] : losses)
    tape.add(value, hyperTensor(device, *output, 1));
  tape.play(GradientTape::Play::All, options.events);
  for (const auto &[name, value] : batchValues)
    if (Tensor &gradient = tape.gradient(value))
      inputGradients[name] = std::move(gradient);
  tape.dropSteps();
}

void Session::State::drop() {
  tape.drop();
  inputGradients.clear();
  waiting = 0;
  lossSum = 0;
}

void Session::State::abort() {
  drop();
  if (services)
    services->abortStep();
}

double Session::forwardBackward(const TensorMap &batch) {
  State &s = *state_;
  std::optional<double> badLoss;
  try {
    s.requireWhole();
    s.requireValues();
    for (const Module &module : s.modules)
      if (!module.hasBackward())
        throw Error(ErrorCode::InvalidArgument,
                    "module \"" + module.name() + "\" has no program \"backward\"; compile it for training");
    Wiring wiring = s.wiringFor(batch);
    if (!s.waiting) {
      if (calibrationSamples())
        s.precision->calibrate(std::span(&batch, 1));
      size_t microBatches = s.announced ? s.announced : s.plannedFor ? s.plannedFor : 1;
      s.prepareStreamed(microBatches, std::span(&batch, 1));
      s.planFor(microBatches, std::span(&batch, 1));
      if (s.services)
        s.services->setStep(s.step + 1);
      s.enter(Phase::StepBegin);
    }
    s.inputGradients.clear(); // those of the batch before would lie beside this one, where no plan has them
    std::vector<Tensor> losses = s.runForward(wiring, s.placeBatch(wiring, batch));
    s.runBackward();
    // The host reads the loss while the device works on backward.
    double loss = 0;
    for (const Tensor &each : losses)
      loss += each.item();
    if (!std::isfinite(loss))
      badLoss = loss;
    if (badLoss)
      throw Error(ErrorCode::NanLoss, "step " + std::to_string(s.step + 1) + ": the loss is " + std::to_string(loss) +
                                          "; parameters and optimizer state are those of step " +
                                          std::to_string(s.step) +
                                          "; try a smaller learning rate or look at the batch");
    if (s.precision)
      s.precision->batchEnded(batch);
    for (const auto &[name, tensor] : batch)
      giveBack(tensor);
    s.lossSum += loss;
    ++s.waiting;
    return loss;
  } catch (const std::exception &error) {
    s.abort();
    if (s.precision && badLoss)
      s.precision->lossOfAborted(*badLoss);
    for (const auto &[name, tensor] : batch)
      if (tensor)
        giveBack(tensor);
    if (!s.torn.empty() || !s.hasLostState())
      throw;
    // What failed is the optimizer of the step before, in its queue.
    s.tear(s.step, std::string("its optimizer failed midway (") + error.what() + ")");
  }
}

const Tensor &Session::gradient(std::string_view key) const {
  size_t slot = state_->table.require(key);
  if (!state_->tape.gradient(GradientTape::ValueId(slot)))
    throw Error(ErrorCode::InvalidArgument, "parameter \"" + state_->table.infos()[slot].key +
                                                "\" has no gradient now; gradients wait between forwardBackward " +
                                                "and optimize, for trained parameters");
  if (state_->residency)
    state_->residency->writeBack();
  return state_->tape.gradient(GradientTape::ValueId(slot));
}

const TensorMap &Session::inputGradients() const { return state_->inputGradients; }
void Session::clearGradients() {
  if (state_->waiting)
    state_->abort();
  else
    state_->drop();
}

TensorMap Session::evaluate(const TensorMap &batch) {
  State &s = *state_;
  s.requireWhole();
  s.requireValues();
  Wiring wiring = s.wiringFor(batch);
  TensorMap placed = s.placeBatch(wiring, batch);
  std::vector<std::vector<Tensor>> outputs(s.modules.size());
  const std::vector<Module> &modules = s.modulesNow();
  if (!s.waiting)
    s.prepareStreamed(1, std::span(&batch, 1));
  EventSink::PhasesApart apart(s.options.events);
  try {
    if (s.services)
      s.services->beginEvaluation();
    for (size_t m = 0; m < modules.size(); ++m)
      outputs[m] = modules[m].infer(s.lookup(m, wiring, placed, outputs), s.options.events);
    if (s.services)
      s.services->endEvaluation();
  } catch (...) {
    if (s.services)
      s.services->abortEvaluation();
    throw;
  }
  for (const auto &[name, tensor] : batch)
    giveBack(tensor);
  return byName(s.portsNow().back().outputs, outputs.back());
}

//===----------------------------------------------------------------------===//
// OPTIMIZER
//===----------------------------------------------------------------------===//

/// One input of a program of the optimizer phase, on its way to the device
/// maybe.
Tensor Session::State::optimizerTensor(const Value &value, const OptimizerValue &input, bool comesByBlock, double lr,
                                       double clip) {
  switch (input.feed) {
  case Feed::Parameter:
    return streamed->has(input.slot) && !comesByBlock ? toLayout(device, values[input.slot], value.desc())
                                                      : values[input.slot];
  case Feed::Gradient: {
    const Tensor &sum = tape.gradient(GradientTape::ValueId(input.slot));
    return !sum ? Tensor::zeros(device, value.desc()) : comesByBlock ? sum : toLayout(device, sum, value.desc());
  }
  case Feed::State:
    return optimizerState.find(input.state)->second;
  case Feed::Scratch:
    return Tensor::zeros(device, value.desc());
  case Feed::LearningRate:
    return hyperTensor(device, value, lr);
  case Feed::Step:
    return hyperTensor(device, value, double(step + 1));
  case Feed::Clip:
    break;
  }
  return hyperTensor(device, value, clip);
}

static bool isHyper(Feed feed) { return feed == Feed::LearningRate || feed == Feed::Step || feed == Feed::Clip; }

/// The inputs of a program of the optimizer phase, arrived: what comes over the
/// link is waited for, and brought once more if it fails, as a program that writes
/// in place must not begin without all that it reads. `scalars`: those among them
/// that have arrived before, null elsewhere. `giveGradients`: this is the last
/// reader, gradients are given away and freed as they are used up.
std::vector<Tensor> Session::State::optimizerTensors(const Program &program, const std::vector<OptimizerValue> &inputs,
                                                     double lr, double clip, bool giveGradients,
                                                     const std::vector<Tensor> &scalars) {
  auto comesByBlock = [&](size_t i) {
    if (inputs[i].feed == Feed::Parameter)
      return streamed->comesByBlock(program);
    const Tensor &sum = tape.gradient(GradientTape::ValueId(inputs[i].slot));
    return sum && residency && residency->isHome(sum) && streamed->comesByBlock(program, i);
  };
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value &value = program.inputs()[i];
    if (!scalars.empty() && scalars[i]) {
      tensors.push_back(scalars[i]);
      continue;
    }
    bool isGradient = inputs[i].feed == Feed::Gradient;
    bool comes = (isGradient || inputs[i].feed == Feed::Parameter) && comesByBlock(i);
    Tensor tensor = optimizerTensor(value, inputs[i], comes, lr, clip);
    if (isHyper(inputs[i].feed) || isBroughtFrom(inputs[i], tensor)) {
      device->wait(tensor.storage()->writes());
      if (tensor.storage()->failure())
        tensor = optimizerTensor(value, inputs[i], comes, lr, clip);
      wait(tensor);
    }
    if (isGradient && giveGradients)
      tape.gradient(GradientTape::ValueId(inputs[i].slot)) = Tensor();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// True if `tensor` was copied from the host for this input.
bool Session::State::isBroughtFrom(const OptimizerValue &input, const Tensor &tensor) {
  const Tensor *source = input.feed == Feed::Parameter  ? &values[input.slot]
                         : input.feed == Feed::Gradient ? &tape.gradient(GradientTape::ValueId(input.slot))
                                                        : nullptr;
  return source && *source && source->storage() != tensor.storage() && isHostSpace(source->desc().layout.space);
}

/// The scalars among them, arrived, and null for the rest: before the first
/// optimizer writes anything.
std::vector<Tensor> Session::State::optimizerScalars(const Program &program, const std::vector<OptimizerValue> &inputs,
                                                     double lr, double clip) {
  std::vector<Tensor> scalars(inputs.size());
  auto make = [&](size_t i) { return optimizerTensor(program.inputs()[i], inputs[i], false, lr, clip); };
  for (size_t i = 0; i < inputs.size(); ++i)
    if (isHyper(inputs[i].feed))
      scalars[i] = make(i);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!scalars[i])
      continue;
    device->wait(scalars[i].storage()->writes());
    if (scalars[i].storage()->failure())
      scalars[i] = make(i);
    wait(scalars[i]);
  }
  return scalars;
}

/// Joint norm of the sums that wait, or NaN if no module can say it.
double Session::State::gradientNorm() {
  std::vector<Tensor> squares;
  for (const OptimizerPlan &plan : plans)
    if (plan.gradNorm)
      squares.push_back(submit(device, *plan.gradNorm,
                               optimizerTensors(*plan.gradNorm, plan.gradNormInputs, 0, 1, /*giveGradients=*/false),
                               options.events)
                            .front());
  double square = 0;
  for (const Tensor &each : squares)
    square += each.item();
  return squares.empty() ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(square);
}

void Session::State::runOptimizer(const OptimizerPlan &plan, std::vector<Tensor> tensors) {
  std::vector<Tensor> results = submit(device, *plan.optimizer, std::move(tensors), options.events);
  // Written in place, mostly; a parameter that was brought, or bound to another
  // layout, is not.
  std::vector<std::pair<Tensor, Tensor>> home; // from, to
  for (size_t i = 0; i < results.size(); ++i) {
    const OptimizerValue &value = plan.optimizerOutputs[i];
    if (value.feed == Feed::Scratch)
      continue;
    const Tensor &target =
        value.feed == Feed::Parameter ? values[value.slot] : optimizerState.find(value.state)->second;
    if (!sameTensor(results[i], target)) {
      copyInto(results[i], target);
      if (isHostSpace(target.desc().layout.space) && !device->hasUnifiedMemory())
        home.emplace_back(results[i], target);
    }
    results[i] = Tensor();
    if (value.feed == Feed::Parameter && !streamed->comesByBlock(*plan.optimizer))
      streamed->written(value.slot);
  }
  // The device's copy is the only one until it is home.
  for (auto &[from, to] : home) {
    for (int again = 0; again < 2; ++again) {
      device->wait(to.storage()->writes());
      if (!to.storage()->failure() || from.storage()->failure())
        break;
      copyInto(from, to);
    }
    wait(to);
  }
}

/// True for errors that a program throws before it has written anything.
static bool refusedAtOnce(const std::exception &error) {
  auto *known = dynamic_cast<const Error *>(&error);
  return known && (known->code() == ErrorCode::LayoutMismatch || known->code() == ErrorCode::MissingInput ||
                   known->code() == ErrorCode::InvalidArgument);
}

/// Before anything is made ready for the optimizer, services settle what backward
/// has left: a failure in there is found before the first write.
void Session::State::enterOptimizer() {
  for (const OptimizerPlan &plan : plans) {
    if (plan.gradNorm)
      enterPhaseOf(*plan.gradNorm, options.events);
    if (plan.ownsParameters)
      enterPhaseOf(*plan.optimizer, options.events);
  }
}

StepResult Session::optimize(double lr) {
  State &s = *state_;
  s.requireWhole();
  if (!s.waiting)
    throw Error(ErrorCode::InvalidArgument, "no gradients wait for the optimizer; call forwardBackward first");
  if (!std::isfinite(lr))
    throw Error(ErrorCode::InvalidArgument, "the learning rate is " + std::to_string(lr) + "; give a finite number");
  for (size_t m = 0; m < s.modules.size(); ++m) {
    if (s.plans[m].ownsParameters && !s.plans[m].optimizer)
      throw Error(ErrorCode::InvalidArgument,
                  "module \"" + s.modules[m].name() + "\" was compiled without optimizer; compile it with one");
    if (s.options.maxGradNorm > 0 && s.plans[m].ownsParameters && !s.plans[m].gradNorm)
      throw Error(ErrorCode::InvalidArgument, "module \"" + s.modules[m].name() +
                                                  "\" has no program \"grad_norm\", which clipping needs; compile it " +
                                                  "with an optimizer");
  }
  StepResult result;
  double count = double(s.waiting);
  result.step = s.step + 1;
  result.loss = s.lossSum / count;
  try {
    s.enterOptimizer();
  } catch (...) { // what backward has left in the queues failed
    s.abort();
    throw;
  }
  // Everything that can be refused is refused before the first write.
  for (const OptimizerPlan &plan : s.plans)
    if (plan.ownsParameters)
      Executor(s.device, *plan.optimizer);
  // Queued work that failed must not reach the parameters.
  std::vector<std::vector<Tensor>> scalars(s.plans.size());
  bool known = std::any_of(s.plans.begin(), s.plans.end(), [](const OptimizerPlan &plan) { return plan.gradNorm; });
  try {
    if (s.residency)
      s.residency->settle();
    result.gradNorm = s.gradientNorm() / count;
    if (known && !std::isfinite(result.gradNorm))
      throw Error(ErrorCode::NanLoss, "step " + std::to_string(result.step) + ": the norm of the gradients is " +
                                          std::to_string(result.gradNorm) + " (loss " + std::to_string(result.loss) +
                                          "); parameters and optimizer state are those of step " +
                                          std::to_string(s.step));
    for (size_t slot = 0; slot < s.table.size(); ++slot)
      if (const Tensor &gradient = s.tape.gradient(GradientTape::ValueId(slot)))
        s.residency ? s.residency->await(gradient) : wait(gradient);
    if (s.options.maxGradNorm > 0)
      result.clip = std::min(1.0, s.options.maxGradNorm / (result.gradNorm + 1e-6));
    // The mean over batches rides on the factor that clipping multiplies by.
    for (size_t m = 0; m < s.plans.size(); ++m)
      if (s.plans[m].ownsParameters)
        scalars[m] = s.optimizerScalars(*s.plans[m].optimizer, s.plans[m].optimizerInputs, lr, result.clip / count);
  } catch (...) {
    s.abort();
    throw;
  }
  bool writing = false; // an optimizer has run already
  for (size_t m = 0; m < s.plans.size(); ++m) {
    const OptimizerPlan &plan = s.plans[m];
    if (!plan.ownsParameters)
      continue;
    bool hasBegun = writing;
    try {
      std::vector<Tensor> tensors = s.optimizerTensors(*plan.optimizer, plan.optimizerInputs, lr, result.clip / count,
                                                       /*giveGradients=*/true, scalars[m]);
      hasBegun = true;
      s.runOptimizer(plan, std::move(tensors));
      writing = true;
    } catch (const std::exception &error) {
      s.abort();
      if (!hasBegun || (!writing && refusedAtOnce(error)))
        throw;
      s.tear(result.step,
             "the optimizer of module \"" + s.modules[m].name() + "\" failed midway (" + error.what() + ")");
    }
  }
  s.step = result.step;
  TensorMap inputGradients = std::move(s.inputGradients);
  s.drop();
  s.inputGradients = std::move(inputGradients);
  result.outputs = std::move(s.lastOutputs);
  if (s.precision)
    s.precision->stepEnded(result.loss);
  s.enter(Phase::StepEnd);
  s.endStep();
  return result;
}

StepResult Session::step(const TensorMap &batch, double lr) { return step(std::span(&batch, 1), lr); }

StepResult Session::step(std::span<const TensorMap> microBatches, double lr) {
  if (microBatches.empty())
    throw Error(ErrorCode::InvalidArgument, "a step needs at least one batch");
  clearGradients();
  if (calibrationSamples()) {
    state_->requireWhole();
    state_->requireValues();
    state_->precision->calibrate(microBatches);
  }
  state_->planFor(microBatches.size(), microBatches);
  struct Announced {
    size_t &count;
    ~Announced() { count = 0; }
  } announced{state_->announced = microBatches.size()};
  for (const TensorMap &batch : microBatches)
    forwardBackward(batch);
  return optimize(lr);
}

} // namespace segue::inline runtime
