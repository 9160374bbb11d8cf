//===- Pipeline.cpp - a step that goes from rank to rank ------------------===//
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

#include "../../Services/Actors/PrecisionActor.h"
#include "Passage.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <tuple>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// What crosses to other stages
//===----------------------------------------------------------------------===//

SharedSession::Passage SharedSession::passageOf(const Wiring &wiring) const {
  auto [begin, end] = ownModules();
  Passage passage;
  if (begin > 0)
    passage.in = crossingsTo(begin, s.modulesNow(), wiring);
  if (end < s.modules.size())
    passage.out = crossingsTo(end, s.modulesNow(), wiring);
  passage.parts = shards_->partsOf(group_->rank(), s.modulesNow(), s.table);
  return passage;
}

void SharedSession::leavePipelineTo(std::span<const TensorMap> batches, std::vector<std::vector<uint64_t>> &steps,
                                     std::vector<std::vector<uint64_t>> &updates) {
  int rank = group_->rank();
  for (const TensorMap &batch : batches) {
    Passage passage = passageOf(s.wiringFor(batch));
    for (PipelineAct act :
         {PipelineAct::Receive, PipelineAct::Send, PipelineAct::ReceiveGradient, PipelineAct::SendGradient})
      for (const Hop &hop : passage.hops(act, rank))
        steps.emplace_back(1, hop.desc->spanBytes());
  }
  for (size_t slot = 0; slot < s.table.size(); ++slot)
    if (isTiedHere(slot))
      for (size_t other = shards_->rankOf(slot) == rank ? shards_->readers(slot).size() - 1 : 1; other--;)
        updates.emplace_back(1, s.table.infos()[slot].desc.spanBytes());
}

void SharedSession::enterStage(std::vector<std::vector<Tensor>> &outputs,
                               std::vector<std::vector<GradientTape::ValueId>> &ids) {
  if (passage_)
    passage_->enter(s.modulesNow(), s.tape, outputs, ids);
}

void SharedSession::leaveStage(const std::vector<std::vector<Tensor>> &outputs,
                               const std::vector<std::vector<GradientTape::ValueId>> &ids) {
  if (passage_)
    passage_->leave(outputs, ids);
}

bool SharedSession::isPartOfOther(size_t slot) const { return passage_ && shards_->rankOf(slot) != rank(); }

void SharedSession::takeGradients() {
  if (passage_)
    passage_->takeGradients(s.tape);
}

//===----------------------------------------------------------------------===//
// Parameters that modules of several stages share
//===----------------------------------------------------------------------===//

bool SharedSession::isTiedHere(size_t slot) const {
  return s.table.infos()[slot].trained && shards_->readers(slot).size() > 1 &&
         shards_->has(group_->rank(), slot);
}

void SharedSession::shareTied() {
  Collectives &ranks = *group_;
  for (size_t slot = 0; slot < s.table.size(); ++slot) {
    if (!isTiedHere(slot))
      continue;
    const Tensor &value = s.values[slot];
    bool isDense = value.desc().isDense();
    Tensor sent = isDense ? value : Tensor::onHost(s.device, value.shape(), value.element());
    int owner = shards_->rankOf(slot);
    // Sends wait for nobody, and this one may be a rank's last: it hears that the value is there before it leaves.
    Tensor isThere = Tensor::onHost(s.device, {1}, ElementType::f32);
    if (owner != ranks.rank()) {
      ranks.receive(sent, owner);
      ranks.send(isThere, owner);
      if (!isDense)
        copyInto(sent, value);
      continue;
    }
    if (!isDense)
      copyInto(value, sent);
    for (int other : shards_->readers(slot))
      if (other != owner)
        ranks.send(sent, other);
    for (int other : shards_->readers(slot))
      if (other != owner)
        ranks.receive(isThere, other);
  }
}

void SharedSession::requireSameBatches(const std::vector<StepWord> &words) {
  for (size_t rank = 1; rank < words.size() && isPipelined(); ++rank) {
    if (words[rank].batches == words[0].batches && words[rank].batchHash == words[0].batchHash)
      continue;
    hasTold_ = true; // every rank finds it
    bool isCount = words[rank].batches != words[0].batches;
    throw Error(ErrorCode::RankFailed,
                "step " + std::to_string(s.step + 1) + ": rank 0 has " + std::to_string(words[0].batches) +
                    " batches, and rank " + std::to_string(rank) + " " +
                    (isCount ? std::to_string(words[rank].batches) : "others, or the same in another order") +
                    "; every rank of a pipeline is given the same batches");
  }
}

