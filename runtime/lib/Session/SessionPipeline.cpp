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
      : s(state), batches(batches), rank(s.options.collectives->rank()), neighbours(s.device, *s.options.collectives) {
    for (const TensorMap &batch : batches) {
      Flight &flight = flights.emplace_back();
      flight.wiring = s.wiringFor(batch);
      flight.sizes = s.sizes;
      const PipelineStages &stages = *s.shards->stages();
      if (rank > 0)
        flight.passage.in = crossingsTo(stages.begin(rank), s.modulesNow(), flight.wiring);
      if (rank + 1 < stages.ranks())
        flight.passage.out = crossingsTo(stages.end(rank), s.modulesNow(), flight.wiring);
    }
  }

  void run() {
    std::vector<PipelineMove> moves = pipelineMoves(rank, s.shards->stages()->ranks(), batches.size());
    size_t next = 0;
    try {
      for (; next < moves.size(); ++next) {
        neighbours.begin();
        make(moves[next]);
      }
    } catch (const std::exception &error) {
      s.passage = nullptr;
      if (!isOfTransport(error))
        serve(std::span(moves).subspan(next));
      throw;
    }
    for (const Flight &flight : flights)
      noteLosses(flight);
    if (s.lateFailure)
      throw *std::exchange(s.lateFailure, std::nullopt);
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
    Flight &flight = flights[move.batch];
    Passage &passage = flight.passage;
    s.sizes = flight.sizes;
    s.batchAtHand = int64_t(move.batch);
    switch (move.act) {
    case PipelineAct::Receive:
      for (const Crossing &in : passage.in)
        passage.received.push_back(neighbours.receive(*in.desc, nameOf(in, s.modules, false), rank - 1));
      break;
    case PipelineAct::Forward:
      forward(flight, batches[move.batch]);
      break;
    case PipelineAct::Send:
      for (size_t i = 0; i < passage.out.size(); ++i)
        neighbours.send(passage.sent[i], passage.out[i].desc, rank + 1);
      passage.sent.clear();
      break;
    case PipelineAct::ReceiveGradient:
      for (const Crossing &out : passage.out)
        flight.received.push_back(
            out.gradient ? neighbours.receive(*out.gradient, nameOf(out, s.modules, true), rank + 1) : Tensor());
      break;
    case PipelineAct::Backward:
      backward(flight);
      break;
    case PipelineAct::SendGradient:
      for (size_t i = 0; i < passage.in.size(); ++i)
        if (passage.in[i].gradient)
          neighbours.send(passage.gradients[i], passage.in[i].gradient, rank - 1);
      passage.gradients.clear();
      break;
    }
  }

  void forward(Flight &flight, const TensorMap &batch) {
    s.passage = &flight.passage;
    flight.losses = s.runForward(flight.wiring, s.placeBatch(flight.wiring, batch));
    s.passage = nullptr;
    flight.recording = s.tape.takeSteps();
    flight.batchValues = std::exchange(s.batchValues, {});
    flight.seeds = std::exchange(s.losses, {});
  }

  void backward(Flight &flight) {
    s.inputGradients.clear();
    s.tape.putSteps(std::move(flight.recording));
    s.batchValues = std::move(flight.batchValues);
    s.losses = std::move(flight.seeds);
    for (size_t i = 0; i < flight.received.size(); ++i)
      if (flight.received[i])
        s.tape.add(flight.passage.sentIds[i], std::move(flight.received[i]));
    flight.received.clear();
    s.passage = &flight.passage;
    s.runBackward();
    s.passage = nullptr;
    ++s.waiting;
  }

  void noteLosses(const Flight &flight) {
    auto [begin, end] = s.ownModules();
    double loss = 0;
    size_t next = 0;
    for (size_t m = 0; m < s.ports.size(); ++m)
      for (const Value &output : s.ports[m].outputs)
        if (isLoss(output)) {
          s.batchLosses.push_back(m >= begin && m < end ? flight.losses.at(next++).item() : 0);
          loss += s.batchLosses.back();
        }
    s.noteLoss(loss);
  }

  /// Does what others wait for in these moves, of which the first may have begun.
  void serve(std::span<const PipelineMove> moves) {
    try {
      for (const PipelineMove &move : moves) {
        const Passage &passage = flights[move.batch].passage;
        if (move.act == PipelineAct::Receive || move.act == PipelineAct::SendGradient)
          neighbours.serve(descsOf(passage.in, move.act == PipelineAct::SendGradient), rank - 1,
                           move.act == PipelineAct::SendGradient);
        else if (move.act == PipelineAct::Send || move.act == PipelineAct::ReceiveGradient)
          neighbours.serve(descsOf(passage.out, move.act == PipelineAct::ReceiveGradient), rank + 1,
                           move.act == PipelineAct::Send);
      }
      neighbours.wait();
    } catch (const std::exception &error) {
      s.options.collectives->abandon(error.what());
    }
  }

  State &s;
  std::span<const TensorMap> batches;
  int rank;
  std::vector<Flight> flights;
  Neighbours neighbours;
};

void Session::State::runPipeline(std::span<const TensorMap> batches) {
  auto giveAllBack = [&] {
    for (const TensorMap &batch : batches)
      for (const auto &[name, tensor] : batch)
        if (tensor)
          giveBack(tensor);
  };
  try {
    requireWhole();
    requireValues();
    for (const Module &module : modules)
      if (!module.hasBackward())
        throw Error(ErrorCode::InvalidArgument,
                    "module \"" + module.name() + "\" has no program \"backward\"; compile it for training");
    PipelineStep step(*this, batches);
    prepareStreamed(announced, batches);
    if (services)
      services->setStep(this->step + 1);
    enter(Phase::StepBegin);
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
  std::vector<Crossing> in, out;
  if (rank > 0)
    in = crossingsTo(begin, modules, wiring);
  if (rank < last)
    out = crossingsTo(end, modules, wiring);
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
  return found;
}

} // namespace segue::inline runtime
