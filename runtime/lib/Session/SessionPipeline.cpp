//===- SessionPipeline.cpp - a step that goes from rank to rank -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every rank runs its stage for each batch of a step, in the order of pipelineMoves(). The
// wiring of modules is that of one rank: an edge that leads to another stage is a send on one
// side and a receive on the other, in the layout that the module there asks for. Backwards end
// in the order of batches on every rank, so that sums of gradients have the bits of one rank
// that has all modules.
//
// A rank that cannot go on serves the others all the same, with nothing to read, so that all
// come to their next meeting, where it says why.
//
//===----------------------------------------------------------------------===//

#include "SessionPipeline.h"
#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <tuple>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Stages
//===----------------------------------------------------------------------===//

std::pair<size_t, size_t> Session::State::ownModules() const {
  if (!isPipelined() || !shards)
    return {0, modules.size()};
  int rank = options.collectives->rank();
  return {shards->stages()->begin(rank), shards->stages()->end(rank)};
}

void Session::State::leaveModules(std::vector<Module> &given) const {
  if (!isPipelined() || !shards)
    return;
  for (size_t m = 0; m < given.size(); ++m)
    if (!shards->stages()->has(options.collectives->rank(), m))
      given[m] = given[m].elsewhere();
}

std::pair<std::vector<Crossing>, std::vector<Crossing>> Session::State::crossingsOf(const Wiring &wiring) const {
  auto [begin, end] = ownModules();
  std::pair<std::vector<Crossing>, std::vector<Crossing>> crossings;
  if (begin > 0)
    crossings.first = crossingsTo(begin, modulesNow(), wiring);
  if (end < modules.size())
    crossings.second = crossingsTo(end, modulesNow(), wiring);
  return crossings;
}

void Session::State::requireSameBatches(const std::vector<StepWord> &words) {
  for (size_t rank = 1; rank < words.size() && isPipelined(); ++rank) {
    if (words[rank].batches == words[0].batches && words[rank].batchHash == words[0].batchHash)
      continue;
    hasTold = true; // every rank finds it
    bool isCount = words[rank].batches != words[0].batches;
    throw Error(ErrorCode::RankFailed,
                "step " + std::to_string(step + 1) + ": rank 0 has " + std::to_string(words[0].batches) +
                    " batches, and rank " + std::to_string(rank) + " " +
                    (isCount ? std::to_string(words[rank].batches) : "others, or the same in another order") +
                    "; every rank of a pipeline is given the same batches");
  }
}

double Session::State::meanLoss(const std::vector<StepWord> &words) const {
  double sum = 0;
  size_t losses = batchLosses.size() / size_t(waiting);
  for (size_t batch = 0; batch < size_t(waiting); ++batch) {
    double loss = 0;
    for (size_t i = batch * losses; i < (batch + 1) * losses; ++i)
      for (const StepWord &word : words) // one of them has it
        loss += word.losses.at(i);
    sum += loss;
  }
  return sum / double(waiting);
}

//===----------------------------------------------------------------------===//
// A batch in a stage
//===----------------------------------------------------------------------===//

void Session::State::Passage::enter(std::span<const Module> modules, GradientTape &tape,
                                    std::vector<std::vector<Tensor>> &outputs,
                                    std::vector<std::vector<GradientTape::ValueId>> &ids) {
  for (size_t i = 0; i < in.size(); ++i) {
    auto [module, output] = in[i].value;
    outputs[module].resize(modules[module].outputs().size());
    ids[module].resize(outputs[module].size());
    outputs[module][output] = std::move(received[i]);
    receivedIds.push_back(ids[module][output] = tape.newValue());
  }
  received.clear();
}

void Session::State::Passage::leave(const std::vector<std::vector<Tensor>> &outputs,
                                    const std::vector<std::vector<GradientTape::ValueId>> &ids) {
  for (const Crossing &crossing : out) {
    auto [module, output] = crossing.value;
    sent.push_back(outputs[module][output]);
    sentIds.push_back(ids[module][output]);
  }
}

