//===- Agreement.cpp - what ranks agree on before they train --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Before the first step, and where one was given values since, ranks tell each other what
// they train: programs, strategy, order of messages, seed. What differs is refused by name.
// Values are those of rank 0 then.
//
//===----------------------------------------------------------------------===//

#include "../../Hash.h"
#include "../../Services/Actors/PrecisionActor.h"
#include "RankWords.h"
#include "SharedSession.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

void SharedSession::programsChanged() {
  compiledPrograms_ = programsAsJson();
  hasAgreed_ = false;
}

void SharedSession::valuesGiven() {
  hasAgreed_ = false;
  ++timesGiven_;
}

Json SharedSession::programsAsJson() const {
  Json told = Json::object();
  for (const Module &module : s.modules) {
    Json programs = Json::object();
    for (std::string_view name : {"forward", "backward", "optimizer", "grad_norm"}) {
      const Program *program = module.find(name);
      if (!program)
        continue;
      Json counts = Json::array({program->interfaceHash()});
      for (const CommandCount &count : program->commandCounts())
        counts.push_back(count.count);
      programs[std::string(name)] = std::move(counts);
    }
    told["module \"" + module.name() + "\""] = std::move(programs);
  }
  return told;
}

Json SharedSession::trainedAsJson() const {
  Json told = Json::object();
  for (const ParameterInfo &info : s.table.infos())
    told["parameter \"" + info.key + "\""] = {TensorDesc(info.desc.shape, info.desc.element).str(), info.trained};
  told.update(compiledPrograms_);
  told["the strategy"] = name(sharding_);
  if (isGathered()) {
    const WeightStagehandConfig &ring = s.weights()->config();
    told["how parameters are gathered (prefetch_window_blocks, max_inflight_transfers, whether they are waited for)"] =
        {ring.prefetchWindowBlocks, ring.maxInflightTransfers, s.device->runsInline()};
  }
  if (isPipelined()) {
    Json &stages = told["the number of modules of each rank"] = Json::array();
    for (int rank = 0; rank < group_->ranks(); ++rank)
      stages.push_back(shards_->stages()->end(rank) - shards_->stages()->begin(rank));
  }
  if (isGathered() || isPipelined()) // each keeps what is its own
    told["how often parameters were set or loaded"] = timesGiven_;
  GradientReduction order(group_);
  if (!isPipelined())
    order.plan(s.modules, s.table, sharesGradients() ? shards_.get() : nullptr);
  Json &messages = told["the order in which gradients are sent"] = Json::array();
  for (const GradientReduction::Message &message : order.messages())
    messages.push_back(message.slots);
  told["the norm that gradients are clipped to"] = s.options.maxGradNorm;
  told["the scale of the loss"] = s.lossScale();
  told["Selective Precision"] = s.precision ? s.precision->agreed() : Json();
  told["the number of steps taken"] = s.step;
  return told;
}

/// Throws where another rank has something else than rank 0.
static void requireSame(const std::vector<Json> &told) {
  for (size_t rank = 1; rank < told.size(); ++rank)
    for (const auto &[from, to] : {std::pair(0, int(rank)), std::pair(int(rank), 0)})
      for (const auto &[what, value] : told[size_t(from)].items()) {
        const Json &other = told[size_t(to)];
        if (!other.contains(what))
          throw Error(ErrorCode::RankFailed, rankText(size_t(from)) + " has " + what + ", and " + rankText(size_t(to)) +
                                                 " has not; every rank trains the same modules");
        if (other[what] != value)
          throw Error(ErrorCode::RankFailed, what + " differs: " + rankText(size_t(from)) + " has " + value.dump() +
                                                 ", and " + rankText(size_t(to)) + " has " + other[what].dump() +
                                                 "; every rank trains the same modules in the same way, from the same "
                                                 "checkpoint");
      }
}

