//===- SessionRanks.cpp - a step that several ranks take together ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each rank has all parameters, or gathers them, and batches of its own. Ranks agree on what
// they train before the first step, and meet three times in each: before it begins, when
// gradients have been added up, which begins while backward runs, and before the first
// parameter is written. Where each has some gradients alone they meet for their norm, too, and
// where it has some parameters or modules alone, before the first block, when all are ready. In
// a pipeline all have the same batches. A rank whose step fails says so at the meeting that is
// next, so that no rank updates anything.
//
//===----------------------------------------------------------------------===//

#include "../Hash.h"
#include "../Services/Actors/PrecisionActor.h"
#include "GradientSum.h"
#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

bool Session::State::isShared() const { return options.collectives && options.collectives->ranks() > 1; }

static std::string rankText(size_t rank) { return "rank " + std::to_string(rank); }

void Session::State::checkCanBeShared() const {
  if (!isShared())
    return;
  auto refuse = [](const char *what) { throw Error(ErrorCode::Unsupported, what); };
  if (updatesInBackward())
    refuse("several ranks add their gradients up before the optimizer, and a module was compiled with its optimizer in "
           "backward; compile it without in-backward");
  if (isSharded() && std::ranges::any_of(plans, &OptimizerPlan::isInForward))
    refuse("ranks that have states of some parameters alone send the others what they have updated, and a module was "
           "compiled with its optimizer in forward; compile it without in-forward");
  if (precision && (isGathered() || isPipelined()))
    refuse("Selective Precision chooses forms of blocks by what every rank finds in all of them, and ranks that gather "
           "parameters (zero3) or run some modules (pipeline) have not all; train by another strategy, or turn it off");
}

/// Returns a hash of what batches hold, by which ranks find out that they have the same.
static uint64_t hashOfBatches(std::span<const TensorMap> batches) {
  HashOfPieces hash;
  for (const TensorMap &batch : batches)
    for (const auto &[name, tensor] : batch) {
      std::string what = name + (tensor ? TensorDesc(tensor.shape(), tensor.element()).str() : "");
      hash.add(what.data(), what.size() + 1);
      if (tensor)
        forEachPiece(tensor, [&](std::span<const std::byte> bytes) { hash.add(bytes.data(), bytes.size()); });
    }
  return hash.value();
}

void Session::State::beginMeetings() {
  hasTold = false;
  meetings = 0;
}

void Session::State::beginShared(std::span<const TensorMap> batches) {
  if (!isShared())
    return;
  if (reduction)
    reduction->beginStep();
  gathersMore = false;
  StepWord own{.wantsToAgree = !hasAgreed, .batches = int64_t(batches.size())};
  if (isPipelined() && device->hasBytes())
    own.batchHash = hashOfBatches(batches);
  if (precision)
    own.precision = precision->word();
  std::vector<StepWord> words = meetOnce(own);
  takePrecisionWords(words);
  requireSameBatches(words);
  for (size_t rank = 1; rank < words.size() && isGathered(); ++rank)
    if (words[rank].batches != words[0].batches) {
      hasTold = true; // every rank finds it
      throw Error(ErrorCode::RankFailed, "step " + std::to_string(step + 1) + ": rank 0 has " +
                                             std::to_string(words[0].batches) + " batches, and " + rankText(rank) +
                                             " " + std::to_string(words[rank].batches) +
                                             "; ranks that gather parameters take equally many (zero3)");
    }
  bool agrees = std::ranges::any_of(words, &StepWord::wantsToAgree);
  if (agrees)
    agree();
  if (agrees || batches.size() > leftForBatches)
    leaveHostToMessages(batches);
}

//===----------------------------------------------------------------------===//
// What is trained
//===----------------------------------------------------------------------===//

