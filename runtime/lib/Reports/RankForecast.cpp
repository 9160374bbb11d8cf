//===- RankForecast.cpp - what several ranks will take --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Nothing is estimated but the time on the wires: the session of the run trains on the twin
// of a rank's device, with collectives that reach nobody.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/RankForecast.h"
#include "../Drivers/DeviceOptions.h"
#include "../Drivers/VirtualClock.h"
#include "../Session/OwnDevice.h"
#include "../Session/Ranks/ShardedStates.h"
#include "../Session/SessionState.h"
#include "../Session/SilentConfig.h"
#include "../StartThread.h"
#include "Formatted.h"
#include "MessageTimes.h"
#include "PlayedSession.h"
#include "segue/runtime/Collectives/Transport.h"
#include "segue/runtime/Collectives/VirtualGroup.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include "segue/runtime/Session/RunBudget.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The step that is told of: the first ones find nothing in its place yet. The one behind it is played, too, as messages
/// may go on beside its beginning.
static constexpr int toldStep = 3;

Interconnect parseInterconnect(const std::string &text) {
  static constexpr std::string_view keys[] = {"bandwidth", "latency"};
  try {
    DeviceOptions options("", "bandwidth=" + text);
    options.requireKnown(keys);
    Interconnect wires;
    wires.bytesPerSecond = options.bytesPerSecond("bandwidth", wires.bytesPerSecond);
    wires.latencySeconds = options.seconds("latency", wires.latencySeconds);
    return wires;
  } catch (const Error &error) { // which names a device
    std::string what = error.what();
    throw Error(ErrorCode::InvalidArgument, "an interconnect is written as 50GB/s,latency=5us, and not \"" + text +
                                                "\"" + what.substr(std::min(what.find("\": ") + 1, what.size())));
  }
}

static uint64_t dramOf(const std::string &twin) {
  OwnDevice device(twin);
  return device->memory().budget(Space::DeviceDram);
}

RankForecast::RankForecast(std::string_view spec, std::vector<SessionModule> modules, SessionOptions options,
                           RankRun run)
    : twin_(virtualTwin(spec)), modules_(std::move(modules)), options_(std::move(options)), run_(run),
      programBytes_(bytesForPrograms(spec, modules_)), budgetBytes_(run.budgetBytes.value_or(dramOf(twin_))) {}

//===----------------------------------------------------------------------===//
// Playing
//===----------------------------------------------------------------------===//

namespace {
/// Notes when the queues of a device work.
class BusyTimes {
public:
  explicit BusyTimes(VirtualClock &clock) : clock_(clock) {
    clock_.watch([this](const VirtualClock::Entry &entry) { note(entry); });
  }
  ~BusyTimes() { clock_.watch(nullptr); }
  BusyTimes(const BusyTimes &) = delete;
  BusyTimes &operator=(const BusyTimes &) = delete;

  /// Begins and ends the step that is told of.
  void beginStep() {
    isTold_ = true;
    times_ = {};
  }
  void endStep() { isTold_ = false; }
  void giveTo(RankStep &step) const;

private:
  void note(const VirtualClock::Entry &entry) {
    if (entry.queue == Queue::Compute) {
      times_.addCompute(entry.begin, entry.end);
      computeSeconds_ += isTold_ ? entry.end - entry.begin : 0;
    } else if (!isTold_) {
      return;
    } else if (entry.queue == Queue::Network && entry.label == meetingLabel) {
      times_.addMeeting(entry.begin, entry.end);
    } else if (entry.queue == Queue::Network && entry.label != receiveLabel) {
      times_.addMessage(entry.begin, entry.end);
      sentBytes_ += entry.cost.linkBytes;
    }
  }

  VirtualClock &clock_;
  MessageTimes times_;
  bool isTold_ = false;
  uint64_t sentBytes_ = 0;
  double computeSeconds_ = 0;
};
} // namespace

void BusyTimes::giveTo(RankStep &step) const {
  step.messages = times_.messages();
  step.sentBytes = sentBytes_;
  step.meetings = times_.meetings();
  step.meetingSeconds = times_.meetingTime();
  step.computeSeconds = computeSeconds_;
  step.networkSeconds = times_.messageTime();
  step.hiddenSeconds = times_.hiddenTime();
}

