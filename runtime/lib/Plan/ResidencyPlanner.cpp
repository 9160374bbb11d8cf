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

/// The shares of the room above the least peak that tensors leave free beyond what keeps to a target. A tensor that
/// leaves holds its memory until it has been copied, and one that returns early takes some: without room for both, a
/// link that has little time to spare carries now this way, now that. With more room more leaves, which pays where the
/// link would be idle.
static constexpr double headroomShares[] = {0, 1. / 16, 1. / 8, 1. / 4, 1. / 2, 7. / 8};

/// A way back is begun so much earlier than the link needs: what comes before
/// it on the link may take longer than planned.
static constexpr double returnMargin = 1.1;

/// A link may be shared, or memory be slower than it: of plans that are as fast,
/// the one is better that still is on a link slower by this factor.
static constexpr double slowLink = 4;

/// Plans that differ by less of the step's time are as fast.
static constexpr double timeGrain = 1e-3;

/// The number of shares of the runs that may take tensors off the link: each is tried with
/// the runs that gain most.
static constexpr size_t remakeShares = 8;

static void addTo(std::vector<uint64_t> &curve, uint32_t begin, uint32_t end, uint64_t bytes) {
  for (uint32_t event = begin; event < end; ++event)
    curve[event] += bytes;
}

/// Adds to the events from a gap's beginning until `needed`.
static void addTo(std::vector<uint64_t> &curve, const ResidencyGap &gap, uint32_t needed, uint64_t bytes) {
  if (gap.passesEnd())
    addTo(curve, 0, needed, bytes);
  addTo(curve, gap.leaves, gap.passesEnd() ? uint32_t(curve.size()) : needed, bytes);
}

static void addTo(std::vector<uint64_t> &curve, const ResidencyGap &gap, uint64_t bytes) {
  addTo(curve, gap, gap.needed, bytes);
}

namespace {
/// A curve to which many gaps are added: only their ends are written, and the sums are made once. Adding them one by one
/// took two thirds of the time of planning.
class ManyGaps {
public:
  explicit ManyGaps(size_t events) : changes_(events) {}

  void add(const ResidencyGap &gap, uint32_t needed, uint64_t bytes) {
    if (gap.passesEnd())
      add(0, needed, bytes);
    add(gap.leaves, gap.passesEnd() ? uint32_t(changes_.size()) : needed, bytes);
  }

  void addTo(std::vector<uint64_t> &curve) const {
    uint64_t sum = 0;
    for (size_t event = 0; event < changes_.size(); ++event)
      curve[event] += sum += changes_[event];
  }

private:
  void add(uint32_t begin, uint32_t end, uint64_t bytes) {
    if (begin >= end)
      return;
    changes_[begin] += bytes;
    if (end < changes_.size())
      changes_[end] -= bytes;
  }

  std::vector<uint64_t> changes_; ///< from one event to the next; bytes wrap around, and back
};
} // namespace