/// Names and messages of others may be no UTF-8.
static std::string textOf(const Json &json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json Session::State::programsAsJson() const {
  Json told = Json::object();
  for (const Module &module : modules) {
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

Json Session::State::trainedAsJson() const {
  Json told = Json::object();
  for (const ParameterInfo &info : table.infos())
    told["parameter \"" + info.key + "\""] = {TensorDesc(info.desc.shape, info.desc.element).str(), info.trained};
  told.update(compiledPrograms);
  told["the strategy"] = name(options.sharding);
  if (isGathered()) {
    const WeightStagehandConfig &ring = weights()->config();
    told["how parameters are gathered (prefetch_window_blocks, max_inflight_transfers, whether they are waited for)"] =
        {ring.prefetchWindowBlocks, ring.maxInflightTransfers, device->runsInline()};
  }
  if (isPipelined()) {
    Json &stages = told["the number of modules of each rank"] = Json::array();
    for (int rank = 0; rank < options.collectives->ranks(); ++rank)
      stages.push_back(shards->stages()->end(rank) - shards->stages()->begin(rank));
  }
  if (isGathered() || isPipelined()) // each keeps what is its own
    told["how often parameters were set or loaded"] = timesGiven;
  GradientReduction order(options.collectives);
  if (!isPipelined())
    order.plan(modules, table, sharesGradients() ? shards.get() : nullptr);
  Json &messages = told["the order in which gradients are sent"] = Json::array();
  for (const GradientReduction::Message &message : order.messages())
    messages.push_back(message.slots);
  told["the norm that gradients are clipped to"] = options.maxGradNorm;
  told["the scale of the loss"] = lossScale();
  told["Selective Precision"] = precision ? precision->agreed() : Json();
  told["the number of steps taken"] = step;
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

void Session::State::agree() {
  hasAgreed = false;
  Collectives &ranks = *options.collectives;
  std::exception_ptr failure;
  Json own;
  hasTold = true; // what is found here is found on every rank
  try {
    requireWhole();
    requireValues();
    makeDeferred();
    flush();
    own = trainedAsJson();
    own["the seed"] = options.seed;
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
  options.seed = told[0]["the seed"];
  for (Json &each : told)
    each.erase("the seed");
  requireSame(told);
  try {
    takeValuesOfRank0();
  } catch (const std::exception &error) { // others are in the midst of it
    ranks.abandon(error.what());
    throw;
  }
  reduction.emplace(options.collectives);
  if (!isPipelined()) // where each has all gradients of its own
    reduction->plan(modules, table, sharesGradients() ? shards.get() : nullptr);
  hasTold = false;
  hasAgreed = true;
}

void Session::State::takeValuesOfRank0() {
  if (!device->hasBytes())
    return;
  Collectives &ranks = *options.collectives;
  std::vector<Tensor> held;
  for (size_t slot = 0; slot < table.size(); ++slot) // null where a slab or file has it, which is the same for all
    held.push_back(rankOf(slot) ? Tensor() : values[slot]);
  for (const auto &[key, state] : optimizerState)
    if (!shards)
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
  int64_t given = timesGiven;
  for (size_t i = 0; i < held.size(); ++i) {
    auto isAsRank0 = [&](const std::string &other) {
      return std::memcmp(other.data() + i * sizeof(uint64_t), all[0].data() + i * sizeof(uint64_t), sizeof(uint64_t)) == 0;
    };
    if (!held[i] || std::ranges::all_of(all, isAsRank0))
      continue;
    ++taken;
    Tensor host = ranks.rank() == 0 ? toHost(held[i]) : Tensor::onHost(device, held[i].shape(), held[i].element());
    device->wait(ranks.broadcast(std::span(&host, 1), 0));
    wait(host);
    if (ranks.rank() == 0)
      continue;
    torn = "values of rank 0 have come in part";
    if (i < table.size()) {
      assign(i, host);
      continue;
    }
    copyInto(host, held[i]);
    takesStates = true;
  }
  timesGiven = given; // these came from rank 0, and not from outside
  if (isPipelined())
    shareTied();
  settle();
  torn.clear();
  requireWhole();
  takePrecisionOfRank0();
  if (residency && takesStates)
    residency->homesWritten(); // what lies on the device is of the states before
  if (taken && options.log)
    options.log(std::to_string(taken) + " parameters and states were not the same on all ranks, which have those of "
                                        "rank 0 now");
}

//===----------------------------------------------------------------------===//
// The meetings of a step
//===----------------------------------------------------------------------===//

/// The bits of each number in as many letters, so that a message has one length whatever it says.
static std::string hexOf(const std::vector<float> &numbers) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string hex;
  for (float number : numbers)
    for (int shift = 28; shift >= 0; shift -= 4)
      hex += digits[std::bit_cast<uint32_t>(number) >> shift & 15];
  return hex;
}

static std::vector<float> numbersOf(const std::string &hex) {
  std::vector<float> numbers;
  for (size_t at = 0; at < hex.size(); at += 8)
    numbers.push_back(std::bit_cast<float>(uint32_t(std::stoul(hex.substr(at, 8), nullptr, 16))));
  return numbers;
}

static std::string textOf(const StepWord &word) {
  // Numbers cross with all their bits.
  std::vector<uint64_t> losses;
  for (double loss : word.losses)
    losses.push_back(std::bit_cast<uint64_t>(loss));
  return textOf(Json::array({word.hasFailed, word.isOverflowed, word.holdsGradients, word.wantsToAgree, word.batches,
                             std::bit_cast<uint64_t>(word.lossSum), std::bit_cast<uint64_t>(word.gradNorm), word.rates,
                             word.why, hexOf(word.squares), word.isEcho, losses, word.batchHash, word.precision}));
}

static StepWord wordOf(const std::string &text) {
  Json told = Json::parse(text);
  std::vector<double> losses;
  for (const Json &loss : told[11])
    losses.push_back(std::bit_cast<double>(loss.get<uint64_t>()));
  return {told[0], told[1], told[2], told[3], told[4], std::bit_cast<double>(told[5].get<uint64_t>()),
          std::bit_cast<double>(told[6].get<uint64_t>()), told[7].get<std::vector<double>>(), told[8],
          numbersOf(told[9]), told[10], std::move(losses), told[12], told[13]};
}

void Session::State::requireWholeOnAll() {
  Collectives &ranks = *options.collectives;
  bool isWhole = settlesWhole();
  std::string number = std::to_string(step + 1);
  std::vector<std::string> told = ranks.exchange("step " + number + ", who is whole", torn);
  if (!isWhole) {
    Error error = tornError(torn);
    ranks.abandon(error.what());
    throw error;
  }
  for (size_t rank = 0; rank < told.size(); ++rank)
    if (!told[rank].empty()) {
      cause.emplace(ErrorCode::RankFailed, rankText(rank) + " cannot take step " + number + ": " + told[rank] +
                                               "; its parameters are between two steps: load the last checkpoint on "
                                               "every rank");
      throw *cause;
    }
}

std::vector<StepWord> Session::State::meet(const StepWord &own) {
  Collectives &ranks = *options.collectives;
  std::vector<StepWord> words;
  for (const std::string &text : ranks.exchange(
           "step " + std::to_string(step + 1) + ", " + std::string(meetingsOfStep()[meetings]), textOf(own)))
    words.push_back(wordOf(text));
  if (std::ranges::any_of(words, &StepWord::hasFailed))
    requireWholeOnAll();
  // Who has failed by itself is named before who could not go on for that.
  for (size_t i = 0; i < 2 * words.size() && (!own.hasFailed || own.isEcho); ++i)
    if (size_t rank = i % words.size();
        words[rank].hasFailed && words[rank].isEcho == (i >= words.size()) && rank != size_t(ranks.rank()))
      throw Error(ErrorCode::RankFailed, rankText(rank) + " cannot take step " + std::to_string(step + 1) + ": " +
                                             words[rank].why + "; parameters and optimizer state are those of step " +
                                             std::to_string(step) + " on every rank");
  return words;
}

/// Returns what the meetings of a step are about, in their order.
std::span<const std::string_view> Session::State::meetingsOfStep() const {
  static constexpr std::string_view all[] = {"begin", "gradients", "update"};
  static constexpr std::string_view withNorm[] = {"begin", "gradients", "norm", "update"};
  static constexpr std::string_view withReady[] = {"begin", "ready", "gradients", "norm", "update"};
  if (isGathered() || isPipelined())
    return withReady;
  return sharesGradients() ? std::span<const std::string_view>(withNorm) : std::span<const std::string_view>(all);
}

void Session::State::tellFailure(const std::exception &error) noexcept {
  if (!isShared() || hasTold || meetings >= meetingsOfStep().size())
    return;
  hasTold = true;
  auto *known = dynamic_cast<const Error *>(&error);
  bool isEcho = known && known->details<NotSent>();
  try {
    bool isWhole = settlesWhole();
    std::string why = isWhole ? std::string(error.what()) : tornError(torn).what();
    // A transport that has failed reaches nobody. In the first step of a kind nobody knows the rest of it, and who failed
    // by itself ends the ranks: who could not go on for that hears in a meeting why.
    bool hearsWhy = isEcho && gathersMore && knownOf(announced).gatherings.empty();
    if ((known && known->code() == ErrorCode::RankFailed && !isEcho) ||
        (gathersMore && !hearsWhy && !(isWhole && gatherRest())))
      options.collectives->abandon(why);
    else {
      if (meetingsOfStep()[meetings] == "gradients" && device->hasBytes())
        reduction->sendNothing(device);
      meet({.hasFailed = true, .why = std::move(why), .isEcho = isEcho});
    }
  } catch (const Error &told) { // the others are told by their own calls
    if (isEcho)
      cause = told;
  } catch (const std::exception &) {
  }
}

std::vector<StepWord> Session::State::meetOnce(const StepWord &own) {
  hasTold = true; // what fails in a meeting fails on every rank
  std::vector<StepWord> words = meet(own);
  hasTold = false;
  ++meetings;
  return words;
}

void Session::State::sendGradients() {
  std::vector<Tensor> sums(table.size());
  std::vector<NewestGradient> newest(table.size());
  for (const GradientReduction::Message &message : reduction->messages())
    for (size_t slot : message.slots) {
      if (reduction->wasSent(slot))
        continue;
      Tensor &sum = tape.gradient(GradientTape::ValueId(slot));
      if (!sum)
        sum = Tensor::zeros(device, TensorDesc(table.infos()[slot].desc.shape, ElementType::f32));
      newest[slot] = newestOf(sum);
      const Tensor &tensor = newest[slot].tensor;
      if (!newest[slot].item) {
        newest[slot] = {};
        if (isSeenElsewhere(slot) || sum.element() != ElementType::f32 || !sum.desc().isDense())
          ownSum(sum);
        sums[slot] = sum;
      } else if (tensor.element() != ElementType::f32 || !tensor.desc().isDense()) { // an item keeps its type and layout
        sums[slot] = Tensor::onHost(device, sum.shape(), ElementType::f32);
        copyInto(tensor, sums[slot]);
      } else {
        sums[slot] = tensor;
      }
      wait(sums[slot]); // what has failed here is told, and not sent
    }
  try {
    reduction->sendRest(sums);
  } catch (const std::exception &error) { // others are in the midst of it
    options.collectives->abandon(error.what());
    hasTold = true;
    throw;
  }
  device->wait(reduction->sent());
  for (size_t slot = 0; slot < table.size(); ++slot) {
    if (!reduction->isForThis(slot)) {
      tape.gradient(GradientTape::ValueId(slot)) = Tensor();
    } else if (newest[slot].item) {
      if (sums[slot].storage() != newest[slot].tensor.storage())
        copyInto(sums[slot], newest[slot].tensor);
      wait(newest[slot].tensor);
      written(newest[slot]);
    } else if (const Tensor &sum = tape.gradient(GradientTape::ValueId(slot))) {
      wait(sum);
    }
  }
}

int64_t Session::State::addOverRanks(StepResult &result) {
  if (!isShared())
    return waiting;
  if (!isPipelined())
    sendGradients();
  StepWord own{.isOverflowed = isOverflowed, .batches = waiting, .lossSum = lossSum, .losses = batchLosses};
  if (isPipelined()) {
    std::vector<StepWord> words = meetOnce(own);
    for (const StepWord &word : words)
      isOverflowed |= word.isOverflowed;
    result.loss = meanLoss(words);
    return waiting;
  }
  int64_t batches = 0;
  double losses = 0;
  if (precision)
    own.precision = precision->word();
  std::vector<StepWord> words = meetOnce(own);
  takePrecisionWords(words);
  for (const StepWord &word : words) {
    batches += word.batches;
    losses += word.lossSum;
    isOverflowed |= word.isOverflowed;
  }
  result.loss = losses / double(batches);
  return batches;
}

/// Throws where a rank would update by other learning rates than rank 0: parameters would go apart unseen.
static void requireSameRates(const std::vector<StepWord> &words, int64_t step) {
  for (size_t rank = 1; rank < words.size(); ++rank)
    for (size_t group = 0; group < words[0].rates.size(); ++group)
      if (group >= words[rank].rates.size() || words[rank].rates[group] != words[0].rates[group])
        throw Error(ErrorCode::RankFailed, "step " + std::to_string(step) + ": learning rates differ: rank 0 has " +
                                               Json(words[0].rates).dump() + ", and rank " + std::to_string(rank) +
                                               " has " + Json(words[rank].rates).dump() +
                                               "; every rank takes a step with the same ones");
}

void Session::State::agreeToUpdate(const StepResult &result, const LearningRates &rates) {
  if (!isShared())
    return;
  StepWord own{.gradNorm = result.gradNorm};
  for (size_t group = 0; group < rates.size(); ++group)
    own.rates.push_back(rates[group]);
  std::vector<StepWord> words = meetOnce(own);
  requireSameRates(words, step + 1);
  for (size_t rank = 1; rank < words.size(); ++rank)
    if (std::bit_cast<uint64_t>(words[rank].gradNorm) != std::bit_cast<uint64_t>(words[0].gradNorm) &&
        !(std::isnan(words[rank].gradNorm) && std::isnan(words[0].gradNorm)))
      throw Error(ErrorCode::RankFailed,
                  "step " + std::to_string(step + 1) + ": the norm of the summed gradients is " +
                      std::to_string(words[0].gradNorm) + " on rank 0 and " + std::to_string(words[rank].gradNorm) +
                      " on rank " + std::to_string(rank) + ", so that they would go apart; a hook may have changed "
                      "gradients of one rank, or its device computes otherwise");
}

} // namespace segue::inline runtime