void RankForecast::playOn(const std::string &dram, const std::optional<Config> &config, RankStep &step,
                          std::shared_ptr<VirtualGroup> group) const {
  OwnDevice own(withDram(twin_, dram));
  const DeviceRef &device = *own;
  AllocationTrace trace(device->memory());
  std::shared_ptr<Storage> programs = takeForPrograms(device, programBytes_);
  SessionOptions same = playedOptions(options_);
  same.config = config;
  same.sharding = step.strategy;
  auto &clock = dynamic_cast<VirtualClock &>(*device);
  CollectiveOptions collectives{.wires = run_.wires,
                                .group = std::move(group),
                                .endOf = [&clock](const Fence &fence) { return clock.endOf(fence); }};
  if (run_.bucketBytes)
    collectives.bucketBytes = run_.bucketBytes;
  std::shared_ptr<Collectives> ranks = virtualRanks(device, step.rank, run_.ranks, std::move(collectives));
  same.collectives = ranks;
  Session session(device, modules_, std::move(same));
  session.allocateParameters();
  size_t count = run_.microBatches * size_t(step.strategy == Sharding::Modules ? run_.ranks : 1);
  std::vector<TensorMap> batches(count, batchWithoutValues(device, session.modules(), options_.wires));
  uint64_t certified = config ? session.certify(count) : 0;
  BusyTimes times(clock);
  StepResult last; // whoever takes a step may keep what it gave until the next has ended
  for (int number = 1; number <= toldStep + 1; ++number) {
    double begin = device->seconds();
    if (number == toldStep)
      times.beginStep();
    last = session.step(batches, LearningRates::same(1e-3, session.rateCount()));
    if (number == toldStep)
      times.endStep();
    step.seconds = device->seconds() - begin; // a step ends where the next one would begin
  }
  device->drain();
  times.giveTo(step);
  DeviceMemory &memory = device->memory();
  step.isPlanned = config.has_value();
  step.liveBytes = memory.peakBytes(Space::DeviceDram);
  step.bytes = config ? certified : trace.highest(device->reserveMemory(Space::DeviceDram, {}));
  step.messageBytes = ranks->figures().peakBytes;
  step.hostBytes = 0;
  for (Space space : {Space::HostPinned, Space::Host})
    step.hostBytes += device->hasSpace(space) ? memory.peakBytes(space) : 0;
  // The clock's host waits for each block, and no other does: as many may be under way as the ring has slots.
  if (step.strategy == Sharding::Parameters && step.messageBytes) {
    uint64_t ring = session.services()->weights()->ringBytes();
    step.messageBytes += ring;
    step.hostBytes += ring;
  }
}

int RankForecast::fullestRank() const {
  OwnDevice own(twin_);
  std::vector<Module> modules = makeModules(*own, modules_);
  ParameterTable table(modules, options_.tied);
  std::vector<uint64_t> bytes(size_t(run_.ranks), 0);
  ShardedStates shards(modules, table, run_.ranks);
  for (const auto &[key, state] : shards.states())
    bytes[size_t(state.rank)] += state.desc.spanBytes();
  return int(std::ranges::max_element(bytes) - bytes.begin());
}

/// The memory of a device on which everything has room.
static constexpr const char *allMemory = "1024TiB";

void RankForecast::playByPlan(RankStep &step, std::shared_ptr<VirtualGroup> group) const {
  uint64_t wanted = step.bytes;
  try {
    playOn(std::to_string(budgetBytes_), silentConfig(RunBudget{budgetBytes_}.config(std::nullopt)), step, group);
  } catch (const Error &error) {
    if (error.code() != ErrorCode::BudgetInfeasible && error.code() != ErrorCode::DeviceOom)
      throw;
    step = {.strategy = step.strategy, .rank = step.rank};
    step.why = "a step takes " + sizeText(wanted) + " as it is, there are " + sizeText(budgetBytes_) +
               ", and by a plan: " + error.what();
    if (group)
      group->end(step.why);
  }
}

const RankStep &RankForecast::play(Sharding strategy) {
  if (strategy == Sharding::Modules && run_.ranks > 1)
    return steps_.emplace_back(playPipeline());
  RankStep step{.strategy = strategy, .rank = strategy == Sharding::None ? 0 : fullestRank()};
  try {
    playOn(allMemory, std::nullopt, step);
  } catch (const Error &error) { // by this strategy
    if (error.code() != ErrorCode::Unsupported)
      throw;
    step.why = error.what();
    return steps_.emplace_back(std::move(step));
  }
  if (step.bytes > budgetBytes_)
    playByPlan(step);
  return steps_.emplace_back(std::move(step));
}

//===----------------------------------------------------------------------===//
// Pipelines
//===----------------------------------------------------------------------===//

/// Plays ranks beside each other, each on a thread. Throws what the first of them has thrown that was not ended by
/// another.
static void playTogether(std::vector<RankStep> &steps,
                         const std::function<void(RankStep &, std::shared_ptr<VirtualGroup>)> &playOne) {
  auto group = std::make_shared<VirtualGroup>(int(steps.size()));
  std::vector<std::exception_ptr> thrown(steps.size());
  std::vector<std::thread> threads;
  auto play = [&](size_t rank) {
    try {
      playOne(steps[rank], group);
    } catch (const std::exception &error) {
      auto *known = dynamic_cast<const Error *>(&error);
      if (!known || known->code() != ErrorCode::RankFailed)
        thrown[rank] = std::current_exception();
      group->end(error.what());
    }
  };
  try {
    for (size_t rank = 0; rank < steps.size(); ++rank)
      threads.push_back(startThread("play a rank of a pipeline", [&play, rank] { play(rank); }));
  } catch (const Error &error) { // the others would wait for it
    thrown[threads.size()] = std::current_exception();
    group->end(error.what());
  }
  for (std::thread &thread : threads)
    thread.join();
  for (const std::exception_ptr &each : thrown)
    if (each)
      std::rethrow_exception(each);
}