static void checkProfile(const StepProfile &profile) {
  auto refuse = [](const std::string &what) { throw Error(ErrorCode::InvalidArgument, "step profile: " + what); };
  if (profile.events.empty())
    refuse("it has no events");
  const LinkSpeed &link = profile.link;
  if (!(link.h2dBytesPerSecond > 0) || !(link.d2hBytesPerSecond > 0) || !(link.latencySeconds >= 0))
    refuse("the link needs a positive bandwidth in both directions and a latency");
  if (profile.below) {
    const LinkSpeed &disk = profile.below->disk;
    if (!(disk.h2dBytesPerSecond > 0) || !(disk.d2hBytesPerSecond > 0) || !(disk.latencySeconds >= 0))
      refuse("the disk needs a positive bandwidth in both directions and a latency");
  }
  std::vector<uint64_t> away(profile.events.size());
  for (const ResidencyGap &gap : profile.gaps) {
    bool isResident = gap.resident < profile.residents.size();
    if ((gap.passesEnd() && !isResident) || std::max(gap.leaves, gap.needed) >= profile.events.size() ||
        gap.leaves == gap.needed)
      refuse("tensor \"" + gap.tensor + "\" leaves at event " + std::to_string(gap.leaves) + " and is needed at " +
             std::to_string(gap.needed) + " of " + std::to_string(profile.events.size()));
    if (gap.isOnDisk && !(profile.below && isResident))
      refuse("tensor \"" + gap.tensor + "\" has its home on a disk that is not there, or has none");
    if (gap.with != noIndex && (gap.with >= profile.gaps.size() || profile.gaps[gap.with].resident != gap.resident))
      refuse("a gap of tensor \"" + gap.tensor + "\" goes with gap " + std::to_string(gap.with) +
             ", which is none of it");
    if (gap.remake != noIndex && (gap.remake >= profile.remakes.size() || isResident))
      refuse("tensor \"" + gap.tensor + "\" is made again by run " + std::to_string(gap.remake) + " of " +
             std::to_string(profile.remakes.size()) + ", which only saved tensors are");
    addTo(away, gap, gap.bytes);
  }
  for (const StepRemake &remake : profile.remakes)
    if (!(remake.seconds >= 0) ||
        std::ranges::any_of(remake.gaps, [&](uint32_t gap) { return gap >= profile.gaps.size(); }) ||
        std::ranges::any_of(remake.residents, [&](uint32_t resident) { return resident >= profile.residents.size(); }))
      refuse("a run that makes tensors again reads others, or takes a time, that there are not");
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
  gapsOfResident_.resize(profile_.residents.size());
  gapsOfRemake_.resize(profile_.remakes.size());
  for (uint32_t gap = 0; gap < profile_.gaps.size(); ++gap) {
    if (uint32_t resident = profile_.gaps[gap].resident; resident != noIndex)
      gapsOfResident_[resident].push_back(gap);
    if (uint32_t remake = profile_.gaps[gap].remake; remake != noIndex)
      gapsOfRemake_[remake].push_back(gap);
  }

  // Those first that free most for the least use of the link; one that is needed
  // again within the link's round trip leaves last of all. Saved tensors use the
  // link while forward and backward compute; residents also between, where the
  // optimizer has little to hide them behind: another preference. A third takes what
  // is sooner computed than moved for what computing takes.
  std::vector<uint32_t> all(profile_.gaps.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<bool> isOnDisk = findOnDisk(all, std::vector<bool>(all.size()));
  bool savedFirst = false, remakes = false;
  auto worth = [&](uint32_t index) {
    const ResidencyGap &gap = profile_.gaps[index];
    double spare = begins_[gap.needed] - begins_[gap.leaves] + (gap.passesEnd() ? begins_.back() : 0);
    double link = roundSeconds(gap, profile_, isOnDisk[index]);
    if (remakes && gap.remake != noIndex)
      link = std::min(link, profile_.remakes[gap.remake].seconds);
    return std::tuple(spare > link, savedFirst && gap.resident == noIndex,
                      link > 0 ? double(gap.bytes) * spare / link : double(gap.bytes));
  };
  // By the third preference only plans that compute something again are made: the first two
  // give those that move tensors alone.
  std::vector<std::vector<uint32_t>> preferences;
  size_t movesOnly = 0;
  auto prefer = [&] {
    std::vector<uint32_t> order = all;
    std::ranges::stable_sort(order, std::greater(), worth);
    if (std::ranges::find(preferences, order) == preferences.end())
      preferences.push_back(std::move(order));
  };
  prefer();
  savedFirst = true;
  prefer();
  movesOnly = preferences.size();
  savedFirst = false;
  remakes = true;
  prefer();

  std::vector<uint64_t> least;
  for (const StepEvent &event : events)
    least.push_back(event.peakBytes);
  for (const ResidencyGap &gap : profile_.gaps)
    addTo(least, gap, -gap.bytes);
  tightest_ = uint32_t(std::ranges::max_element(least) - least.begin());
  uint64_t floor = least[tightest_];
  uint64_t ceiling = std::ranges::max_element(events, {}, &StepEvent::peakBytes)->peakBytes;
  auto targetOf = [&](size_t step) { return floor + (ceiling - floor) * step / poolSteps; };
  for (size_t i = 0; i < preferences.size(); ++i) {
    std::vector<Absence> moved; // by step
    for (size_t step = 0; step < poolSteps && targetOf(step) < ceiling; ++step) {
      moved.push_back(*absence(choose(targetOf(step), preferences[i]), std::vector<bool>(profile_.gaps.size())));
      planFor(targetOf(step), moved.back(), /*maySuffice=*/i < movesOnly);
      size_t last = step;
      for (double share : headroomShares)
        if (size_t chosen = step - size_t(std::lround(share * double(step))); i < movesOnly && chosen < last) {
          pool_.push_back(schedule(moved[chosen], targetOf(step)));
          last = chosen;
        }
    }
  }
  pool_.push_back(schedule(*absence({}, std::vector<bool>(profile_.gaps.size())), ceiling));
}

void ResidencyPlanner::planFor(uint64_t target, const Absence &moved, bool maySuffice) {
  ResidencyPlan plan = schedule(moved, target);
  double seconds = plan.seconds;
  if (maySuffice)
    pool_.push_back(std::move(plan));
  if (seconds > begins_.back() * (1 + timeGrain))
    remakeWhatGains(moved, seconds, target);
}

/// Returns the gaps that are away so that `target` is kept.
std::vector<uint32_t> ResidencyPlanner::choose(uint64_t target, const std::vector<uint32_t> &preferred) const {
  const auto &gaps = profile_.gaps;
  std::vector<uint64_t> curve;
  for (const StepEvent &event : profile_.events)
    curve.push_back(event.peakBytes);

  // At each event that is over the target, the gaps that are worth most are chosen first.
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

  // A tensor can stay after all if an early choice has become needless.
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

  return chosen;
}

/// Those of `chosen` whose tensor goes on to the disk, as the host has no room for it when it leaves.
std::vector<bool> ResidencyPlanner::findOnDisk(const std::vector<uint32_t> &chosen,
                                               const std::vector<bool> &isRemade) const {
  const auto &gaps = profile_.gaps;
  std::vector<bool> isOnDisk(gaps.size());
  if (!profile_.below)
    return isOnDisk;
  std::vector<uint32_t> order = chosen;
  std::ranges::sort(order, {}, [&](uint32_t gap) { return std::pair(gaps[gap].leaves, gap); });
  // What is in the host's memory, by the event at which it is needed again.
  using Held = std::pair<uint32_t, uint64_t>;
  std::priority_queue<Held, std::vector<Held>, std::greater<>> held;
  uint64_t heldBytes = 0;
  for (uint32_t index : order) {
    const ResidencyGap &gap = gaps[index];
    if (gap.resident != noIndex && profile_.residents[gap.resident].role != Role::Gradient) {
      isOnDisk[index] = gap.isOnDisk;
      continue;
    }
    if (isRemade[index])
      continue;
    if (!gap.outBytes && gap.with != noIndex) { // it has a home from before
      isOnDisk[index] = isOnDisk[gap.with];
      continue;
    }
    for (; !held.empty() && held.top().first <= gap.leaves; held.pop())
      heldBytes -= held.top().second;
    isOnDisk[index] = heldBytes + gap.outBytes > profile_.below->roomBytes;
    if (isOnDisk[index])
      continue;
    held.push({gap.needed, gap.outBytes});
    heldBytes += gap.outBytes;
  }
  return isOnDisk;
}

/// How long `gaps` are away, those that are made again until the first run that gives
/// them. None where a run would read what is not there then.
std::optional<ResidencyPlanner::Absence> ResidencyPlanner::absence(const std::vector<uint32_t> &chosen,
                                                                   const std::vector<bool> &isRemade) const {
  const auto &gaps = profile_.gaps;
  Absence absence{.gaps = chosen,
                  .isAway = std::vector<bool>(gaps.size()),
                  .isRemade = isRemade,
                  .isOnDisk = findOnDisk(chosen, isRemade)};
  for (uint32_t gap : chosen)
    absence.isAway[gap] = true;
  for (const ResidencyGap &gap : gaps)
    absence.needed.push_back(gap.needed);

  std::vector<uint32_t> runAt(profile_.remakes.size(), noIndex);
  std::vector<uint32_t> toRun;
  bool isPossible = true;
  auto runBy = [&](uint32_t remake, uint32_t event) {
    if (event >= runAt[remake])
      return;
    runAt[remake] = event;
    toRun.push_back(remake);
    for (uint32_t gap : gapsOfRemake_[remake])
      if (absence.isAway[gap] && isRemade[gap]) {
        absence.needed[gap] = std::min(absence.needed[gap], event);
        isPossible &= event > gaps[gap].leaves;
      }
  };
  auto needBy = [&](uint32_t gap, uint32_t event) {
    if (!absence.isAway[gap])
      return;
    if (gaps[gap].passesEnd()) {
      isPossible &= !gaps[gap].covers(event);
    } else if (event < absence.needed[gap] && event >= gaps[gap].leaves) {
      isPossible &= event > gaps[gap].leaves; // it would leave at that very moment
      if (isRemade[gap])
        runBy(gaps[gap].remake, event);
      absence.needed[gap] = event;
    }
  };
  for (uint32_t gap : chosen)
    if (isRemade[gap])
      runBy(gaps[gap].remake, absence.needed[gap]);
  while (!toRun.empty() && isPossible) {
    uint32_t remake = toRun.back();
    toRun.pop_back();
    for (uint32_t gap : profile_.remakes[remake].gaps)
      needBy(gap, runAt[remake]);
    for (uint32_t resident : profile_.remakes[remake].residents)
      for (uint32_t gap : gapsOfResident_[resident])
        needBy(gap, runAt[remake]);
  }
  // A run that the first of its tensors would have had early enough may come too late for
  // another of them alone.
  for (uint32_t remake = 0; remake < runAt.size(); ++remake)
    isPossible &= runAt[remake] == noIndex || runAt[remake] <= profile_.remakes[remake].latest;
  if (!isPossible)
    return std::nullopt;

  for (const StepEvent &event : profile_.events)
    absence.curve.push_back(event.peakBytes);
  ManyGaps away(profile_.events.size());
  for (uint32_t gap : chosen)
    away.add(gaps[gap], absence.needed[gap], -gaps[gap].bytes);
  away.addTo(absence.curve);
  // A run ends before the work of its event begins. What it makes counts as there.
  absence.runSeconds.resize(profile_.events.size());
  std::vector<uint64_t> more(profile_.events.size());
  for (uint32_t remake = 0; remake < runAt.size(); ++remake) {
    uint32_t at = runAt[remake];
    if (at == noIndex)
      continue;
    absence.runSeconds[at] += profile_.remakes[remake].seconds;
    uint64_t bytes = profile_.events[at].liveBytes + profile_.remakes[remake].bytes;
    uint64_t there = profile_.events[at].peakBytes;
    for (uint32_t gap : gapsOfRemake_[remake])
      there += absence.isAway[gap] && isRemade[gap] ? gaps[gap].bytes : 0;
    more[at] = std::max(more[at], bytes - std::min(bytes, there));
  }
  for (size_t event = 0; event < more.size(); ++event)
    absence.curve[event] += more[event];
  return absence;
}

/// Takes tensors off the link, by the runs that take least time for what they spare of
/// it, as far as the step is faster and has room for them.
void ResidencyPlanner::remakeWhatGains(const Absence &moved, double movedSeconds, uint64_t target) {
  std::vector<double> spared(profile_.remakes.size());
  for (uint32_t gap : moved.gaps)
    if (uint32_t remake = profile_.gaps[gap].remake; remake != noIndex)
      spared[remake] += roundSeconds(profile_.gaps[gap], profile_, moved.isOnDisk[gap]);
  std::vector<uint32_t> runs;
  for (uint32_t remake = 0; remake < spared.size(); ++remake)
    if (spared[remake] > 0)
      runs.push_back(remake);
  std::ranges::stable_sort(runs, std::greater(), [&](uint32_t remake) {
    return spared[remake] / std::max(profile_.remakes[remake].seconds, std::numeric_limits<double>::min());
  });

  std::vector<bool> isRemade(profile_.gaps.size());
  auto hasRoom = [&](const Absence &absence) {
    for (size_t event = 0; event < absence.curve.size(); ++event)
      if (absence.curve[event] > std::max(target, moved.curve[event]))
        return false;
    return true;
  };
  // Adds those of [first, last) that there is room for, all at once if that is possible.
  std::optional<Absence> found;
  auto add = [&](size_t first, size_t last, auto &&again) -> void {
    std::vector<bool> more = isRemade;
    for (size_t i = first; i < last; ++i)
      for (uint32_t gap : gapsOfRemake_[runs[i]])
        more[gap] = moved.isAway[gap];
    if (std::optional<Absence> all = absence(moved.gaps, more); all && hasRoom(*all)) {
      found = std::move(all);
      isRemade = std::move(more);
    } else if (last - first > 1) {
      again(first, (first + last) / 2, again);
      again((first + last) / 2, last, again);
    }
  };
  std::optional<ResidencyPlan> best;
  for (size_t share = 0; share < remakeShares; ++share) {
    size_t first = runs.size() * share / remakeShares, last = runs.size() * (share + 1) / remakeShares;
    if (first == last)
      continue;
    found.reset();
    add(first, last, add);
    if (!found)
      continue;
    ResidencyPlan plan = schedule(*found, target);
    if (plan.seconds < (best ? best->seconds : movedSeconds))
      best = std::move(plan);
  }
  if (best)
    pool_.push_back(std::move(*best));
}

/// Says when each tensor comes back, and what that takes.
ResidencyPlan ResidencyPlanner::schedule(const Absence &absence, uint64_t target) const {
  const auto &gaps = profile_.gaps;
  const std::vector<uint32_t> &needed = absence.needed;
  ResidencyPlan plan;
  plan.curve = absence.curve;
  std::vector<uint64_t> &curve = plan.curve;
  std::vector<uint32_t> chosen = absence.gaps;

  // The event at which each is to come back, if memory lets it: the last one just in time,
  // and the others with time for what the link has to bring behind them.
  std::ranges::sort(chosen, {}, [&](uint32_t gap) { return std::pair(needed[gap], gap); });
  plan.away.resize(chosen.size());
  // Only the link's time that weights leave counts.
  double linkFree = free_.back(), diskFree = free_.back();
  for (size_t i = chosen.size(); i-- > 0;) {
    uint32_t index = chosen[i];
    const ResidencyGap &gap = gaps[index];
    if (absence.isRemade[index]) {
      plan.away[i] = {index, needed[index], /*isRemade=*/true};
      continue;
    }
    linkFree = std::min(linkFree, free_[needed[index]]) - returnMargin * inSeconds(gap, profile_.link);
    // The link brings in order: what comes before it is not to wait for a disk that was asked too late.
    if (absence.isOnDisk[index]) {
      diskFree = std::min(diskFree, free_[needed[index]]) - returnMargin * inSeconds(gap, profile_.below->disk);
      linkFree = std::min(linkFree, diskFree);
    }
    auto after = std::upper_bound(free_.begin(), free_.end(), linkFree);
    uint32_t event = after == free_.begin() ? 0 : uint32_t(after - free_.begin() - 1);
    plan.away[i] = {index, std::clamp(event, gap.passesEnd() ? 0 : gap.leaves + 1, needed[index])};
  }
  // The earliest need is first to get memory; the link brings in this order.
  uint32_t earliest = 0;
  for (Departure &departure : plan.away) {
    if (departure.isRemade)
      continue;
    const ResidencyGap &gap = gaps[departure.gap];
    uint32_t until = needed[departure.gap];
    uint32_t event = std::min(std::max(departure.returns, earliest), until);
    for (uint32_t at = until; at-- > event;)
      if (curve[at] + gap.bytes > target) {
        event = at + 1;
        break;
      }
    departure.returns = event;
    earliest = event;
    addTo(curve, event, until, gap.bytes);
  }
  std::ranges::stable_sort(plan.away, {}, &Departure::returns);
  plan.peakBytes = *std::ranges::max_element(curve);
  std::vector<uint64_t> host(curve.size() + 1);
  for (const Departure &departure : plan.away) {
    const ResidencyGap &gap = gaps[departure.gap];
    if (departure.isRemade)
      continue;
    plan.outBytes += gap.outBytes;
    plan.inBytes += gap.inBytes;
    plan.diskOutBytes += absence.isOnDisk[departure.gap] ? gap.outBytes : 0;
    plan.diskInBytes += absence.isOnDisk[departure.gap] ? gap.inBytes : 0;
    if (gap.resident == noIndex && !absence.isOnDisk[departure.gap])
      addTo(host, gap.leaves, gap.needed + 1, gap.outBytes);
  }
  plan.hostPeakBytes = *std::ranges::max_element(host);
  Times times = estimate(plan, absence, target, /*slower=*/1);
  plan.isRemaking = std::ranges::any_of(plan.away, &Departure::isRemade);
  plan.remakeSeconds = std::accumulate(absence.runSeconds.begin(), absence.runSeconds.end(), 0.0);
  plan.stallSeconds = std::max(0.0, times.compute - begins_.back() - plan.remakeSeconds);
  plan.seconds = times.all;
  plan.slowLinkSeconds = estimate(plan, absence, target, slowLink).all;
  return plan;
}

ResidencyPlanner::Times ResidencyPlanner::estimate(const ResidencyPlan &plan, const Absence &absence, uint64_t target,
                                                   double slower) const {
  const auto &gaps = profile_.gaps;
  auto slowed = [&](LinkSpeed edge) {
    edge.h2dBytesPerSecond /= slower;
    edge.d2hBytesPerSecond /= slower;
    return edge;
  };
  BelowHost below = profile_.below.value_or(BelowHost());
  LinkSpeed link = slowed(profile_.link), disk = slowed(below.disk);
  // Departures by the event at which they leave, come back and are needed.
  size_t count = plan.away.size();
  std::vector<size_t> byLeave(count), byNeed(count);
  std::iota(byLeave.begin(), byLeave.end(), 0);
  byNeed = byLeave;
  auto gapOf = [&](size_t i) -> const ResidencyGap & { return gaps[plan.away[i].gap]; };
  std::ranges::stable_sort(byLeave, {}, [&](size_t i) { return gapOf(i).leaves; });
  auto neededAt = [&](size_t i) { return absence.needed[plan.away[i].gap]; };
  std::ranges::stable_sort(byNeed, {}, neededAt);

  struct Leaving {
    double done;
    uint64_t bytes;
    bool operator>(const Leaving &other) const { return done > other.done; }
  };
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving;
  uint64_t leavingBytes = 0;
  std::vector<double> gone(count), back(count);
  double now = 0, outFree = 0, inFree = 0, writeFree = 0, readFree = 0;
  // How much has come, and when, of the bytes that belong to no gap.
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
      if (!gap.outBytes || plan.away[byLeave[nextLeave]].isRemade)
        continue;
      double begin = std::max(now, outFree);
      done = outFree = begin + outSeconds(gap, link);
      if (absence.isOnDisk[plan.away[byLeave[nextLeave]].gap]) {
        done = writeFree = std::max(outFree, std::max(begin, writeFree) + outSeconds(gap, disk));
        outFree = std::max(outFree, writeFree - double(below.passingBytes) / disk.d2hBytesPerSecond);
      }
      leaving.push({done, gap.bytes});
      leavingBytes += gap.bytes;
    }
    for (; nextReturn < count && plan.away[nextReturn].returns == event; ++nextReturn) {
      const ResidencyGap &gap = gapOf(nextReturn);
      if (plan.away[nextReturn].isRemade)
        continue;
      double begin = std::max(now, gone[nextReturn]);
      if (absence.isOnDisk[plan.away[nextReturn].gap]) {
        readFree = std::max({begin, readFree, inFree - double(below.passingBytes) / disk.h2dBytesPerSecond}) +
                   inSeconds(gap, disk);
        inFree = std::max(readFree, std::max(begin, inFree) + inSeconds(gap, link));
      } else {
        inFree = std::max(begin, inFree) + inSeconds(gap, link);
      }
      back[nextReturn] = inFree;
    }
    for (; nextNeed < count && neededAt(byNeed[nextNeed]) == event; ++nextNeed)
      now = std::max(now, back[byNeed[nextNeed]]);
    now += absence.runSeconds[event];
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
    // Memory that is taken now may be that of tensors which are still being copied out.
    while (!leaving.empty() && (leaving.top().done <= now || plan.curve[event] + leavingBytes > target)) {
      now = std::max(now, leaving.top().done);
      leavingBytes -= leaving.top().bytes;
      leaving.pop();
    }
    now += step.seconds - step.linkWaitSeconds;
  }
  return {now, std::max({now, outFree, inFree, writeFree})};
}

const ResidencyPlan &ResidencyPlanner::fastest(uint64_t budgetBytes, bool mayRemake) const {
  const ResidencyPlan *best = nullptr;
  double grain = std::max(unconstrained().seconds * timeGrain, std::numeric_limits<double>::min());
  auto rank = [&](const ResidencyPlan &plan) {
    return std::tuple(std::round(plan.seconds / grain), std::round(plan.slowLinkSeconds / grain),
                      plan.outBytes + plan.inBytes, plan.peakBytes);
  };
  for (const ResidencyPlan &plan : pool_)
    if (plan.peakBytes <= budgetBytes && (mayRemake || !plan.isRemaking) && (!best || rank(plan) < rank(*best)))
      best = &plan;
  if (best)
    return *best;
  throw errorOf({.askedBytes = budgetBytes, .smallestBytes = smallestBudget(), .setBy = profile_.events[tightest_]});
}

} // namespace segue::inline runtime
