//===- ResidencyPlanner.cpp - what leaves when, for a budget --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Plan/ResidencyPlanner.h"
#include "LinkTimes.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>

namespace segue::inline runtime {

/// Plans between the least and the unconstrained peak. A budget may leave a
/// part in so many of the difference unused.
static constexpr uint64_t poolSteps = 64;

/// A way back is begun so much earlier than the link needs: what comes before
/// it on the link may take longer than planned.
static constexpr double returnMargin = 1.1;

/// A link may be shared, or memory be slower than it: of plans that are as fast,
/// the one is better that still is on a link slower by this factor.
static constexpr double slowLink = 4;

/// Plans that differ by less of the step's time are as fast.
static constexpr double timeGrain = 1e-3;

static void addTo(std::vector<uint64_t> &curve, uint32_t begin, uint32_t end, uint64_t bytes) {
  for (uint32_t event = begin; event < end; ++event)
    curve[event] += bytes;
}

/// To the events that a gap covers.
static void addTo(std::vector<uint64_t> &curve, const ResidencyGap &gap, uint64_t bytes) {
  if (gap.passesEnd())
    addTo(curve, 0, gap.needed, bytes);
  addTo(curve, gap.leaves, gap.passesEnd() ? uint32_t(curve.size()) : gap.needed, bytes);
}

static void checkProfile(const StepProfile &profile) {
  auto refuse = [](const std::string &what) { throw Error(ErrorCode::InvalidArgument, "step profile: " + what); };
  if (profile.events.empty())
    refuse("it has no events");
  const LinkSpeed &link = profile.link;
  if (!(link.h2dBytesPerSecond > 0) || !(link.d2hBytesPerSecond > 0) || !(link.latencySeconds >= 0))
    refuse("the link needs a positive bandwidth in both directions and a latency");
  std::vector<uint64_t> away(profile.events.size());
  for (const ResidencyGap &gap : profile.gaps) {
    bool isResident = gap.resident < profile.residents.size();
    if ((gap.passesEnd() && !isResident) || std::max(gap.leaves, gap.needed) >= profile.events.size() ||
        gap.leaves == gap.needed)
      refuse("tensor \"" + gap.tensor + "\" leaves at event " + std::to_string(gap.leaves) + " and is needed at " +
             std::to_string(gap.needed) + " of " + std::to_string(profile.events.size()));
    if (gap.with != noIndex && (gap.with >= profile.gaps.size() || profile.gaps[gap.with].resident != gap.resident))
      refuse("a gap of tensor \"" + gap.tensor + "\" goes with gap " + std::to_string(gap.with) +
             ", which is none of it");
    addTo(away, gap, gap.bytes);
  }
  for (size_t event = 0; event < away.size(); ++event)
    if (away[event] > profile.events[event].peakBytes)
      refuse("at event " + std::to_string(event) + " tensors of " + std::to_string(away[event]) +
             " bytes may be away, but only " + std::to_string(profile.events[event].peakBytes) + " are live");
}

void ResidencyPlanner::followLink() {
  double linkFree = 0, bytes = 0, busy = 0, now = 0;
  double rate = profile_.link.h2dBytesPerSecond;
  for (const StepEvent &event : profile_.events) {
    begins_.push_back(now);
    free_.push_back(now - busy + std::max(0.0, linkFree - now));
    if (event.h2dBytes) {
      linkFree = std::max(now, linkFree) + double(event.h2dBytes) / rate;
      bytes += double(event.h2dBytes);
      busy += double(event.h2dBytes) / rate;
    }
    double waited = now + event.linkWaitSeconds;
    awaited_.push_back(event.linkWaitSeconds > 0 ? bytes - std::max(0.0, linkFree - waited) * rate : 0);
    now += event.seconds;
  }
  begins_.push_back(now);
  free_.push_back(now - busy + std::max(0.0, linkFree - now));
}

ResidencyPlanner::ResidencyPlanner(StepProfile profile) : profile_(std::move(profile)) {
  checkProfile(profile_);
  const auto &events = profile_.events;
  followLink();

  // Those first that free most for the least use of the link; one that is needed
  // again within the link's round trip leaves last of all. Saved tensors use the
  // link while forward and backward compute; residents also between, where the
  // optimizer has little to hide them behind: another preference.
  bool savedFirst = false;
  auto worth = [&](uint32_t index) {
    const ResidencyGap &gap = profile_.gaps[index];
    double spare = begins_[gap.needed] - begins_[gap.leaves] + (gap.passesEnd() ? begins_.back() : 0);
    double link = outSeconds(gap, profile_.link) + inSeconds(gap, profile_.link);
    return std::tuple(spare > link, savedFirst && gap.resident == noIndex,
                      link > 0 ? double(gap.bytes) * spare / link : double(gap.bytes));
  };
  std::vector<uint32_t> byWorth(profile_.gaps.size());
  std::iota(byWorth.begin(), byWorth.end(), 0);
  std::vector<uint32_t> bySaved = byWorth;
  std::ranges::stable_sort(byWorth, std::greater(), worth);
  savedFirst = true;
  std::ranges::stable_sort(bySaved, std::greater(), worth);

  std::vector<uint64_t> least;
  for (const StepEvent &event : events)
    least.push_back(event.peakBytes);
  for (const ResidencyGap &gap : profile_.gaps)
    addTo(least, gap, -gap.bytes);
  tightest_ = uint32_t(std::ranges::max_element(least) - least.begin());
  uint64_t floor = least[tightest_];
  uint64_t ceiling = std::ranges::max_element(events, {}, &StepEvent::peakBytes)->peakBytes;
  for (uint64_t step = 0; step < poolSteps && floor + (ceiling - floor) * step / poolSteps < ceiling; ++step) {
    uint64_t target = floor + (ceiling - floor) * step / poolSteps;
    pool_.push_back(planFor(target, byWorth));
    if (bySaved != byWorth)
      pool_.push_back(planFor(target, bySaved));
  }
  pool_.push_back(planFor(ceiling, byWorth));
}

ResidencyPlan ResidencyPlanner::planFor(uint64_t target, const std::vector<uint32_t> &preferred) const {
  const auto &gaps = profile_.gaps;
  ResidencyPlan plan;
  std::vector<uint64_t> &curve = plan.curve;
  for (const StepEvent &event : profile_.events)
    curve.push_back(event.peakBytes);

  // Who leaves: at each event that is over the target, the most worth first.
  std::vector<uint32_t> chosen;
  std::vector<bool> isAway(gaps.size());
  // Gaps that are away and could not be without this one.
  std::vector<uint32_t> dependents(gaps.size());
  auto choose = [&](uint32_t index) {
    for (; index != noIndex && !isAway[index]; index = gaps[index].with) {
      isAway[index] = true;
      chosen.push_back(index);
      addTo(curve, gaps[index], -gaps[index].bytes);
      if (gaps[index].with != noIndex)
        ++dependents[gaps[index].with];
    }
  };
  for (uint32_t event = 0; event < curve.size(); ++event)
    for (size_t i = 0; curve[event] > target && i < preferred.size(); ++i)
      if (!isAway[preferred[i]] && gaps[preferred[i]].covers(event))
        choose(preferred[i]);

  // Who can stay after all: an early choice may have become needless.
  auto hasRoom = [&](const ResidencyGap &gap) {
    for (uint32_t event = 0; event < curve.size(); ++event)
      if (gap.covers(event) && curve[event] + gap.bytes > target)
        return false;
    return true;
  };
  // A second round for those that others needed.
  for (size_t i = 2 * preferred.size(); i-- > 0;) {
    uint32_t index = preferred[i % preferred.size()];
    const ResidencyGap &gap = gaps[index];
    if (!isAway[index] || dependents[index] || !hasRoom(gap))
      continue;
    isAway[index] = false;
    addTo(curve, gap, gap.bytes);
    if (gap.with != noIndex)
      --dependents[gap.with];
  }
  std::erase_if(chosen, [&](uint32_t gap) { return !isAway[gap]; });

  // When each is to come back, if memory lets it: the last one just in time,
  // and before it what the link has to bring by then.
  std::ranges::sort(chosen, {}, [&](uint32_t gap) { return std::pair(gaps[gap].needed, gap); });
  plan.away.resize(chosen.size());
  // Of the link's time what weights leave of it counts.
  double linkFree = free_.back();
  for (size_t i = chosen.size(); i-- > 0;) {
    const ResidencyGap &gap = gaps[chosen[i]];
    linkFree = std::min(linkFree, free_[gap.needed]) - returnMargin * inSeconds(gap, profile_.link);
    auto after = std::upper_bound(free_.begin(), free_.end(), linkFree);
    uint32_t event = after == free_.begin() ? 0 : uint32_t(after - free_.begin() - 1);
    plan.away[i] = {chosen[i], std::clamp(event, gap.passesEnd() ? 0 : gap.leaves + 1, gap.needed)};
  }
  // The earliest need is first to get memory; the link brings in this order.
  uint32_t earliest = 0;
  for (Departure &departure : plan.away) {
    const ResidencyGap &gap = gaps[departure.gap];
    uint32_t event = std::min(std::max(departure.returns, earliest), gap.needed);
    for (uint32_t at = gap.needed; at-- > event;)
      if (curve[at] + gap.bytes > target) {
        event = at + 1;
        break;
      }
    departure.returns = event;
    earliest = event;
    addTo(curve, event, gap.needed, gap.bytes);
  }
  plan.peakBytes = *std::ranges::max_element(curve);
  std::vector<uint64_t> host(curve.size() + 1);
  for (const Departure &departure : plan.away) {
    const ResidencyGap &gap = gaps[departure.gap];
    plan.outBytes += gap.outBytes;
    plan.inBytes += gap.inBytes;
    if (gap.resident == noIndex)
      addTo(host, gap.leaves, gap.needed + 1, gap.outBytes);
  }
  plan.hostPeakBytes = *std::ranges::max_element(host);
  Times times = estimate(plan, target, profile_.link);
  plan.stallSeconds = times.compute - begins_.back();
  plan.seconds = times.all;
  LinkSpeed slow = profile_.link;
  slow.h2dBytesPerSecond /= slowLink;
  slow.d2hBytesPerSecond /= slowLink;
  plan.slowLinkSeconds = estimate(plan, target, slow).all;
  return plan;
}

ResidencyPlanner::Times ResidencyPlanner::estimate(const ResidencyPlan &plan, uint64_t target,
                                                   const LinkSpeed &link) const {
  const auto &gaps = profile_.gaps;
  // Departures by the event at which they leave, come back and are needed.
  size_t count = plan.away.size();
  std::vector<size_t> byLeave(count), byNeed(count);
  std::iota(byLeave.begin(), byLeave.end(), 0);
  byNeed = byLeave;
  auto gapOf = [&](size_t i) -> const ResidencyGap & { return gaps[plan.away[i].gap]; };
  std::ranges::stable_sort(byLeave, {}, [&](size_t i) { return gapOf(i).leaves; });
  std::ranges::stable_sort(byNeed, {}, [&](size_t i) { return gapOf(i).needed; });

  struct Leaving {
    double done;
    uint64_t bytes;
    bool operator>(const Leaving &other) const { return done > other.done; }
  };
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving;
  uint64_t leavingBytes = 0;
  std::vector<double> gone(count), back(count);
  double now = 0, outFree = 0, inFree = 0;
  // Of what comes besides: how much has come when.
  struct Arrival {
    double bytes, done;
  };
  std::deque<Arrival> arrivals;
  double besides = 0;
  size_t nextLeave = 0, nextReturn = 0, nextNeed = 0;
  for (uint32_t event = 0; event < profile_.events.size(); ++event) {
    for (; nextLeave < count && gapOf(byLeave[nextLeave]).leaves == event; ++nextLeave) {
      const ResidencyGap &gap = gapOf(byLeave[nextLeave]);
      double &done = gone[byLeave[nextLeave]] = now;
      if (!gap.outBytes)
        continue;
      done = outFree = std::max(now, outFree) + outSeconds(gap, link);
      leaving.push({done, gap.bytes});
      leavingBytes += gap.bytes;
    }
    for (; nextReturn < count && plan.away[nextReturn].returns == event; ++nextReturn) {
      const ResidencyGap &gap = gapOf(nextReturn);
      inFree = std::max({now, inFree, gone[nextReturn]}) + inSeconds(gap, link);
      back[nextReturn] = inFree;
    }
    for (; nextNeed < count && gapOf(byNeed[nextNeed]).needed == event; ++nextNeed)
      now = std::max(now, back[byNeed[nextNeed]]);
    const StepEvent &step = profile_.events[event];
    if (step.h2dBytes) {
      inFree = std::max(now, inFree) + double(step.h2dBytes) / link.h2dBytesPerSecond;
      arrivals.push_back({besides += double(step.h2dBytes), inFree});
    }
    if (step.linkWaitSeconds > 0) {
      while (arrivals.size() > 1 && arrivals.front().bytes < awaited_[event])
        arrivals.pop_front();
      if (!arrivals.empty()) {
        double later = std::max(0.0, arrivals.front().bytes - awaited_[event]) / link.h2dBytesPerSecond;
        now = std::max(now, arrivals.front().done - later);
      }
    }
    // What is taken now may be what is still being copied out.
    while (!leaving.empty() && (leaving.top().done <= now || plan.curve[event] + leavingBytes > target)) {
      now = std::max(now, leaving.top().done);
      leavingBytes -= leaving.top().bytes;
      leaving.pop();
    }
    now += step.seconds - step.linkWaitSeconds;
  }
  return {now, std::max({now, outFree, inFree})};
}

const ResidencyPlan &ResidencyPlanner::plan(uint64_t budgetBytes) const {
  const ResidencyPlan *best = nullptr;
  double grain = std::max(unconstrained().seconds * timeGrain, std::numeric_limits<double>::min());
  auto rank = [&](const ResidencyPlan &plan) {
    return std::tuple(std::round(plan.seconds / grain), std::round(plan.slowLinkSeconds / grain),
                      plan.outBytes + plan.inBytes, plan.peakBytes);
  };
  for (const ResidencyPlan &plan : pool_)
    if (plan.peakBytes <= budgetBytes && (!best || rank(plan) < rank(*best)))
      best = &plan;
  if (best)
    return *best;
  throw errorOf({.askedBytes = budgetBytes, .smallestBytes = smallestBudget(), .setBy = profile_.events[tightest_]});
}

} // namespace segue::inline runtime
