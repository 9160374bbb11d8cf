//===- WatermarkEstimate.cpp - a step by watermarks, in virtual time ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/WatermarkEstimate.h"
#include "../Plan/LinkTimes.h"
#include "segue/runtime/Services/ActivationStagehand.h"
#include <algorithm>
#include <deque>
#include <utility>

namespace segue::inline runtime {

namespace {

/// One step: the clock of the compute queue, the ends of the link's two
/// directions, and what is away.
class WatermarkRun {
public:
  WatermarkRun(const StepProfile &profile, const ActivationStagehandConfig &config)
      : profile_(profile), policy_(config), done_(profile.gaps.size()), stays_(profile.gaps.size()) {}

  WatermarkOutcome run();

private:
  using Ids = std::vector<std::string>;

  const ResidencyGap &gapOf(const std::string &id) const { return profile_.gaps[std::stoul(id)]; }
  int64_t used() const { return int64_t(profile_.events[event_].liveBytes) - away_; }
  bool isSaved(size_t gap) const { return profile_.gaps[gap].outBytes > 0 && profile_.gaps[gap].resident == noIndex; }
  bool isOf(size_t gap, uint32_t event) const { return event == event_ && isSaved(gap); }

  void deliver();
  void waitFor(const std::string &id);
  void restore(const Ids &ids);
  void save(size_t gap);
  void need(size_t gap);

  const StepProfile &profile_;
  ActivationStagehand policy_;
  uint32_t event_ = 0;
  double now_ = 0, outFree_ = 0, inFree_ = 0;
  /// Bytes of the profile's curve that are not on the device.
  int64_t away_ = 0;
  /// When the copy of each record under way ends.
  std::vector<double> done_;
  /// Rescued: it stays although its copy out goes on.
  std::vector<bool> stays_;
  /// Records on their way out, and back, in order.
  std::deque<std::string> leaving_, coming_;
  Ids released_;
};

} // namespace

/// The policy hears of the copies that have ended by now, as it would before its
/// next call.
void WatermarkRun::deliver() {
  auto ended = [&](const std::deque<std::string> &queue) {
    return !queue.empty() && done_[std::stoul(queue.front())] <= now_;
  };
  while (ended(leaving_) || ended(coming_)) {
    bool out = ended(leaving_) &&
               (!ended(coming_) || done_[std::stoul(leaving_.front())] <= done_[std::stoul(coming_.front())]);
    std::deque<std::string> &queue = out ? leaving_ : coming_;
    std::string id = std::move(queue.front());
    queue.pop_front();
    if (out && !stays_[std::stoul(id)])
      away_ += int64_t(gapOf(id).bytes);
    restore(policy_.transferDone(id, used()).issued);
  }
}

/// Compute stands still until the copy of `id` has ended. The policy knows.
void WatermarkRun::waitFor(const std::string &id) {
  now_ = std::max(now_, done_[std::stoul(id)]);
  if (std::erase(leaving_, id) && !stays_[std::stoul(id)])
    away_ += int64_t(gapOf(id).bytes);
  std::erase(coming_, id);
}

void WatermarkRun::restore(const Ids &ids) {
  for (const std::string &id : ids) {
    inFree_ = std::max(now_, inFree_) + inSeconds(gapOf(id), profile_.link);
    done_[std::stoul(id)] = inFree_;
    coming_.push_back(id);
    away_ -= int64_t(gapOf(id).bytes);
  }
}

void WatermarkRun::save(size_t index) {
  const ResidencyGap &gap = profile_.gaps[index];
  std::string id = std::to_string(index);
  SaveDecision decision = policy_.save({.id = id, .bytes = int64_t(gap.outBytes), .usedBytes = used()});
  for (const std::string &other : decision.finalized)
    waitFor(other);
  if (decision.kind != SaveDecision::Kind::Spill)
    return;
  outFree_ = std::max(now_, outFree_) + outSeconds(gap, profile_.link);
  done_[index] = outFree_;
  if (decision.buffer.poolClass) {
    leaving_.push_back(id);
  } else {
    now_ = outFree_;
    away_ += int64_t(gap.bytes);
  }
}

void WatermarkRun::need(size_t index) {
  std::string id = std::to_string(index);
  double before = now_;
  NeedDecision decision = policy_.need(id, used());
  for (const std::string &other : decision.finalized)
    waitFor(other);
  switch (decision.kind) {
  case NeedDecision::Kind::Wait:
    waitFor(id);
    break;
  case NeedDecision::Kind::Restore:
    restore({id});
    waitFor(id);
    break;
  case NeedDecision::Kind::Rescue:
    stays_[index] = true;
    break;
  case NeedDecision::Kind::Use:
  case NeedDecision::Kind::Recompute:
    break;
  }
  policy_.addStall((now_ - before) * 1e3);
  restore(decision.issued);
  released_.push_back(id);
}

WatermarkOutcome WatermarkRun::run() {
  const auto &gaps = profile_.gaps;
  WatermarkOutcome outcome;
  double computed = 0;
  int64_t peak = 0;
  policy_.stepBegin(0);
  for (event_ = 0; event_ < profile_.events.size(); ++event_) {
    const StepEvent &event = profile_.events[event_];
    // What the event before needed has been read.
    Ids released = std::exchange(released_, {});
    for (const std::string &id : released)
      restore(policy_.release(id, used()));
    deliver();
    if (event.kind == StepEvent::Kind::Phase && event.phase == Phase::Backward) {
      Ids order;
      for (size_t gap = 0; gap < gaps.size(); ++gap)
        if (isSaved(gap) && gaps[gap].leaves < event_ && gaps[gap].needed > event_)
          order.push_back(std::to_string(gap));
      std::ranges::stable_sort(order, {}, [&](const std::string &id) { return gapOf(id).needed; });
      restore(policy_.backwardBegin(order, used()));
    }
    for (size_t gap = 0; gap < gaps.size(); ++gap)
      if (isOf(gap, gaps[gap].needed))
        need(gap);
    for (size_t gap = 0; gap < gaps.size(); ++gap)
      if (isOf(gap, gaps[gap].leaves))
        save(gap);
    outcome.curve.push_back(uint64_t(std::max<int64_t>(int64_t(event.peakBytes) - away_, 0)));
    peak = std::max(peak, int64_t(outcome.curve.back()));
    now_ += event.seconds;
    computed += event.seconds;
  }
  for (const std::string &id : std::exchange(released_, {}))
    policy_.release(id, used());
  policy_.stepEnd();
  outcome.peakBytes = uint64_t(peak);
  outcome.seconds = std::max({now_, outFree_, inFree_});
  outcome.stallSeconds = now_ - computed;
  outcome.telemetry = policy_.telemetry();
  return outcome;
}

WatermarkOutcome estimateWatermarks(const StepProfile &profile, const ActivationStagehandConfig &config) {
  return WatermarkRun(profile, config).run();
}

} // namespace segue::inline runtime