void SharedSession::agree() {
  hasAgreed_ = false;
  Collectives &ranks = *group_;
  std::exception_ptr failure;
  Json own;
  hasTold_ = true; // what is found here is found on every rank
  try {
    s.requireWhole();
    s.requireValues();
    s.makeDeferred();
    s.flush();
    own = trainedAsJson();
    own["the seed"] = s.options.seed;
  } catch (const std::exception &error) {
    failure = std::current_exception();
    own = {{"failure", error.what()}};
  }
  std::vector<Json> told;
  for (const std::string &text : ranks.exchange("what is trained", textOf(own)))
    told.push_back(Json::parse(text));
  if (failure)
    std::rethrow_exception(failure);
  for (size_t rank = 0; rank < told.size(); ++rank)
    if (told[rank].contains("failure"))
      throw Error(ErrorCode::RankFailed, rankText(rank) + " cannot begin: " + told[rank]["failure"].get<std::string>());
  s.options.seed = told[0]["the seed"];
  for (Json &each : told)
    each.erase("the seed");
  requireSame(told);
  try {
    takeValuesOfRank0();
  } catch (const std::exception &error) { // others are in the midst of it
    ranks.abandon(error.what());
    throw;
  }
  reduction_.emplace(group_);
  if (!isPipelined()) // where each has all gradients of its own
    reduction_->plan(s.modules, s.table, sharesGradients() ? shards_.get() : nullptr);
  hasTold_ = false;
  hasAgreed_ = true;
}

void SharedSession::takeValuesOfRank0() {
  if (!s.device->hasBytes())
    return;
  Collectives &ranks = *group_;
  std::vector<Tensor> held;
  for (size_t slot = 0; slot < s.table.size(); ++slot) // null where a slab or file has it, which is the same for all
    held.push_back(rankOf(slot) ? Tensor() : s.values[slot]);
  for (const auto &[key, state] : s.optimizerState)
    if (!shards_)
      held.push_back(state);
  std::vector<uint64_t> hashes;
  for (const Tensor &value : held) {
    HashOfPieces hash;
    if (value)
      forEachPiece(value, [&](std::span<const std::byte> bytes) { hash.add(bytes.data(), bytes.size()); });
    hashes.push_back(hash.value());
  }
  std::string own(reinterpret_cast<const char *>(hashes.data()), hashes.size() * sizeof(uint64_t));
  std::vector<std::string> all = ranks.exchange("hashes of values", own);
  size_t taken = 0;
  bool takesStates = false;
  int64_t given = timesGiven_;
  for (size_t i = 0; i < held.size(); ++i) {
    auto isAsRank0 = [&](const std::string &other) {
      return std::memcmp(other.data() + i * sizeof(uint64_t), all[0].data() + i * sizeof(uint64_t), sizeof(uint64_t)) == 0;
    };
    if (!held[i] || std::ranges::all_of(all, isAsRank0))
      continue;
    ++taken;
    Tensor host = ranks.rank() == 0 ? toHost(held[i]) : Tensor::onHost(s.device, held[i].shape(), held[i].element());
    s.device->wait(ranks.broadcast(std::span(&host, 1), 0));
    wait(host);
    if (ranks.rank() == 0)
      continue;
    s.torn = "values of rank 0 have come in part";
    if (i < s.table.size()) {
      s.assign(i, host);
      continue;
    }
    copyInto(host, held[i]);
    takesStates = true;
  }
  timesGiven_ = given; // these came from rank 0, and not from outside
  if (isPipelined())
    shareTied();
  s.settle();
  s.torn.clear();
  s.requireWhole();
  takePrecisionOfRank0();
  if (s.residency && takesStates)
    s.residency->homesWritten(); // what lies on the device is of the states before
  if (taken && s.options.log)
    s.options.log(std::to_string(taken) + " parameters and states were not the same on all ranks, which have those of "
                                        "rank 0 now");
}

void SharedSession::takePrecisionOfRank0() {
  if (!s.precision)
    return;
  std::vector<std::string> states = group_->exchange("the state of precision", s.precision->stateForRanks());
  if (rank() != 0)
    s.precision->takeState(states[0]);
}

} // namespace segue::inline runtime
