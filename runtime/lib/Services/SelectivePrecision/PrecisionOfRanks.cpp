//===- PrecisionOfRanks.cpp - ranks choose the same forms -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each rank has a policy of its own, which hears what all have found, in the order of
// ranks, and so decides as that of one rank with all batches. What is measured on some
// batches counts where that one would measure it: the first rank's calibration, which takes
// the first batches, and what the last rank finds in a step, on its last batch.
//
//===----------------------------------------------------------------------===//

#include "SelectivePrecisionActor.h"
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

void SelectivePrecisionActor::takeState(const std::string &text) {
  prepareState(text)();
  uncalibrated_.clear();
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
    if (collection.empty())
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
  for (const Json &word : told)
    for (const Json &of : word["norms"]) {
      Norms norms;
      for (const Json &norm : of)
        norms.push_back(numberOf(norm));
      tellNorms(norms);
    }
  failedForms_.clear();
  lostLoss_.reset();
  collections_.clear();
}

precision_calls::Calibration
SelectivePrecisionActor::errorsOfLastRank(const precision_calls::Calibration &own) const {
  if (!host_->isShared())
    return own;
  Json errors = Json::array();
  for (const precision_calls::UnitError &each : own.errors)
    errors.push_back({each.unit, name(each.form), numberOrText(each.error)});
  precision_calls::Calibration last;
  try {
    for (const Json &each : Json::parse(host_->exchange("errors of forms", errors.dump()).back()))
      last.errors.push_back({each[0], *fromName<Precision>(each[1].get<std::string>()), numberOf(each[2]).value()});
  } catch (const Error &) { // the step has been taken: the next one says that ranks cannot meet any more
  }
  return last;
}

} // namespace segue::inline runtime
