//===- HeldOut.cpp - the loss on bytes that are not learnt ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "HeldOut.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include <algorithm>
#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

static void checkLosses(const std::vector<Module> &modules) {
  for (const Module &module : modules)
    if (bool isLast = &module == &modules.back(); std::ranges::any_of(module.outputs(), isLoss) != isLast)
      throw Error(ErrorCode::InvalidArgument,
                  "--eval-data: module \"" + module.name() +
                      (isLast ? "\", the last, has no float scalar output called \"loss\" to take the mean of"
                              : "\" has a loss, and an evaluation gives that of the last module alone; leave --eval-data out"));
}

static void warnOfDropout(const std::vector<Module> &modules) {
  for (const Module &module : modules)
    if (std::ranges::any_of(module.hypers(), [](const Value &hyper) { return hyper.name == "seed"; }))
      std::fprintf(stderr, "segue-run: warning: module \"%s\" draws random numbers, as dropout does, and evaluations of it do so, too\n",
                   module.name().c_str());
}

static ByteWindows windowsOf(const Session &session, const TrainOptions &options) {
  auto text = std::make_shared<const TrainingText>(options.evalData);
  try {
    return {session, std::move(text), options.tokens, options.targets};
  } catch (const Error &error) {
    throw error.within("--eval-data " + options.evalData);
  }
}

HeldOut::HeldOut(const Session &session, const TrainOptions &options, TensorMap fixed, std::shared_ptr<Collectives> ranks)
    : fixed_(std::move(fixed)), windows_(windowsOf(session, options)),
      sharers_(parseSharding(options.strategy) == Sharding::Modules ? nullptr : ranks), mayStop_(!ranks) {
  checkLosses(session.modules());
  if (!windows_.batchesInOrder())
    throw Error(ErrorCode::InvalidArgument, "--eval-data " + options.evalData + " has no whole batch, which takes " +
                                                std::to_string(windows_.tokensPerBatch() + 1) + " bytes");
  if (!ranks || ranks->rank() == 0)
    warnOfDropout(session.modules());
}

std::optional<double> HeldOut::meanLoss(Session &session, const std::function<bool()> &isOver) const {
  int64_t count = windows_.batchesInOrder();
  int64_t ranks = sharers_ ? sharers_->ranks() : 1, rank = sharers_ ? sharers_->rank() : 0;
  std::vector<uint64_t> losses; // bits: JSON has no NaN
  for (int64_t first = 0; first < count; first += ranks) {
    if (mayStop_ && isOver())
      return std::nullopt;
    // Where ranks gather parameters all evaluate equally often: who has no batch left takes the last, which does not count.
    TensorMap batch = fixed_;
    windows_.fillInOrder(batch, std::min(first + rank, count - 1));
    losses.push_back(std::bit_cast<uint64_t>(session.evaluate(batch).at("loss").item()));
  }
  std::vector<std::vector<uint64_t>> ofRanks{losses};
  if (sharers_) {
    ofRanks.clear();
    for (const std::string &told : sharers_->exchange("losses of held-out batches", Json(losses).dump()))
      ofRanks.push_back(Json::parse(told).get<std::vector<uint64_t>>());
  }
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += std::bit_cast<double>(ofRanks[size_t(i % ranks)][size_t(i / ranks)]);
  return sum / double(count);
}

} // namespace segue::tool
