//===- Meetings.cpp - a step that several ranks take together -------------===//
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

#include "../../Hash.h"
#include "../../Services/Actors/PrecisionActor.h"
#include "../GradientSum.h"
#include "RankWords.h"
#include "SharedSession.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

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

void SharedSession::beginStep() {
  hasTold_ = false;
  cause_.reset();
  meetings_ = 0;
}

void SharedSession::meetToBegin(std::span<const TensorMap> batches) {
  if (reduction_)
    reduction_->beginStep();
  gathersMore_ = false;
  StepWord own{.wantsToAgree = !hasAgreed_, .batches = int64_t(batches.size())};
  if (isPipelined() && s.device->hasBytes())
    own.batchHash = hashOfBatches(batches);
  if (s.precision)
    own.precision = s.precision->word();
  std::vector<StepWord> words = meetOnce(own);
  takePrecisionWords(words);
  requireSameBatches(words);
  for (size_t rank = 1; rank < words.size() && isGathered(); ++rank)
    if (words[rank].batches != words[0].batches) {
      hasTold_ = true; // every rank finds it
      throw Error(ErrorCode::RankFailed, "step " + std::to_string(s.step + 1) + ": rank 0 has " +
                                             std::to_string(words[0].batches) + " batches, and " + rankText(rank) +
                                             " " + std::to_string(words[rank].batches) +
                                             "; ranks that gather parameters take equally many (zero3)");
    }
  bool agrees = std::ranges::any_of(words, &StepWord::wantsToAgree);
  if (agrees)
    agree();
  if (agrees || batches.size() > leftForBatches_)
    leaveHostToMessages(batches);
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

void SharedSession::requireWholeOnAll() {
  Collectives &ranks = *group_;
  bool isWhole = s.settlesWhole();
  std::string number = std::to_string(s.step + 1);
  std::vector<std::string> told = ranks.exchange("step " + number + ", who is whole", s.torn);
  if (!isWhole) {
    Error error = tornError(s.torn);
    ranks.abandon(error.what());
    throw error;
  }
  for (size_t rank = 0; rank < told.size(); ++rank)
    if (!told[rank].empty()) {
      cause_.emplace(ErrorCode::RankFailed, rankText(rank) + " cannot take step " + number + ": " + told[rank] +
                                               "; its parameters are between two steps: load the last checkpoint on "
                                               "every rank");
      throw *cause_;
    }
}

std::vector<StepWord> SharedSession::meet(const StepWord &own) {
  Collectives &ranks = *group_;
  std::vector<StepWord> words;
  for (const std::string &text : ranks.exchange(
           "step " + std::to_string(s.step + 1) + ", " + std::string(meetingsOfStep()[meetings_]), textOf(own)))
    words.push_back(wordOf(text));
  if (std::ranges::any_of(words, &StepWord::hasFailed))
    requireWholeOnAll();
  // Who has failed by itself is named before who could not go on for that.
  for (size_t i = 0; i < 2 * words.size() && (!own.hasFailed || own.isEcho); ++i)
    if (size_t rank = i % words.size();
        words[rank].hasFailed && words[rank].isEcho == (i >= words.size()) && rank != size_t(ranks.rank()))
      throw Error(ErrorCode::RankFailed, rankText(rank) + " cannot take step " + std::to_string(s.step + 1) + ": " +
                                             words[rank].why + "; parameters and optimizer state are those of step " +
                                             std::to_string(s.step) + " on every rank");
  return words;
}

/// Returns what the meetings of a step are about, in their order.
std::span<const std::string_view> SharedSession::meetingsOfStep() const {
  static constexpr std::string_view all[] = {"begin", "gradients", "update"};
  static constexpr std::string_view withNorm[] = {"begin", "gradients", "norm", "update"};
  static constexpr std::string_view withReady[] = {"begin", "ready", "gradients", "norm", "update"};
  if (isGathered() || isPipelined())
    return withReady;
  return sharesGradients() ? std::span<const std::string_view>(withNorm) : std::span<const std::string_view>(all);
}

void SharedSession::takePrecisionWords(const std::vector<StepWord> &words) {
  if (!s.precision)
    return;
  std::vector<std::string> told;
  for (const StepWord &word : words)
    told.push_back(word.precision);
  s.precision->takeWords(told);
}

void SharedSession::throwCause() {
  if (cause_)
    throw *std::exchange(cause_, std::nullopt);
}

void SharedSession::tellFailure(const std::exception &error) noexcept {
  if (hasTold_ || meetings_ >= meetingsOfStep().size())
    return;
  hasTold_ = true;
  auto *known = dynamic_cast<const Error *>(&error);
  bool isEcho = known && known->details<NotSent>();
  try {
    bool isWhole = s.settlesWhole();
    std::string why = isWhole ? std::string(error.what()) : tornError(s.torn).what();
    // A transport that has failed reaches nobody. In the first step of a kind nobody knows the rest of it, and who failed
    // by itself ends the ranks: who could not go on for that hears in a meeting why.
    bool hearsWhy = isEcho && gathersMore_ && !knownGatherings();
    if ((known && known->code() == ErrorCode::RankFailed && !isEcho) ||
        (gathersMore_ && !hearsWhy && !(isWhole && gatherRest())))
      group_->abandon(why);
    else {
      if (meetingsOfStep()[meetings_] == "gradients" && s.device->hasBytes())
        reduction_->sendNothing(s.device);
      meet({.hasFailed = true, .why = std::move(why), .isEcho = isEcho});
    }
  } catch (const Error &told) { // the others are told by their own calls
    if (isEcho)
      cause_ = told;
  } catch (const std::exception &) {
  }
}

std::vector<StepWord> SharedSession::meetOnce(const StepWord &own) {
  hasTold_ = true; // what fails in a meeting fails on every rank
  std::vector<StepWord> words = meet(own);
  hasTold_ = false;
  ++meetings_;
  return words;
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

EventSink *SharedSession::beginSending() {
  // Which backward is the last is known where a step's batches were given at once.
  // Beside parameters that are gathered all send at the same places among them, or behind.
  if (isPipelined() || sendsBehind_ || s.waiting + 1 != int64_t(s.announced.size()))
    return nullptr;
  reduction_->beginBackward(s.modulesNow(), s.tape, s.options.events, s.mayAddInBackward());
  return &*reduction_;
}

void SharedSession::sendingEnded() {
  reduction_->putBack();
  reduction_->endBackward();
}

void SharedSession::drop() {
  if (reduction_)
    reduction_->endBackward();
  batchAtHand_ = 0;
  batchLosses_.clear();
}

uint64_t SharedSession::batchNumber() const {
  if (isPipelined()) // every rank has the same batches
    return uint64_t(batchAtHand_);
  return uint64_t(s.waiting) * uint64_t(group_->ranks()) + uint64_t(rank());
}

void SharedSession::sendGradients() {
  std::vector<Tensor> sums(s.table.size());
  std::vector<SessionState::NewestGradient> newest(s.table.size());
  for (const GradientReduction::Message &message : reduction_->messages())
    for (size_t slot : message.slots) {
      if (reduction_->wasSent(slot))
        continue;
      Tensor &sum = s.tape.gradient(GradientTape::ValueId(slot));
      if (!sum)
        sum = Tensor::zeros(s.device, TensorDesc(s.table.infos()[slot].desc.shape, ElementType::f32));
      newest[slot] = s.newestOf(sum);
      const Tensor &tensor = newest[slot].tensor;
      if (!newest[slot].item) {
        newest[slot] = {};
        if (s.isSeenElsewhere(slot) || sum.element() != ElementType::f32 || !sum.desc().isDense())
          ownSum(sum);
        sums[slot] = sum;
      } else if (tensor.element() != ElementType::f32 || !tensor.desc().isDense()) { // an item keeps its type and layout
        sums[slot] = Tensor::onHost(s.device, sum.shape(), ElementType::f32);
        copyInto(tensor, sums[slot]);
      } else {
        sums[slot] = tensor;
      }
      wait(sums[slot]); // what has failed here is told, and not sent
    }
  try {
    reduction_->sendRest(sums);
  } catch (const std::exception &error) { // others are in the midst of it
    group_->abandon(error.what());
    hasTold_ = true;
    throw;
  }
  s.device->wait(reduction_->sent());
  for (size_t slot = 0; slot < s.table.size(); ++slot) {
    if (!reduction_->isForThis(slot)) {
      s.tape.gradient(GradientTape::ValueId(slot)) = Tensor();
    } else if (newest[slot].item) {
      if (sums[slot].storage() != newest[slot].tensor.storage())
        copyInto(sums[slot], newest[slot].tensor);
      wait(newest[slot].tensor);
      s.written(newest[slot]);
    } else if (const Tensor &sum = s.tape.gradient(GradientTape::ValueId(slot))) {
      wait(sum);
    }
  }
}

int64_t SharedSession::addUp(StepResult &result) {
  if (!isPipelined())
    sendGradients();
  StepWord own{.isOverflowed = s.isOverflowed, .batches = s.waiting, .lossSum = s.lossSum, .losses = batchLosses_};
  if (s.precision)
    own.precision = s.precision->word();
  if (isPipelined()) {
    std::vector<StepWord> words = meetOnce(own);
    takePrecisionWords(words);
    for (const StepWord &word : words)
      s.isOverflowed |= word.isOverflowed;
    result.loss = meanLoss(words);
    return s.waiting;
  }
  int64_t batches = 0;
  double losses = 0;
  std::vector<StepWord> words = meetOnce(own);
  takePrecisionWords(words);
  for (const StepWord &word : words) {
    batches += word.batches;
    losses += word.lossSum;
    s.isOverflowed |= word.isOverflowed;
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

void SharedSession::agreeToUpdate(const StepResult &result, const LearningRates &rates) {
  StepWord own{.gradNorm = result.gradNorm};
  for (size_t group = 0; group < rates.size(); ++group)
    own.rates.push_back(rates[group]);
  std::vector<StepWord> words = meetOnce(own);
  requireSameRates(words, s.step + 1);
  for (size_t rank = 1; rank < words.size(); ++rank)
    if (std::bit_cast<uint64_t>(words[rank].gradNorm) != std::bit_cast<uint64_t>(words[0].gradNorm) &&
        !(std::isnan(words[rank].gradNorm) && std::isnan(words[0].gradNorm)))
      throw Error(ErrorCode::RankFailed,
                  "step " + std::to_string(s.step + 1) + ": the norm of the summed gradients is " +
                      std::to_string(words[0].gradNorm) + " on rank 0 and " + std::to_string(words[rank].gradNorm) +
                      " on rank " + std::to_string(rank) + ", so that they would go apart; a hook may have changed "
                      "gradients of one rank, or its device computes otherwise");
}

} // namespace segue::inline runtime
