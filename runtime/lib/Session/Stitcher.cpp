//===- Stitcher.cpp - any schedule of modules, with gradients -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A value is a place in a storage at one version: a program that writes a
// donated input in place makes another value there. A parameter is a place,
// whatever was written to it since. Storages are known by their ids, which are
// never used again, so that nothing is kept alive here but the tokens.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/Stitcher.h"
#include "../Tensor/NullHandles.h"
#include "GradientTape.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <tuple>

namespace segue::inline runtime {

using ValueId = GradientTape::ValueId;

struct Stitcher::State {
  /// The storage, offset and version of a value; for a parameter the version is `anyVersion`.
  using Place = std::tuple<uint64_t, uint64_t, uint64_t>;
  static constexpr uint64_t anyVersion = UINT64_MAX;

  static Place placeOf(const Tensor &tensor) {
    const Storage &storage = *tensor.storage();
    return {storage.id(), tensor.desc().layout.offset, storage.version()};
  }
  static Place atAnyVersion(Place place) {
    std::get<2>(place) = anyVersion;
    return place;
  }
  const ValueId *find(const Place &place) const;
  ValueId valueOf(const Place &place, bool isParameter);
  void checkReach(std::span<const ValueId> seeds) const;
  /// Returns true if something that trains lies behind the value.
  bool leadsToParameters(ValueId value) const;