void Session::State::Passage::takeGradients(GradientTape &tape) {
  for (GradientTape::ValueId id : receivedIds)
    gradients.push_back(std::move(tape.gradient(id)));
}

/// Returns the tensor as it is sent.
static Tensor asSent(const DeviceRef &device, const Tensor &tensor, const std::shared_ptr<const TensorDesc> &desc) {
  bool isReady = tensor && tensor.desc().isDense() && tensor.element() == desc->element;
  return isReady ? tensor : tensor ? toLayout(device, tensor, *desc) : Tensor::zeros(device, *desc);
}

Tensor Neighbours::receive(const TensorDesc &desc, std::string name, int from) {
  Tensor tensor = emptyNamed(device_, desc, std::move(name), runtime::name(Role::Output));
  ranks_.receive(tensor, from);
  ++count_;
  return tensor;
}

void Neighbours::send(const Tensor &tensor, const std::shared_ptr<const TensorDesc> &desc, int to) {
  ranks_.send(asSent(device_, tensor, desc), to);
  ++count_;
}

void Neighbours::serve(std::span<const std::shared_ptr<const TensorDesc>> descs, int other, bool sends) {
  for (; count_ < descs.size(); ++count_) {
    Tensor nothing = Tensor::onHost(device_, descs[count_]->shape, descs[count_]->element);
    if (sends)
      nothing.storage()->outcome()->fail(Error(ErrorCode::StepAborted, "the step has ended before it was computed"));
    done_.join(sends ? ranks_.send(nothing, other) : ranks_.receive(nothing, other));
  }
  count_ = 0;
}

void Neighbours::wait() { device_->wait(done_); }

/// Returns what crosses, or its gradients.
static std::vector<std::shared_ptr<const TensorDesc>> descsOf(std::span<const Crossing> crossings, bool areGradients) {
  std::vector<std::shared_ptr<const TensorDesc>> descs;
  for (const Crossing &crossing : crossings)
    if (auto &desc = areGradients ? crossing.gradient : crossing.desc)
      descs.push_back(desc);
  return descs;
}

static std::string nameOf(const Crossing &crossing, std::span<const Module> modules, bool isGradient) {
  const Module &module = modules[crossing.value.module];
  return (isGradient ? "gradient of " : "") + module.name() + "." + module.outputs()[crossing.value.output].name;
}

/// Returns true for an error of the transport, which reaches nobody any more.
static bool isOfTransport(const std::exception &error) {
  auto *known = dynamic_cast<const Error *>(&error);
  return known && known->code() == ErrorCode::RankFailed && !known->details<NotSent>();
}

//===----------------------------------------------------------------------===//
// A step
//===----------------------------------------------------------------------===//

class Session::State::PipelineStep {
public:
  PipelineStep(State &state, std::span<const TensorMap> batches)
      : state_(state), batches_(batches), rank_(state.options.collectives->rank()),
        neighbours_(state.device, *state.options.collectives) {
    for (const TensorMap &batch : batches) {
      Flight &flight = flights_.emplace_back();
      flight.wiring = state_.wiringFor(batch);
      flight.sizes = state_.sizes;
      std::tie(flight.passage.in, flight.passage.out) = state_.crossingsOf(flight.wiring);
    }
  }

  /// Runs the step, which begins here for services, too. From here on others wait for this rank.
  void run() {
    std::vector<PipelineMove> moves = pipelineMoves(rank_, state_.shards->stages()->ranks(), batches_.size());
    size_t next = 0;
    try {
      if (state_.services)
        state_.services->setStep(state_.step + 1);
      state_.enter(Phase::StepBegin);
      for (; next < moves.size(); ++next) {
        neighbours_.begin();
        make(moves[next]);
      }
    } catch (const std::exception &error) {
      state_.passage = nullptr;
      if (!isOfTransport(error))
        serve(std::span(moves).subspan(next));
      throw;
    }
    for (const Flight &flight : flights_)
      noteLosses(flight);
    if (state_.lateFailure)
      throw *std::exchange(state_.lateFailure, std::nullopt);
  }

private:
  /// A Flight is a batch from its forward to its backward.
  struct Flight {
    Wiring wiring;
    const Sizes *sizes = nullptr;
    Passage passage;
    GradientTape::Recording recording;
    decltype(State::batchValues) batchValues;
    decltype(State::losses) seeds;
    std::vector<Tensor> losses, received;
  };