RankStep RankForecast::playPipeline() const {
  std::vector<RankStep> steps{{.strategy = Sharding::Modules}};
  try {
    OwnDevice own(twin_);
    PipelineStages(makeModules(*own, modules_), options_.stages, run_.ranks); // before there is a thread for each
    for (int rank = 1; rank < run_.ranks; ++rank)
      steps.push_back({.strategy = Sharding::Modules, .rank = rank});
    playTogether(steps, [&](RankStep &step, std::shared_ptr<VirtualGroup> group) {
      playOn(allMemory, std::nullopt, step, std::move(group));
    });
    auto isOver = [&](const RankStep &step) { return step.bytes > budgetBytes_; };
    if (std::ranges::any_of(steps, isOver))
      playTogether(steps, [&](RankStep &step, std::shared_ptr<VirtualGroup> group) {
        isOver(step) ? playByPlan(step, std::move(group)) : playOn(allMemory, std::nullopt, step, std::move(group));
      });
  } catch (const Error &error) { // by this strategy, or these stages
    if (error.code() != ErrorCode::Unsupported && error.code() != ErrorCode::InvalidArgument)
      throw;
    steps[0].why = error.what();
    return std::move(steps[0]);
  }
  for (RankStep &step : steps)
    if (!step.fits())
      return std::move(step);
  double seconds = std::ranges::max_element(steps, {}, &RankStep::seconds)->seconds;
  RankStep &most = *std::ranges::max_element(steps, {}, &RankStep::bytes);
  most.seconds = seconds;
  return std::move(most);
}

const RankStep *RankForecast::fastest() const {
  const RankStep *best = nullptr;
  for (const RankStep &step : steps_)
    if (step.fits() && (!best || step.seconds < best->seconds))
      best = &step;
  return best;
}

//===----------------------------------------------------------------------===//
// Answers
//===----------------------------------------------------------------------===//

Json RankForecast::json() const {
  Json json{{"device", twin_},
            {"ranks", run_.ranks},
            {"interconnect",
             {{"bytes_per_second", run_.wires.bytesPerSecond}, {"latency_seconds", run_.wires.latencySeconds}}},
            {"budget_bytes", budgetBytes_},
            {"micro_batches", run_.microBatches},
            {"strategies", Json::array()},
            {"fastest", nullptr}};
  for (const RankStep &step : steps_)
    json["strategies"].push_back({{"strategy", std::string(name(step.strategy))},
                                  {"fits", step.fits()},
                                  {"why", step.why},
                                  {"rank", step.rank},
                                  {"planned", step.isPlanned},
                                  {"peak_bytes", step.bytes},
                                  {"live_bytes", step.liveBytes},
                                  {"host_bytes", step.hostBytes},
                                  {"message_bytes", step.messageBytes},
                                  {"messages", step.messages},
                                  {"sent_bytes", step.sentBytes},
                                  {"meetings", step.meetings},
                                  {"seconds", step.seconds},
                                  {"compute_seconds", step.computeSeconds},
                                  {"network_seconds", step.networkSeconds},
                                  {"hidden_seconds", step.hiddenSeconds},
                                  {"meeting_seconds", step.meetingSeconds}});
  if (const RankStep *best = fastest())
    json["fastest"] = std::string(name(best->strategy));
  return json;
}

std::string RankForecast::text() const {
  std::string text = twin_ + formatted("\n%d ranks, %.4g GB/s and %.4g us between them, %s of the device for each\n",
                                       run_.ranks, run_.wires.bytesPerSecond / 1e9, run_.wires.latencySeconds * 1e6,
                                       sizeText(budgetBytes_).c_str());
  text += formatted("\n%-8s %12s %12s %12s %12s %9s %12s %12s %8s\n", "per rank", "device MiB", "host MiB", "messages",
                    "sent MiB", "in", "step ms", "network ms", "hidden");
  for (const RankStep &step : steps_) {
    if (!step.fits()) {
      text += formatted("%-8s does not fit\n", std::string(name(step.strategy)).c_str());
      continue;
    }
    double hidden = step.networkSeconds > 0 ? step.hiddenSeconds / step.networkSeconds * 100 : 0;
    text += formatted("%-8s %12.2f %12.2f %12.2f %12.2f %9llu %12.3f %12.3f %7.1f%%\n",
                      std::string(name(step.strategy)).c_str(), mib(step.bytes), mib(step.hostBytes),
                      mib(step.messageBytes), mib(step.sentBytes), (unsigned long long)step.messages,
                      step.seconds * 1e3, step.networkSeconds * 1e3, hidden);
  }
  text += "\n";
  for (const RankStep &step : steps_) {
    std::string strategy(name(step.strategy));
    if (!step.fits())
      text += strategy + " does not fit: " + step.why + "\n";
    else if (step.isPlanned)
      text += strategy + " fits by a plan, as train --budget makes one: tensors leave the device\n";
  }
  if (const RankStep *best = fastest(); best && steps_.size() > 1)
    text += formatted("The fastest that fits is %s: %.3f ms\n", std::string(name(best->strategy)).c_str(),
                      best->seconds * 1e3);
  return text;
}

} // namespace segue::inline runtime