  DeviceRef device;
  EventSink *events;
  GradientTape tape;
  std::map<Place, ValueId> values;
};

const ValueId *Stitcher::State::find(const Place &place) const {
  auto found = values.find(place);
  if (found == values.end())
    found = values.find(atAnyVersion(place));
  return found == values.end() ? nullptr : &found->second;
}

/// A tensor may be a parameter here and an input there, or the output of a
/// module that makes the parameters of another.
ValueId Stitcher::State::valueOf(const Place &place, bool isParameter) {
  const ValueId *known = find(place);
  ValueId value = known ? *known : tape.newValue();
  values.try_emplace(place, value);
  if (isParameter)
    values.try_emplace(atAnyVersion(place), value);
  return value;
}

Stitcher::Stitcher(DeviceRef device, EventSink *events)
    : state_(std::make_unique<State>(State{requireGiven(device, "Stitcher"), events, GradientTape(), {}})) {}
Stitcher::~Stitcher() = default;
Stitcher::Stitcher(Stitcher &&) noexcept = default;
Stitcher &Stitcher::operator=(Stitcher &&) noexcept = default;

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

std::vector<Tensor> Stitcher::forward(const Module &module, const TensorMap &values) {
  return forward(module, [&values](const Value &value) {
    auto found = values.find(value.name);
    return found == values.end() ? Tensor() : found->second;
  });
}

std::vector<Tensor> Stitcher::forward(const Module &module, const Module::Lookup &values) {
  State &s = *state_;
  if (module.device() != s.device)
    throw Error(ErrorCode::InvalidArgument, "module \"" + module.name() + "\" is on device \"" +
                                                module.device()->name() + "\", the stitcher on \"" + s.device->name() +
                                                "\"; make both on one device");
  // Places are noted before the program runs, which may write a donated input.
  GradientTape::Step step{.module = &module, .token = {}, .parameters = {}, .inputs = {}, .outputs = {}};
  std::vector<std::pair<State::Place, bool>> places;
  Module::Lookup noting = [&](const Value &value) {
    Tensor tensor = values(value);
    if (tensor && value.role != Role::Frozen && value.role != Role::Hyper)
      places.emplace_back(State::placeOf(tensor), value.role == Role::Parameter);
    return tensor;
  };
  ForwardResult result;
  if (module.find("forward"))
    result = module.forward(noting, s.events);
  else
    result.outputs = module.infer(noting, s.events);
  for (const auto &[place, isParameter] : places)
    (isParameter ? step.parameters : step.inputs).push_back(s.valueOf(place, isParameter));
  for (const Tensor &output : result.outputs) {
    // A new value, even where an older one lay in this place.
    step.outputs.push_back(s.tape.newValue());
    s.values[State::placeOf(output)] = step.outputs.back();
  }
  step.token = std::move(result.token);
  s.tape.record(std::move(step));
  return std::move(result.outputs);
}

Tensor Stitcher::toLayout(const Tensor &tensor, const TensorDesc &desc) {
  Tensor result = runtime::toLayout(state_->device, tensor, desc);
  if (result.storage() != tensor.storage())
    state_->values[State::placeOf(result)] = state_->valueOf(State::placeOf(tensor), false);
  return result;
}

//===----------------------------------------------------------------------===//
// Backward
//===----------------------------------------------------------------------===//

static const std::string &nameOfOutput(const GradientTape::Step &step, ValueId value) {
  size_t index = size_t(std::ranges::find(step.outputs, value) - step.outputs.begin());
  return step.module->outputs()[index].name;
}

bool Stitcher::State::leadsToParameters(ValueId value) const {
  const GradientTape::Step *step = tape.producer(value);
  if (!step)
    return false;
  const Module &module = *step->module;
  for (const Value &parameter : module.parameters())
    if (!module.hasBackward() || module.givesGradientOf(parameter.name))
      return true;
  return std::ranges::any_of(step->inputs, [&](ValueId input) { return leadsToParameters(input); });
}

/// Walks the way that gradients will go, before anything is run.
void Stitcher::State::checkReach(std::span<const ValueId> seeds) const {
  std::vector<bool> reached(tape.valueCount());
  for (ValueId seed : seeds)
    reached[seed] = true;
  for (size_t i = tape.steps().size(); i-- > 0;) {
    const GradientTape::Step &step = tape.steps()[i];
    const Module &module = *step.module;
    for (ValueId output : step.outputs) {
      if (!reached[output])
        continue;
      std::string which = "output \"" + nameOfOutput(step, output) + "\" of module \"" + module.name() + "\"";
      if (step.played)
        throw Error(ErrorCode::InvalidArgument, "backward: a gradient comes for " + which +
                                                    ", whose backward was played before; give all losses that depend "
                                                    "on it to one call");
      if (!module.hasBackward() && leadsToParameters(output))
        throw Error(ErrorCode::InvalidArgument, "backward: " + which +
                                                    " leads to parameters that train, but the module has no "
                                                    "program \"backward\"; compile it for training");
      if (!module.hasBackward() || !module.takesGradientOf(nameOfOutput(step, output)))
        continue;
      for (size_t k = 0; k < step.inputs.size(); ++k)
        if (module.givesGradientOf(module.inputs()[k].name))
          reached[step.inputs[k]] = true;
    }
  }
}

void Stitcher::backward(std::initializer_list<Tensor> losses) {
  std::vector<Seed> seeds;
  for (const Tensor &loss : losses) {
    if (!loss || !loss.shape().empty() || !isFloat(loss.element()))
      throw Error(ErrorCode::InvalidArgument, "backward: " + (loss ? loss.desc().str() : std::string("a null tensor")) +
                                                  " is not a float scalar; give its gradient with a Seed");
    seeds.push_back({loss, runtime::toLayout(state_->device, Tensor::scalar(state_->device, 1.0f),
                                             TensorDesc({}, loss.element()))});
  }
  backward(seeds);
}

void Stitcher::backward(std::span<const Seed> seeds) {
  State &s = *state_;
  std::vector<ValueId> ids;
  for (const Seed &seed : seeds) {
    if (!seed.value || !seed.gradient)
      throw Error(ErrorCode::InvalidArgument, "backward: a seed has a null tensor");
    const ValueId *found = s.find(State::placeOf(seed.value));
    if (!found || !s.tape.producer(*found))
      throw Error(ErrorCode::InvalidArgument,
                  "backward: " + seed.value.desc().str() + " is not an output of a forward of this stitcher");
    const GradientTape::Step &step = *s.tape.producer(*found);
    if (const std::string &output = nameOfOutput(step, *found); !step.module->takesGradientOf(output))
      throw Error(ErrorCode::InvalidArgument, "backward: module \"" + step.module->name() +
                                                  "\" takes no gradient of output \"" + output +
                                                  "\"; nothing that trains leads to it");
    if (seed.gradient.shape() != seed.value.shape())
      throw Error(ErrorCode::LayoutMismatch, "backward: the gradient of " + seed.value.desc().str() + " is " +
                                                 seed.gradient.desc().str() + "; it has the shape of the value");
    ids.push_back(*found);
  }
  s.checkReach(ids);
  try {
    for (size_t i = 0; i < ids.size(); ++i)
      s.tape.add(ids[i], seeds[i].gradient);
    s.tape.play(GradientTape::Play::Reached, s.events);
  } catch (...) {
    clear();
    throw;
  }
}

Tensor Stitcher::gradient(const Tensor &value) const {
  const ValueId *found = state_->find(State::placeOf(requireGiven(value, "Stitcher::gradient")));
  return found ? state_->tape.gradient(*found) : Tensor();
}

size_t Stitcher::pending() const {
  return size_t(std::ranges::count_if(
      state_->tape.steps(), [](const GradientTape::Step &step) { return !step.played && step.module->hasBackward(); }));
}

void Stitcher::clearGradients() {
  for (ValueId value = 0; value < state_->tape.valueCount(); ++value)
    state_->tape.gradient(value) = Tensor();
}

void Stitcher::clear() {
  state_->tape.drop();
  state_->values.clear();
}

} // namespace segue::inline runtime
