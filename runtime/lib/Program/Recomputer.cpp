//===- Recomputer.cpp - runs what makes saved values again ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Recomputer.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include <utility>

namespace segue::inline runtime {

const Recomputer::Known &Recomputer::know(const Program &program) {
  for (const auto &known : known_)
    if (known->program.image() == program.image() && known->program.index() == program.index())
      return *known;
  return *known_.emplace_back(std::make_unique<Known>(Known{program, relativeCost(program), recomputations(program)}));
}

double Recomputer::onSubmit(const Program &program, std::span<const Tensor> inputs) {
  const Known &known = know(program);
  if (program.savePoints().empty())
    return known.cost;
  Submit &submit = submits_.emplace_back();
  submit.known = &known;
  for (size_t i = 0; i < inputs.size() && i < program.inputs().size(); ++i) {
    const Value &value = program.inputs()[i];
    bool isWeight = value.role == Role::Parameter || value.role == Role::Frozen;
    if (!inputs[i]) {
      submit.inputs.emplace_back();
      continue;
    }
    bool isElsewhere = isWeight && inputs[i].desc().layout.space != value.desc().layout.space;
    submit.inputs.push_back({inputs[i].storage(), inputs[i].sharedDesc(), isElsewhere, true});
  }
  return known.cost;
}

SavedPlace Recomputer::placeOf(const Program &program, uint32_t output) const {
  const Known *known = submits_.empty() ? nullptr : submits_.back().known;
  if (!known || known->program.image() != program.image() || known->program.index() != program.index())
    throw Error(ErrorCode::StateTransition,
                "program \"" + program.name() + "\" saves \"" + program.output(output).name +
                    "\", but is not the program that was submitted last; hand event::Submit on to the services");
  return {submits_.size() - 1, output};
}

const Recomputation *Recomputer::find(SavedPlace place) const {
  const Submit &submit = submits_[place.submit];
  const std::vector<SavePoint> &points = submit.known->program.savePoints();
  const Recomputation *again = nullptr;
  for (size_t i = 0; i < points.size(); ++i)
    if (points[i].value == place.output && !points[i].aliasesInput && submit.known->again[i])
      again = &*submit.known->again[i];
  if (again)
    for (const Recomputation::Source &source : again->sources)
      if (!source.isSaved &&
          (source.index >= submit.inputs.size() || !submit.inputs[source.index].isGiven ||
           (submit.inputs[source.index].isElsewhere && !lender_)))
        return nullptr;
  return again;
}

/// Returns input `input` of forward, from which `output` is to be made.
Tensor Recomputer::tensorOf(const Submit &submit, uint32_t input, uint32_t output) const {
  std::shared_ptr<Storage> storage = submit.inputs[input].storage.lock();
  if (storage && storage->state() != StorageState::Freed)
    return Tensor::in(std::move(storage), submit.inputs[input].desc);
  const Program &forward = submit.known->program;
  throw Error(ErrorCode::StateTransition,
              "saved value \"" + forward.output(output).name + "\" of program \"" + forward.name() +
                  "\" is to be computed again, but input \"" + forward.input(input).name +
                  "\" is gone; keep it until backward has run");
}

std::vector<Tensor> Recomputer::weightsOf(SavedPlace place) const {
  std::vector<Tensor> weights;
  const Submit &submit = submits_[place.submit];
  if (const Recomputation *again = find(place))
    for (const Recomputation::Source &source : again->sources)
      if (!source.isSaved && submit.inputs[source.index].isElsewhere)
        weights.push_back(tensorOf(submit, source.index, place.output));
  return weights;
}

bool Recomputer::canDrop(SavedPlace place) const {
  if (!find(place))
    return false;
  std::vector<Tensor> weights = weightsOf(place);
  return weights.empty() || lender_->canLend(weights);
}

void Recomputer::keepRoom(SavedPlace place) {
  if (std::vector<Tensor> weights = weightsOf(place); !weights.empty())
    lender_->keepRoom(weights);
}

uint64_t Recomputer::bytesToBring(SavedPlace place) const {
  std::vector<Tensor> weights = weightsOf(place);
  return weights.empty() ? 0 : lender_->bytesToBring(weights);
}

std::vector<SavedPlace> Recomputer::sourcesOf(SavedPlace place) const {
  std::vector<SavedPlace> sources;
  if (const Recomputation *again = find(place))
    for (const Recomputation::Source &source : again->sources)
      if (source.isSaved)
        sources.push_back({place.submit, source.index});
  return sources;
}

std::vector<std::pair<SavedPlace, uint32_t>> Recomputer::madeWith(SavedPlace place) const {
  std::vector<std::pair<SavedPlace, uint32_t>> made;
  const auto run = int64_t(find(place)->program.index());
  for (const SavePoint &point : submits_[place.submit].known->program.savePoints())
    if (point.recomputeProgram == run && !point.aliasesInput)
      made.push_back({{place.submit, point.value}, point.recomputeOutput});
  return made;
}

std::vector<Tensor> Recomputer::run(SavedPlace place, std::vector<Tensor> saved) {
  const Recomputation &again = *find(place);
  const Submit &submit = submits_[place.submit];
  // Parameters that are lent are given back, also where the run fails.
  struct Loan {
    WeightLender *lender = nullptr;
    std::vector<Tensor> weights;
    void end() {
      weights.clear();
      if (WeightLender *ended = std::exchange(lender, nullptr))
        ended->giveBack();
    }
    ~Loan() {
      try {
        end();
      } catch (const Error &) { // the run has failed, and the step with it
      }
    }
  } loan;
  if (std::vector<Tensor> homes = weightsOf(place); !homes.empty()) {
    loan.weights = lender_->lend(homes);
    loan.lender = lender_;
  }
  std::vector<Tensor> inputs;
  size_t next = 0, nextWeight = 0;
  for (const Recomputation::Source &source : again.sources) {
    if (source.isSaved) {
      inputs.push_back(std::move(saved[next++]));
      continue;
    }
    bool isLent = submit.inputs[source.index].isElsewhere;
    inputs.push_back(isLent ? loan.weights[nextWeight++] : tensorOf(submit, source.index, place.output));
  }
  // Backward has still to read them: lent, and kept whatever their holders say.
  struct Keep {
    std::vector<std::shared_ptr<Storage>> storages;
    ~Keep() {
      for (const auto &storage : storages)
        storage->setRetained(false);
    }
  } keep;
  for (const Tensor &input : inputs)
    if (!input.storage()->isRetained()) {
      input.storage()->setRetained(true);
      keep.storages.push_back(input.storage());
    }
  std::vector<Tensor> outputs(again.program.outputs().size());
  // The program runs in whatever phase asks for the value.
  EventSink::PhasesApart apart(&quiet_);
  Executor(device_, again.program).run(std::span<Tensor>(inputs), std::span<Tensor>(outputs), &quiet_);
  loan.end();
  return outputs;
}

Tensor Recomputer::placeholder(const Tensor &saved, const std::string &id) {
  auto desc = std::make_shared<TensorDesc>(saved.desc());
  desc->layout = {};
  desc->layout.space = Space::Host;
  desc->layout.strides.assign(desc->shape.size(), 0);
  auto storage = Storage::allocate(saved.device(), Space::Host, desc->spanBytes(), desc->layout.alignment);
  storage->outcome()->fail(
      Error(ErrorCode::StateTransition, "saved value \"" + id +
                                            "\" was dropped to be computed again within its step, which is over or has "
                                            "not asked for it; run forward again"));
  return Tensor::in(std::move(storage), std::move(desc));
}

} // namespace segue::inline runtime
