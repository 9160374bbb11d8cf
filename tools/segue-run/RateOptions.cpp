//===- RateOptions.cpp - learning rates on the command line ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RateOptions.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace segue::tool {

namespace {
/// What a key may be. Steps are whole numbers.
struct RateKey {
  std::string_view name;
  double low, high;
  bool isWhole = false;
};
struct RateKind {
  std::string_view name;
  std::vector<RateKey> keys;
  bool hasWarmup = false;
};
} // namespace

/// Steps that --steps may have, too: a number of that size is exact as a double.
static constexpr double mostRateSteps = 1e12;

static const std::vector<RateKind> &rateKinds() {
  static const RateKey steps{"steps", 1, mostRateSteps, true}, last{"final", 0, 1e6};
  static const std::vector<RateKind> all = {
      {"constant", {}, true},
      {"cosine", {steps, last}, true},
      {"linear", {steps, last}, true},
      {"one-cycle", {steps, {"rise", 0, 1}, {"start", 0, 1}, {"final", 0, 1}}},
      {"step-decay", {{"every", 1, mostRateSteps, true}, {"at", 1, mostRateSteps, true}, {"factor", 0, 1e6}}},
  };
  return all;
}

template <typename Entries> static const auto &findNamed(const Entries &entries, const std::string &name, const std::string &what) {
  std::vector<std::string_view> names;
  for (const auto &entry : entries) {
    if (entry.name == name)
      return entry;
    names.push_back(entry.name);
  }
  throw Error(ErrorCode::InvalidArgument, "there is no " + what + " \"" + name + "\"" + nearestHint(name, names));
}

static double rateValue(const RateKey &key, const std::string &text) {
  double number = 0;
  const char *end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && rest == end && number >= key.low && number <= key.high &&
      (!key.isWhole || number == std::floor(number)))
    return number;
  char low[32], high[32];
  throw Error(ErrorCode::InvalidArgument,
              std::string(key.name) + ": " + text.substr(0, 40) + " found, a " + (key.isWhole ? "whole " : "") + "number from " +
                  std::string(low, std::to_chars(low, low + sizeof low, key.low).ptr) + " to " +
                  std::string(high, std::to_chars(high, high + sizeof high, key.high).ptr) + " allowed");
}

RateForm::RateForm(const std::string &text) {
  size_t colon = std::min(text.find(':'), text.size());
  kind_ = text.empty() ? "constant" : text.substr(0, colon);
  const RateKind &kind = findNamed(rateKinds(), kind_, "schedule");
  for (size_t begin = colon + 1; begin <= text.size() && colon < text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    size_t equals = std::min(part.find('='), part.size());
    const RateKey &key = findNamed(kind.keys, part.substr(0, equals), "key of " + kind_);
    std::vector<double> &values = values_[std::string(key.name)];
    if (!values.empty() && key.name != "at")
      throw Error(ErrorCode::InvalidArgument, std::string(key.name) + " is given twice");
    values.push_back(rateValue(key, part.substr(std::min(equals + 1, part.size()))));
    begin = end + 1;
  }
  if (kind_ == "step-decay" && values_.contains("every") == values_.contains("at"))
    throw Error(ErrorCode::InvalidArgument, "step-decay falls every so many steps, or at some; write step-decay:every=1000, or "
                                            "step-decay:at=1000,at=5000");
  of(1, 1, 0); // what only the formula refuses
}

std::string RateForm::grammar() {
  std::string names;
  for (const RateKind &kind : rateKinds())
    names.append(names.empty() ? "{" : ",").append(kind.name);
  return names + "}[:key=value,...]";
}

void RateForm::checkWarmup(int64_t warmup) const {
  if (warmup && !findNamed(rateKinds(), kind_, "schedule").hasWarmup)
    throw Error(ErrorCode::InvalidArgument,
                "--warmup goes with constant, cosine and linear" +
                    std::string(kind_ == "one-cycle" ? "; one-cycle rises within its share of all steps, as one-cycle:rise=0.1" : ""));
}

double RateForm::get(const std::string &key, double otherwise) const {
  auto it = values_.find(key);
  return it == values_.end() ? otherwise : it->second[0];
}

bool RateForm::needsSteps() const { return kind_ != "constant" && kind_ != "step-decay" && !values_.contains("steps"); }

RateSchedule RateForm::of(double rate, int64_t steps, int64_t warmup) const {
  int64_t all = int64_t(get("steps", double(steps)));
  if (kind_ == "cosine")
    return warmupCosine(rate, all, warmup, get("final", 0));
  if (kind_ == "linear")
    return warmupLinear(rate, all, warmup, get("final", 0));
  if (kind_ == "one-cycle")
    return oneCycle(rate, all, get("rise", 0.3), get("start", 1 / 25.), get("final", 1 / 25e4));
  if (kind_ == "constant")
    return warmupLinear(rate, all, warmup, rate); // a straight line that neither rises nor falls
  if (auto it = values_.find("at"); it != values_.end())
    return stepDecay(rate, std::vector<int64_t>(it->second.begin(), it->second.end()), get("factor", 0.1));
  return stepDecay(rate, int64_t(get("every", 1)), get("factor", 0.1));
}

std::vector<RateSchedule> schedulesOf(const TrainOptions &options, int64_t begin) {
  RateForm form(options.schedule);
  form.checkWarmup(options.warmup);
  if (form.needsSteps() && !options.until && begin)
    throw Error(ErrorCode::InvalidArgument,
                "--lr-schedule " + options.schedule + " goes by the steps of the whole training, of which " + std::to_string(begin) +
                    " are done; say how many there are, by --until or as " + options.schedule +
                    (options.schedule.find(':') == std::string::npos ? ":" : ",") + "steps=" + std::to_string(begin + options.steps));
  std::vector<RateSchedule> schedules;
  for (double rate : options.lr)
    schedules.push_back(form.of(rate, options.until ? options.until : options.steps, options.warmup));
  return schedules;
}

} // namespace segue::tool
