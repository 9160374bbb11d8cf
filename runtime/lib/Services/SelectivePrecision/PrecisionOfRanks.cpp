//===- PrecisionOfRanks.cpp - ranks choose the same forms -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each rank has a policy of its own, which hears what all have found, in the order of
// ranks, and so decides as that of one rank with all batches. What some batches are to show
// is measured where that one would measure it: by the first rank before training, on the
// first batches, and by the last rank in a step, on its last batch. The others give it what
// it has not of its parameters. In a pipeline, where all have the same batches, each
// measures the blocks of its stage, and all hear of all.
//
//===----------------------------------------------------------------------===//

#include "SelectivePrecisionActor.h"
#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/JsonNumbers.h"

namespace segue::inline runtime {

static Json jsonOf(const std::optional<double> &number) { return number ? numberOrText(*number) : Json(); }

//===----------------------------------------------------------------------===//
// Before the first step
//===----------------------------------------------------------------------===//

Json SelectivePrecisionActor::agreed() const {
  Json keys = section_;
  for (const char *ofOneRank :
       {"telemetry_enabled", "telemetry_file", "log_decisions", "calibration_cache", "fp8_slab_path"})
    keys.erase(ofOneRank);
  Json units = Json::object();
  for (const UnitPlan &plan : plan_.units) {
    Json &forms = units[plan.unit.name] = Json::array();
    for (Precision form : plan.unit.forms)
      forms.push_back(name(form));
  }
  return {{"keys", std::move(keys)}, {"units", std::move(units)}};
}

std::string SelectivePrecisionActor::stateForRanks() const {
  Json forms = Json::array();
  for (Precision form : uncalibrated_)
    forms.push_back(name(form));
  return Json{{"state", saveState()}, {"uncalibrated", std::move(forms)}}.dump();
}

void SelectivePrecisionActor::takeState(const std::string &text) {
  Json told = Json::parse(text);
  prepareState(told["state"].get<std::string>())();
  uncalibrated_.clear();
  for (const Json &form : told["uncalibrated"])
    uncalibrated_.push_back(fromName<Precision>(form.get<std::string>()).value());
  if (Json state = policy().saveState(); state["step"] == -1)
    initial_ = std::move(state);
}

//===----------------------------------------------------------------------===//
// In each step
//===----------------------------------------------------------------------===//

void SelectivePrecisionActor::failed(const FailedForm &form) {
  takeFailed(form);
  if (host_->isShared())
    failedForms_.push_back(form);
}

void SelectivePrecisionActor::takeFailed(const FailedForm &form) {
  inForce_[form.unit] = Precision::Bf16;
  if (form.isRefused)
    policy_->tell(precision_calls::refuse, nameOf(form.unit), form.step);
  else
    policy_->tell(precision_calls::postpone, nameOf(form.unit), form.step);
}

std::string SelectivePrecisionActor::word() {
  if (!policy_ || !context_.device->hasBytes())
    return "{}";
  Json failed = Json::array(), norms = Json::array(), lost;
  for (const FailedForm &form : failedForms_)
    failed.push_back({form.unit, form.step, form.isRefused});
  for (const Collection &collection : collections_) {
    if (collection.empty() && !host_->isPipelined()) // there the other stages have something for this batch
      continue;
    Json &of = norms.emplace_back(Json::array());
    for (const std::optional<double> &norm : normsOf(collection))
      of.push_back(jsonOf(norm));
  }
  if (lostLoss_)
    lost = {lostLoss_->first, numberOrText(lostLoss_->second)};
  return Json{{"failed", std::move(failed)}, {"norms", std::move(norms)}, {"lost", std::move(lost)}}.dump();
}

void SelectivePrecisionActor::takeWords(std::span<const std::string> words) {
  if (!policy_ || !context_.device->hasBytes())
    return;
  std::vector<Json> told;
  for (const std::string &word : words)
    told.push_back(Json::parse(word));
  std::set<FailedForm> known(failedForms_.begin(), failedForms_.end());
  for (const Json &word : told)
    for (const Json &failed : word["failed"])
      if (FailedForm form{failed[0].get<size_t>(), failed[1].get<int64_t>(), failed[2].get<bool>()};
          known.insert(form).second)
        takeFailed(form);
  // A rank that has the batches of all stops at the first loss that is none.
  auto lost = std::ranges::find_if(told, [](const Json &word) { return !word["lost"].is_null(); });
  if (lost != told.end())
    policy_->tell(precision_calls::loss, (*lost)["lost"][0].get<int64_t>(), AnyNumber{numberOf((*lost)["lost"][1]).value()});
  for (const Norms &norms : normsOfAll(told))
    tellNorms(norms);
  failedForms_.clear();
  lostLoss_.reset();
  collections_.clear();
}

std::vector<SelectivePrecisionActor::Norms> SelectivePrecisionActor::normsOfAll(const std::vector<Json> &words) const {
  std::vector<Norms> all;
  for (const Json &word : words) {
    if (host_->isPipelined()) // each has those of its units for the same batches
      all.resize(std::max(all.size(), word["norms"].size()), Norms(plan_.units.size()));
    for (size_t batch = 0; batch < word["norms"].size(); ++batch) {
      const Json &told = word["norms"][batch];
      Norms &norms = host_->isPipelined() ? all[batch] : all.emplace_back(told.size());
      for (size_t unit = 0; unit < told.size(); ++unit)
        if (std::optional<double> norm = numberOf(told[unit]))
          norms[unit] = norm;
    }
  }
  std::erase_if(all, [](const Norms &norms) { return std::ranges::none_of(norms, &std::optional<double>::has_value); });
  return all;
}

//===----------------------------------------------------------------------===//
// What was measured
//===----------------------------------------------------------------------===//

SelectivePrecisionActor::Measured SelectivePrecisionActor::tellMeasured(Measured own, const std::exception_ptr &failure,
                                                                        int measuring) {
  struct Failure {
    bool isEcho = false, isOfMemory = false;
    std::string why;
  };
  std::optional<Failure> failed;
  try {
    if (failure)
      std::rethrow_exception(failure);
  } catch (const std::exception &error) {
    auto *known = dynamic_cast<const Error *>(&error);
    failed = {known && known->details<NotSent>(), known && known->code() == ErrorCode::DeviceOom, error.what()};
  }
  if (failed && !host_->isShared())
    std::rethrow_exception(failure);
  if (!host_->isShared())
    return own;
  Json word = {{"errors", Json::array()}, {"samples", own.samples}};
  for (const auto &[which, error] : own.errors)
    word["errors"].push_back({which.first, name(which.second), numberOrText(error)});
  if (failed)
    word["failure"] = {failed->isEcho, failed->isOfMemory, failed->why};
  std::vector<Json> told;
  for (const std::string &text : host_->exchange("errors of forms", word.dump()))
    told.push_back(Json::parse(text));
  // One cause on all ranks: what is no lack of memory first; last what failed for the want of another rank's values.
  auto weight = [&](const Json &each) {
    if (!each.contains("failure"))
      return 0;
    return each["failure"][0].get<bool>() ? 1 : each["failure"][1].get<bool>() ? 2 : 3;
  };
  auto cause = std::ranges::max_element(told, {}, weight);
  if (weight(*cause) && cause - told.begin() == host_->rank())
    std::rethrow_exception(failure);
  if (weight(*cause))
    throw Error((*cause)["failure"][1].get<bool>() ? ErrorCode::DeviceOom : ErrorCode::RankFailed,
                "rank " + std::to_string(cause - told.begin()) + " cannot play blocks: " +
                    (*cause)["failure"][2].get<std::string>());
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (!host_->isPipelined() && int(rank) != measuring)
      continue;
    for (const Json &each : told[rank]["errors"])
      own.errors[{each[0].get<size_t>(), *fromName<Precision>(each[1].get<std::string>())}] = numberOf(each[2]).value();
    own.samples = told[rank]["samples"];
  }
  return own;
}

} // namespace segue::inline runtime