double SharedSession::meanLoss(const std::vector<StepWord> &words) const {
  double sum = 0;
  size_t losses = batchLosses_.size() / size_t(s.waiting);
  for (size_t batch = 0; batch < size_t(s.waiting); ++batch) {
    double loss = 0;
    for (size_t i = batch * losses; i < (batch + 1) * losses; ++i)
      for (const StepWord &word : words) // one of them has it
        loss += word.losses.at(i);
    sum += loss;
  }
  return sum / double(s.waiting);
}

//===----------------------------------------------------------------------===//
// A batch in a stage
//===----------------------------------------------------------------------===//

void SharedSession::Passage::enter(std::span<const Module> modules, GradientTape &tape,
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

void SharedSession::Passage::leave(const std::vector<std::vector<Tensor>> &outputs,
                                    const std::vector<std::vector<GradientTape::ValueId>> &ids) {
  for (const Crossing &crossing : out) {
    auto [module, output] = crossing.value;
    sent.push_back(outputs[module][output]);
    sentIds.push_back(ids[module][output]);
  }
}

void SharedSession::Passage::takeGradients(GradientTape &tape) {
  for (GradientTape::ValueId id : receivedIds)
    gradients.push_back(std::move(tape.gradient(id)));
  for (GradientPart &part : parts)
    if (part.isGiven)
      part.tensor = std::move(tape.gradient(tape.steps()[part.module].parameters[part.parameter]));
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

void Neighbours::serve(std::span<const Hop> hops, bool sends) {
  for (; count_ < hops.size(); ++count_) {
    const auto &[desc, other] = hops[count_];
    Tensor nothing = Tensor::onHost(device_, desc->shape, desc->element);
    if (sends)
      nothing.storage()->outcome()->fail(Error(ErrorCode::StepAborted, "the step has ended before it was computed"));
    done_.join(sends ? ranks_.send(nothing, other) : ranks_.receive(nothing, other));
  }
  count_ = 0;
}

void Neighbours::wait() { device_->wait(done_); }

std::vector<Hop> SharedSession::Passage::hops(PipelineAct act, int rank) const {
  bool isBefore = act == PipelineAct::Receive || act == PipelineAct::SendGradient;
  bool areGradients = act == PipelineAct::SendGradient || act == PipelineAct::ReceiveGradient;
  std::vector<Hop> hops;
  for (const Crossing &crossing : isBefore ? in : out)
    if (auto &desc = areGradients ? crossing.gradient : crossing.desc)
      hops.push_back({desc, isBefore ? rank - 1 : rank + 1});
  for (const GradientPart &part : parts)
    if (areGradients && part.isGiven == isBefore)
      hops.push_back({part.desc, part.other});
  return hops;
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

class SharedSession::PipelineStep {
public:
  PipelineStep(SharedSession &ranks, std::span<const TensorMap> batches)
      : ranks_(ranks), state_(ranks.s), batches_(batches), rank_(ranks.rank()), flights_(batches.size()),
        neighbours_(ranks.s.device, ranks.group()) {
    for (size_t batch = 0; batch < batches.size(); ++batch) {
      Flight &flight = flights_[batch];
      flight.wiring = state_.wiringFor(batches[batch]);
      flight.sizes = state_.sizes;
      flight.passage = ranks_.passageOf(flight.wiring);
    }
  }

  /// Runs the step, which begins here for services, too. From here on others wait for this rank. `lostLoss` gets a loss
  /// that is none.
  void run(std::optional<double> &lostLoss) {
    std::vector<PipelineMove> moves = pipelineMoves(rank_, ranks_.shards_->stages()->ranks(), batches_.size());
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
      ranks_.passage_ = nullptr;
      if (!isOfTransport(error))
        serve(std::span(moves).subspan(next));
      throw;
    }
    for (const Flight &flight : flights_) {
      double loss = noteLosses(flight);
      if (state_.lateFailure && !lostLoss)
        lostLoss = loss;
    }
    if (state_.lateFailure)
      throw *std::exchange(state_.lateFailure, std::nullopt);
  }

private:
  /// A Flight is a batch from its forward to its backward.
  struct Flight {
    Wiring wiring;
    const SessionState::Sizes *sizes = nullptr;
    Passage passage;
    GradientTape::Recording recording;
    decltype(SessionState::batchValues) batchValues;
    decltype(SessionState::losses) seeds;
    std::vector<Tensor> losses, received;
  };

  void make(const PipelineMove &move) {
    Flight &flight = flights_[move.batch];
    Passage &passage = flight.passage;
    state_.sizes = flight.sizes;
    ranks_.batchAtHand_ = int64_t(move.batch);
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
      for (GradientPart &part : passage.parts)
        if (!part.isGiven)
          part.tensor =
              neighbours_.receive(*part.desc, "gradient of " + state_.table.infos()[part.slot].key, part.other);
      break;
    case PipelineAct::Backward:
      backward(flight);
      break;
    case PipelineAct::SendGradient:
      for (size_t i = 0; i < passage.in.size(); ++i)
        if (passage.in[i].gradient)
          neighbours_.send(passage.gradients[i], passage.in[i].gradient, rank_ - 1);
      for (GradientPart &part : passage.parts)
        if (part.isGiven)
          neighbours_.send(std::exchange(part.tensor, Tensor()), part.desc, part.other);
      passage.gradients.clear();
      break;
    }
  }

  void forward(Flight &flight, const TensorMap &batch) {
    ranks_.passage_ = &flight.passage;
    flight.losses = state_.runForward(flight.wiring, state_.placeBatch(flight.wiring, batch));
    ranks_.passage_ = nullptr;
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
    // One rank's backward comes to the modules of later stages first.
    for (GradientPart &part : flight.passage.parts)
      if (!part.isGiven)
        state_.tape.add(GradientTape::ValueId(part.slot), std::exchange(part.tensor, Tensor()), state_.options.events);
    ranks_.passage_ = &flight.passage;
    state_.runBackward();
    ranks_.passage_ = nullptr;
    ++state_.waiting;
  }

  /// Returns the loss of a batch, as far as this rank has it.
  double noteLosses(const Flight &flight) {
    auto [begin, end] = ranks_.ownModules();
    double loss = 0;
    size_t next = 0;
    for (size_t m = 0; m < state_.ports.size(); ++m)
      for (const Value &output : state_.ports[m].outputs)
        if (isLoss(output)) {
          ranks_.batchLosses_.push_back(m >= begin && m < end ? flight.losses.at(next++).item() : 0);
          loss += ranks_.batchLosses_.back();
        }
    state_.noteLoss(loss);
    return loss;
  }

  /// Does what others wait for in these moves, of which the first may have begun.
  void serve(std::span<const PipelineMove> moves) {
    try {
      for (const PipelineMove &move : moves) {
        if (move.act != PipelineAct::Forward && move.act != PipelineAct::Backward)
          neighbours_.serve(flights_[move.batch].passage.hops(move.act, rank_),
                            move.act == PipelineAct::Send || move.act == PipelineAct::SendGradient);
      }
      neighbours_.wait();
    } catch (const std::exception &error) {
      ranks_.group_->abandon(error.what());
    }
  }

  SharedSession &ranks_;
  SessionState &state_;
  std::span<const TensorMap> batches_;
  int rank_;
  std::vector<Flight> flights_;
  Neighbours neighbours_;
};

void SharedSession::runPipeline(std::span<const TensorMap> batches) {
  auto giveAllBack = [&] {
    for (const TensorMap &batch : batches)
      for (const auto &[name, tensor] : batch)
        if (tensor)
          giveBack(tensor);
  };
  std::optional<double> lostLoss;
  try {
    s.requireTrainable();
    PipelineStep step(*this, batches);
    s.prepareStreamed(s.announced, batches);
    meetOnce({}); // until now a rank could say that it has no room, and nobody waited for it
    step.run(lostLoss);
    if (s.precision)
      s.precision->batchEnded(batches.back());
    giveAllBack();
  } catch (const std::exception &error) {
    s.giveUp(error, /*midway=*/"");
    if (s.precision && lostLoss)
      s.precision->lossOfAborted(*lostLoss);
    giveAllBack();
    s.requireWhole(); // the failure may be that of the optimizer of the step before, in its queue
    throw;
  }
}

//===----------------------------------------------------------------------===//
// Evaluation
//===----------------------------------------------------------------------===//

void SharedSession::meetToEvaluate(const std::string &failure) {
  if (!isGathered() && !isPipelined())
    return;
  meetToGather("a batch is evaluated", failure);
  if (failure.empty() && isPipelined())
    agreeToPlay();
}

void SharedSession::meetToPlay(const std::string &failure) { meetToGather("blocks are played", failure); }

void SharedSession::agreeToPlay() {
  std::vector<std::string> told = group_->exchange("who has agreed", hasAgreed_ ? "" : "not yet");
  if (std::ranges::any_of(told, [](const std::string &word) { return !word.empty(); }))
    agree();
}

void SharedSession::passStage(const Wiring &wiring, std::vector<std::vector<Tensor>> &outputs,
                              const std::function<void()> &run) {
  const std::vector<Module> &modules = s.modulesNow();
  Passage passage = passageOf(wiring);
  Neighbours neighbours(s.device, *group_);
  bool hasReceived = false;
  try {
    for (const Crossing &crossing : passage.in) {
      auto [module, output] = crossing.value;
      outputs[module].resize(modules[module].outputs().size());
      outputs[module][output] = neighbours.receive(*crossing.desc, nameOf(crossing, modules, false), rank() - 1);
    }
    hasReceived = true;
    neighbours.begin();
    run();
    for (const Crossing &crossing : passage.out)
      neighbours.send(outputs[crossing.value.module][crossing.value.output], crossing.desc, rank() + 1);
  } catch (const std::exception &error) {
    try {
      if (isOfTransport(error))
        throw;
      if (!hasReceived) {
        neighbours.serve(passage.hops(PipelineAct::Receive, rank()), /*sends=*/false);
        neighbours.begin();
      }
      neighbours.serve(passage.hops(PipelineAct::Send, rank()), /*sends=*/true);
      neighbours.wait();
    } catch (const std::exception &other) {
      group_->abandon(other.what());
    }
    throw;
  }
}

/// Finds them as each rank does for its own modules, which it alone has a ring for.
std::vector<StreamedParameter> SharedSession::parametersOfStages() const {
  std::vector<Module> modules;
  std::vector<OptimizerPlan> plans;
  modules.reserve(s.modules.size()); // plans refer to them
  for (size_t m = 0; m < s.modules.size(); ++m) {
    const Module &module = s.modules[m];
    modules.push_back(!module.isElsewhere()
                          ? module
                          : shards_->shareOf(Module(s.device, module.binary(), module.name()), m, s.table,
                                             shards_->stages()->rankOf(m), sharding_));
    plans.push_back(planOptimizer(modules.back(), m, s.table));
  }
  WeightStreamer streamer(s.device, s.weights()->config(), {});
  StreamedParameters known(&streamer, nullptr, /*isPlanned=*/false, modules, plans, s.table, s.values, nullptr);
  return streamer.parameters();
}

std::vector<Tensor> SharedSession::evaluatePipeline(const Wiring &wiring, const TensorMap &placed) {
  Collectives &ranks = *group_;
  const std::vector<Module> &modules = s.modulesNow();
  int last = ranks.ranks() - 1;
  std::vector<std::shared_ptr<const TensorDesc>> results;
  for (const Value &output : modules.back().outputs()) {
    auto dense = std::make_shared<TensorDesc>(output.desc().shape, output.desc().element);
    dense->layout.alignment = output.desc().layout.alignment;
    results.push_back(std::move(dense));
  }
  std::vector<std::vector<Tensor>> outputs(modules.size());
  std::vector<Tensor> found;
  Fence told;
  bool isTelling = false;
  try {
    passStage(wiring, outputs, [&] {
      for (auto [m, end] = ownModules(); m < end; ++m)
        outputs[m] = modules[m].infer(s.lookup(m, wiring, placed, outputs), s.options.events);
    });
    for (size_t i = 0; i < results.size(); ++i)
      found.push_back(rank() == last ? asSent(s.device, outputs.back()[i], results[i])
                                     : Tensor::empty(s.device, results[i]));
    isTelling = true;
    told = ranks.broadcast(found, last);
  } catch (const std::exception &error) {
    try {
      if (isTelling || isOfTransport(error))
        throw;
      found.clear();
      for (const auto &desc : results) {
        found.push_back(Tensor::onHost(s.device, desc->shape, desc->element));
        if (rank() == last)
          found.back().storage()->outcome()->fail(Error(ErrorCode::StepAborted, "the evaluation has failed"));
      }
      s.device->wait(ranks.broadcast(found, last));
    } catch (const std::exception &other) {
      ranks.abandon(other.what());
    }
    throw;
  }
  s.device->wait(told); // it may be the last that this rank does for others
  for (const Tensor &tensor : found) // who has the memory of the host may read it at once
    wait(tensor);
  return found;
}

} // namespace segue::inline runtime