  void make(const PipelineMove &move) {
    Flight &flight = flights_[move.batch];
    Passage &passage = flight.passage;
    state_.sizes = flight.sizes;
    state_.batchAtHand = int64_t(move.batch);
    switch (move.act) {
    case PipelineAct::Receive:
      for (const Crossing &in : passage.in)
        passage.received.push_back(neighbours_.receive(*in.desc, nameOf(in, state_.modules, false), rank_ - 1));
      break;
    case PipelineAct::Forward:
      forward(flight, batches_[move.batch]);
      break;
    case PipelineAct::Send:
      for (size_t i = 0; i < passage.out.size(); ++i)
        neighbours_.send(passage.sent[i], passage.out[i].desc, rank_ + 1);
      passage.sent.clear();
      break;
    case PipelineAct::ReceiveGradient:
      for (const Crossing &out : passage.out)
        flight.received.push_back(
            out.gradient ? neighbours_.receive(*out.gradient, nameOf(out, state_.modules, true), rank_ + 1) : Tensor());
      break;
    case PipelineAct::Backward:
      backward(flight);
      break;
    case PipelineAct::SendGradient:
      for (size_t i = 0; i < passage.in.size(); ++i)
        if (passage.in[i].gradient)
          neighbours_.send(passage.gradients[i], passage.in[i].gradient, rank_ - 1);
      passage.gradients.clear();
      break;
    }
  }

  void forward(Flight &flight, const TensorMap &batch) {
    state_.passage = &flight.passage;
    flight.losses = state_.runForward(flight.wiring, state_.placeBatch(flight.wiring, batch));
    state_.passage = nullptr;
    flight.recording = state_.tape.takeSteps();
    flight.batchValues = std::exchange(state_.batchValues, {});
    flight.seeds = std::exchange(state_.losses, {});
  }

  void backward(Flight &flight) {
    state_.inputGradients.clear();
    state_.tape.putSteps(std::move(flight.recording));
    state_.batchValues = std::move(flight.batchValues);
    state_.losses = std::move(flight.seeds);
    for (size_t i = 0; i < flight.received.size(); ++i)
      if (flight.received[i])
        state_.tape.add(flight.passage.sentIds[i], std::move(flight.received[i]));
    flight.received.clear();
    state_.passage = &flight.passage;
    state_.runBackward();
    state_.passage = nullptr;
    ++state_.waiting;
  }

  void noteLosses(const Flight &flight) {
    auto [begin, end] = state_.ownModules();
    double loss = 0;
    size_t next = 0;
    for (size_t m = 0; m < state_.ports.size(); ++m)
      for (const Value &output : state_.ports[m].outputs)
        if (isLoss(output)) {
          state_.batchLosses.push_back(m >= begin && m < end ? flight.losses.at(next++).item() : 0);
          loss += state_.batchLosses.back();
        }
    state_.noteLoss(loss);
  }

  /// Does what others wait for in these moves, of which the first may have begun.
  void serve(std::span<const PipelineMove> moves) {
    try {
      for (const PipelineMove &move : moves) {
        const Passage &passage = flights_[move.batch].passage;
        if (move.act == PipelineAct::Receive || move.act == PipelineAct::SendGradient)
          neighbours_.serve(descsOf(passage.in, move.act == PipelineAct::SendGradient), rank_ - 1,
                           move.act == PipelineAct::SendGradient);
        else if (move.act == PipelineAct::Send || move.act == PipelineAct::ReceiveGradient)
          neighbours_.serve(descsOf(passage.out, move.act == PipelineAct::ReceiveGradient), rank_ + 1,
                           move.act == PipelineAct::Send);
      }
      neighbours_.wait();
    } catch (const std::exception &error) {
      state_.options.collectives->abandon(error.what());
    }
  }

  State &state_;
  std::span<const TensorMap> batches_;
  int rank_;
  std::vector<Flight> flights_;
  Neighbours neighbours_;
};

void Session::State::runPipeline(std::span<const TensorMap> batches) {
  auto giveAllBack = [&] {
    for (const TensorMap &batch : batches)
      for (const auto &[name, tensor] : batch)
        if (tensor)
          giveBack(tensor);
  };
  try {
    requireTrainable();
    PipelineStep step(*this, batches);
    prepareStreamed(announced, batches);
    meetOnce({}); // until now a rank could say that it has no room, and nobody waited for it
    step.run();
    giveAllBack();
  } catch (const std::exception &error) {
    tellFailure(error);
    abort();
    giveAllBack();
    if (!torn.empty() || !hasLostState())
      throw;
    tear(step, std::string("its optimizer failed midway (") + error.what() + ")");
  }
}

//===----------------------------------------------------------------------===//
// Evaluation
//===----------------------------------------------------------------------===//

void Session::State::agreeToEvaluate() {
  if (!isPipelined())
    return;
  std::vector<std::string> told = options.collectives->exchange("who has agreed", hasAgreed ? "" : "not yet");
  if (std::ranges::any_of(told, [](const std::string &word) { return !word.empty(); }))
    agree();
}

std::vector<Tensor> Session::State::evaluatePipeline(const Wiring &wiring, const TensorMap &placed) {
  Collectives &ranks = *options.collectives;
  const std::vector<Module> &modules = modulesNow();
  int rank = ranks.rank(), last = ranks.ranks() - 1;
  auto [begin, end] = ownModules();
  auto [in, out] = crossingsOf(wiring);
  std::vector<std::shared_ptr<const TensorDesc>> results;
  for (const Value &output : modules.back().outputs()) {
    auto dense = std::make_shared<TensorDesc>(output.desc().shape, output.desc().element);
    dense->layout.alignment = output.desc().layout.alignment;
    results.push_back(std::move(dense));
  }
  Neighbours neighbours(device, ranks);
  std::vector<std::vector<Tensor>> outputs(modules.size());
  std::vector<Tensor> found;
  enum { Receiving, Sending, Telling } at = Receiving;
  try {
    for (const Crossing &crossing : in) {
      auto [module, output] = crossing.value;
      outputs[module].resize(modules[module].outputs().size());
      outputs[module][output] = neighbours.receive(*crossing.desc, nameOf(crossing, modules, false), rank - 1);
    }
    at = Sending;
    neighbours.begin();
    for (size_t m = begin; m < end; ++m)
      outputs[m] = modules[m].infer(lookup(m, wiring, placed, outputs), options.events);
    for (const Crossing &crossing : out)
      neighbours.send(outputs[crossing.value.module][crossing.value.output], crossing.desc, rank + 1);
    for (size_t i = 0; i < results.size(); ++i)
      found.push_back(rank == last ? asSent(device, outputs.back()[i], results[i]) : Tensor::empty(device, results[i]));
    at = Telling;
    ranks.broadcast(found, last);
  } catch (const std::exception &error) {
    if (at == Telling || isOfTransport(error)) {
      ranks.abandon(error.what());
      throw;
    }
    try {
      if (at == Receiving) {
        neighbours.serve(descsOf(in, false), rank - 1, /*sends=*/false);
        neighbours.begin();
      }
      neighbours.serve(descsOf(out, false), rank + 1, /*sends=*/true);
      found.clear();
      for (const auto &desc : results) {
        found.push_back(Tensor::onHost(device, desc->shape, desc->element));
        if (rank == last)
          found.back().storage()->outcome()->fail(Error(ErrorCode::StepAborted, "the evaluation has failed"));
      }
      neighbours.wait();
      device->wait(ranks.broadcast(found, last));
    } catch (const std::exception &other) {
      ranks.abandon(other.what());
    }
    throw;
  }
  for (const Tensor &tensor : found) // who has the memory of the host may read it at once
    wait(tensor);
  return found;
}

} // namespace segue::inline runtime
