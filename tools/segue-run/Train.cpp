//===- Train.cpp - segue-run train ----------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Trains stitched binaries without Python or PyTorch. Losses go to stdout with
// the nine digits that tell any two floats apart, so that a resumed run can be
// compared with an unbroken one line by line.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "HeldOut.h"
#include "Interruption.h"
#include "ProgressLine.h"
#include "RateOptions.h"
#include "TrainingSetup.h"
#include "segue/runtime/Collectives/Mpi.h"
#include "segue/runtime/Cuda/Nccl.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Reports/Roofline.h"
#include "segue/runtime/Reports/RunReport.h"
#include "segue/runtime/Session/RunBudget.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace segue::tool {

namespace {
/// Where the steps go that are profiled.
class StepProfiler {
public:
  explicit StepProfiler(const DeviceRef &device) : device_(device), timer_(device) {}
  void add(double seconds) {
    seconds_ += seconds;
    ++steps_;
  }
  void print() {
    auto begin = std::chrono::steady_clock::now();
    timer_.stop(); // waits for the last step
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    Roofline table({device_->name(), device_->threads(), "step", steps_, seconds_}, timer_.times(), speedOf(*device_));
    std::fputs(table.text().c_str(), stderr);
  }

private:
  DeviceRef device_;
  CommandTimer timer_;
  uint64_t steps_ = 0;
  double seconds_ = 0;
};
} // namespace

/// Prints a step, which was taken at these rates.
static void printStep(const StepResult &result, const std::vector<double> &rates, double seconds, bool json) {
  if (json) {
    nlohmann::ordered_json line{{"step", result.step}, {"loss", result.loss}};
    line["grad_norm"] =
        std::isnan(result.gradNorm) ? nlohmann::ordered_json() : nlohmann::ordered_json(result.gradNorm);
    line["clip"] = result.clip;
    line["lr"] = rates.size() == 1 ? nlohmann::ordered_json(rates[0]) : nlohmann::ordered_json(rates);
    line["seconds"] = seconds;
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("step %lld loss %.9g grad_norm %.9g\n", (long long)result.step, result.loss, result.gradNorm);
  }
  std::fflush(stdout);
}

static void printEvaluation(int64_t step, double loss, bool json) {
  if (json)
    std::printf("%s\n", nlohmann::ordered_json{{"step", step}, {"eval_loss", loss}}.dump().c_str());
  else
    std::printf("step %lld eval_loss %.9g\n", (long long)step, loss);
  std::fflush(stdout);
}

namespace {
/// The time of the machine, or of a device that has its own.
class Clock {
public:
  explicit Clock(const Device &device) : device_(device), begin_(now()) {}
  double seconds() const { return now() - begin_; }

private:
  double now() const {
    std::chrono::duration<double> real = std::chrono::steady_clock::now().time_since_epoch();
    return device_.hasBytes() ? real.count() : device_.seconds();
  }

  const Device &device_;
  double begin_;
};
} // namespace

namespace {
/// How fast a run is. Its first step plans and warms up: it counts only while it is the only one.
class Pace {
public:
  /// Notes a step that took `seconds`.
  void add(double seconds) {
    auto now = std::chrono::steady_clock::now();
    if (!count_++) {
      first_ = seconds;
      warm_ = now;
    }
    total_ += count_ > 1 ? seconds : 0;
    sinceWarm_ = now - warm_;
  }
  int64_t count() const { return count_; }
  /// Return the seconds of a step by itself, and with what is between two: evaluations, checkpoints.
  double perStep() const { return count_ > 1 ? total_ / double(count_ - 1) : first_; }
  double perRound() const { return count_ > 1 ? sinceWarm_.count() / double(count_ - 1) : first_; }

private:
  int64_t count_ = 0;
  double first_ = 0, total_ = 0;
  std::chrono::steady_clock::time_point warm_;
  std::chrono::duration<double> sinceWarm_{};
};
} // namespace

/// Returns the speed in what a step learns from, or in steps.
static std::string speedText(const TrainingSetup &setup, double seconds) {
  int64_t tokens = setup.tokensPerStep(), rows = setup.rowsPerStep();
  int64_t count = tokens ? tokens : rows ? rows : 1;
  char text[64];
  double speed = double(count) / std::max(seconds, 1e-9);
  std::snprintf(text, sizeof text, speed < 10 ? "%.2f %s/s" : "%.0f %s/s", speed, tokens ? "tokens" : rows ? "rows" : "steps");
  return text;
}

/// Prints a step on a device without bytes: there is no loss, and time is its own.
static void printVirtualStep(int64_t step, double seconds, uint64_t peakBytes, bool json) {
  if (json)
    std::printf("%s\n",
                nlohmann::ordered_json{{"step", step}, {"seconds", seconds}, {"peak_bytes", peakBytes}}.dump().c_str());
  else
    std::printf("step %lld simulated: %.3f ms, peak %.2f MiB\n", (long long)step, seconds * 1e3,
                double(peakBytes) / 1048576);
  std::fflush(stdout);
}

/// Prints what Selective Precision chooses for, and what it leaves as it is.
static void printUnits(const Session &session) {
  const Json report = session.services() ? session.services()->precisionReport() : Json();
  if (report.is_null() || report["units"].empty())
    return;
  auto eligible = std::ranges::count_if(report["units"], [](const Json &unit) { return unit["eligible"].get<bool>(); });
  std::fprintf(stderr, "selective precision: %zu units, %zu of them can change their form\n", report["units"].size(),
               size_t(eligible));
  for (const auto &[name, reason] : report["kept"].items())
    std::fprintf(stderr, "  stays  %-30s %s\n", name.c_str(), reason.get<std::string>().c_str());
}

static void refuseValues(const TrainOptions &options) {
  if (!options.data.empty() || !options.evalData.empty() || !options.inputs.empty() || !options.parameters.empty() ||
      !options.weights.empty() || !options.resume.empty() || !options.save.empty() || options.verifyInvariance || options.profile)
    throw Error(ErrorCode::InvalidArgument,
                "device \"" + options.device +
                    "\" computes nothing: there are no values to give it or to compare; leave out --data, --eval-data, "
                    "--input, --parameter, --weights, --resume, --save, --profile and --verify-invariance");
}

/// Refuses, before the first step, outputs that cannot be written, or would be written over.
static void checkOutputs(const TrainOptions &options) {
  const std::pair<const char *, const std::string *> outputs[] = {
      {"--save", &options.save}, {"--trace", &options.trace}, {"--report", &options.report}};
  for (size_t i = 0; i < std::size(outputs); ++i) {
    const auto &[flag, path] = outputs[i];
    if (path->empty())
      continue;
    try {
      path == &options.save ? checkCheckpointPath(*path) : OutputFile::check(*path);
    } catch (const Error &error) {
      throw error.within(flag);
    }
    // Devices and pipes may get several.
    auto fileOf = [](const std::string &name) {
      return name.empty() ? std::filesystem::path()
                          : std::filesystem::weakly_canonical(OutputFile::partialOf(checkpointFileOf(name)));
    };
    for (size_t k = 0; k < i; ++k)
      if (std::filesystem::path file = fileOf(*path); !file.empty() && fileOf(*outputs[k].second) == file)
        throw Error(ErrorCode::InvalidArgument, std::string(outputs[k].first) + " and " + flag + " both name " + *path +
                                                    "; give each a file of its own");
  }
}

namespace {
/// The files that a run leaves behind. One that cannot be written does not keep the others
/// from it; the first failure is thrown at the end.
class Remains {
public:
  template <typename Write> void write(const std::string &path, Write &&write) {
    if (path.empty())
      return;
    try {
      Interruption::Writing writing(checkpointFileOf(path));
      write(path);
    } catch (const Error &error) {
      if (failure_)
        std::fprintf(stderr, "segue-run: %s\n", error.what());
      else
        failure_ = error;
    }
  }
  void rethrow() const {
    if (failure_)
      throw *failure_;
  }
  /// Prints the failure, if something else has failed before.
  void print() const {
    if (failure_)
      std::fprintf(stderr, "segue-run: %s\n", failure_->what());
  }

private:
  std::optional<Error> failure_;
};
} // namespace

namespace {
/// The checkpoints of a run before its last step: sealed where states lie on a disk.
class MidwayCheckpoints {
public:
  MidwayCheckpoints(Session &session, std::string path, bool mayBeSealed, bool isFirst)
      : session_(session), path_(std::move(path)),
        areSealed_(mayBeSealed && session.canSeal() && !isCheckpointFolder(path_)), isFirst_(isFirst) {
    if (areSealed_)
      session_.sealAt(path_);
    takenBytes_ = areSealed_ ? session_.sealRoom() : 0;
  }

  bool areSealed() const { return areSealed_; }
  /// Returns the bytes of the disk that were taken for them.
  uint64_t takenBytes() const { return takenBytes_; }
  void write() {
    if (!areSealed_)
      return session_.save(path_);
    try {
      Session::SealFigures figures = session_.seal();
      ++count_;
      seconds_ += figures.seconds;
      bytes_ += figures.writtenBytes + figures.fileBytes;
      sealedBytes_ = figures.sealedBytes;
    } catch (const Error &error) {
      if (error.code() != ErrorCode::Unsupported)
        throw;
      std::fprintf(stderr, "segue-run: warning: checkpoints are written whole: %s\n", error.what());
      areSealed_ = false;
      write();
    }
  }
  /// Writes in the midst of a run, which goes on if that fails: a disk that is full may have room again.
  void writeOrGoOn();
  void print() const {
    if (count_)
      std::fprintf(stderr, "sealed checkpoints: %d of %.1f MiB on the disk, %.1f ms and %.2f MiB written for each\n",
                   count_, double(sealedBytes_) / (1 << 20), seconds_ * 1e3 / count_,
                   double(bytes_) / (1 << 20) / count_);
  }

private:
  Session &session_;
  std::string path_;
  bool areSealed_;
  /// False on the ranks but the first, which warns for all.
  bool isFirst_;
  int count_ = 0;
  double seconds_ = 0;
  uint64_t takenBytes_ = 0, bytes_ = 0, sealedBytes_ = 0;
};
} // namespace

void MidwayCheckpoints::writeOrGoOn() {
  try {
    Interruption::Writing writing(checkpointFileOf(path_));
    write();
  } catch (const Error &error) {
    // Where a rank is gone, the next meeting ends the run.
    if (error.code() != ErrorCode::IoFailed && error.code() != ErrorCode::DeviceOom &&
        error.code() != ErrorCode::RankFailed)
      throw;
    if (!isFirst_) // which is told by the first
      return;
    std::fprintf(stderr, "segue-run: warning: no checkpoint of step %lld: %s; training goes on, and the checkpoint "
                         "before it, if there is one, stays\n",
                 (long long)session_.stepCount(), error.what());
  }
}

/// Says at the head of the page what trains, as the command line has it.
static void describe(RunReport &report, const Session &session, const TrainOptions &options) {
  std::string model;
  for (const std::string &file : options.files)
    model += (model.empty() ? "" : ", ") + std::filesystem::path(file).stem().string();
  Json settings{{"learning rate", options.lr.front()}};
  if (options.clip > 0)
    settings["gradient norm clipped at"] = options.clip;
  if (options.accumulate > 1)
    settings["micro-batches per step"] = options.accumulate;
  if (options.budget)
    settings["budget in bytes"] = options.budget;
  if (!options.ranks.empty())
    settings["ranks"] = options.strategy;
  report.describe(model, session.parameters(), std::move(settings));
}

/// A figure of this process in bytes, "VmRSS" or "VmHWM"; 0 where the system does not say.
static uint64_t processBytes(std::string_view figure) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(figure) && line.size() > figure.size() && line[figure.size()] == ':')
      return std::strtoull(line.c_str() + figure.size() + 1, nullptr, 10) << 10;
  return 0;
}

/// Prints what the run took of its budget, of the machine's memory and of the disk; `sealBytes` there for sealed
/// checkpoints.
static void printMemory(Device &device, uint64_t budget, uint64_t bytesBefore, uint64_t sealBytes) {
  auto mib = [](uint64_t bytes) { return double(bytes) / (1 << 20); };
  const DeviceMemory &memory = device.memory();
  std::fprintf(stderr, "memory: %.1f of %.1f MiB", mib(memory.peakBytes(Space::DeviceDram)), mib(budget));
  if (device.diskLink())
    std::fprintf(stderr, "; of the host %.1f of %.1f MiB", mib(memory.peakBytes(Space::HostPinned)),
                 mib(memory.budget(Space::HostPinned)));
  if (device.hasSpace(Space::Disk))
    std::fprintf(stderr, "; on the disk %.1f MiB", mib(memory.peakBytes(Space::Disk)));
  if (sealBytes)
    std::fprintf(stderr, " and %.1f for sealed checkpoints", mib(sealBytes));
  if (uint64_t most = processBytes("VmHWM"))
    std::fprintf(stderr, "; the process %.1f MiB, %.1f of them before the run", mib(most), mib(bytesBefore));
  std::fprintf(stderr, "\n");
}

/// Returns what this rank does with others, and leaves to rank 0 what there is one of.
static std::shared_ptr<Collectives> joinRanks(const DeviceRef &device, TrainOptions &options) {
  if (options.ranks.empty())
    return nullptr;
  if (!device->hasBytes() || options.verifyInvariance)
    throw Error(ErrorCode::InvalidArgument, "--ranks trains on values, once: leave out --verify-invariance, and give a "
                                            "device that computes");
  std::shared_ptr<Transport> transport = mpiTransport(double(options.ranksTimeout));
  MessageOptions messages{.collectives = {.addsInOrder = options.addsInOrder},
                          .way = parseMessageWay(options.messages),
                          .isPipeline = parseSharding(options.strategy) == Sharding::Modules};
  if (transport->rank() == 0)
    messages.log = [](const std::string &text) { std::fprintf(stderr, "segue-run: %s\n", text.c_str()); };
  std::shared_ptr<Collectives> ranks = joinRanks(device, transport, std::move(messages));
  if (ranks->rank() > 0) {
    options.trace = options.report = "";
    options.profile = false;
    // What has a part of each rank, in the file or beside it, all save.
    if (parseSharding(options.strategy) == Sharding::None && !isCheckpointFolder(options.save))
      options.save = "";
  }
  return ranks;
}

/// Returns the signal that has come to any rank, at a place where all come by; 0 for none.
static int signalOf(const Interruption &interruption, Collectives *ranks) {
  int signal = interruption.signal();
  if (!ranks)
    return signal;
  for (const std::string &told : ranks->exchange("going on", std::to_string(signal)))
    signal = std::max(signal, std::stoi(told));
  return signal;
}

namespace {
/// The ranks of a run, and whether they know how it goes on for this one: that its step has failed, or that all is over.
struct Together {
  std::shared_ptr<Collectives> ranks;
  bool know = false;
};
} // namespace

static int trainAmong(Together &together, TrainOptions options) {
  uint64_t bytesBefore = processBytes("VmRSS");
  std::optional<Config> config;
  if (!options.config.empty())
    config = Config::load(options.config);
  std::optional<RunBudget> budget = config ? RunBudget::of(*config) : std::nullopt;
  if (budget && options.budget)
    throw Error(ErrorCode::InvalidArgument, options.config + " says in memory.tiers what --budget says; leave one out");
  if (options.budget)
    budget = RunBudget{options.budget, options.spillDir, options.spillCapacity};
  if (budget)
    options.device = budget->device(options.device);
  DeviceRef device = Device::open(options.device);
  if (!device->hasBytes())
    refuseValues(options);
  together.ranks = joinRanks(device, options);
  const std::shared_ptr<Collectives> &ranks = together.ranks;
  bool isFirst = !ranks || ranks->rank() == 0;
  if (isFirst)
    checkOutputs(options);
  if (options.verifyInvariance) {
    device = nullptr;
    return verifyInvariance(options);
  }
  std::optional<StepTrace> trace;
  if (!options.trace.empty())
    trace.emplace(device, options.report.empty() ? StepTrace::Memory::Totals : StepTrace::Memory::ByRole);
  ProgressLine progress(isFirst);
  SessionOptions given;
  given.events = trace ? &*trace : nullptr;
  given.recordEvents = options.recordEvents;
  if (isFirst)
    given.log = [&progress](const std::string &text) {
      progress.erase();
      std::fprintf(stderr, "segue-run: %s\n", text.c_str());
    };
  given.collectives = ranks;
  given.sharding = parseSharding(options.strategy);
  given.stages = options.stages;
  if (!options.stages.empty() && given.sharding != Sharding::Modules)
    throw Error(ErrorCode::InvalidArgument,
                "--stages says which files the ranks of a pipeline have; give --strategy pipeline");
  given.config = budget ? budget->config(config) : config;
  std::optional<RunReport> report;
  if (!options.report.empty())
    given.events = &report.emplace(device, given.config ? &*given.config : nullptr, trace ? &*trace : nullptr);
  if (report)
    report->keepAt(options.report);
  TrainingSetup setup(device, options, openTrainingData(options), std::move(given));
  Session &session = setup.session;
  if (report)
    describe(*report, session, options);

  std::vector<RateSchedule> schedules = schedulesOf(options, session.stepCount());
  std::optional<HeldOut> heldOut;
  if (!options.evalData.empty())
    heldOut.emplace(session, options, setup.fixed(), ranks);
  printUnits(session);
  if (int64_t samples = session.calibrationSamples())
    session.calibrate(setup.upcoming(samples));

  MidwayCheckpoints midway(session, options.save, options.saveEvery > 0 && !options.save.empty(), isFirst);
  Interruption interruption;
  auto leave = [&](bool isWhole) {
    progress.erase();
    Remains remains; // the checkpoint first: nothing else is as hard to get again
    // An interrupted run may have little time, and goes on from here.
    if (isWhole)
      remains.write(options.save, [&](const std::string &path) {
        interruption.signal() && midway.areSealed() ? midway.write() : session.save(path);
      });
    if (trace)
      remains.write(options.trace, [&](const std::string &path) {
        trace->write(path);
        if (std::optional<uint64_t> steps = trace->endedAfter())
          std::fprintf(stderr,
                       "segue-run: %s: has the first %llu steps; more would take more than the 50 MiB of memory of a "
                       "trace\n",
                       path.c_str(), (unsigned long long)*steps);
      });
    if (report)
      remains.write(options.report, [&](const std::string &path) {
        if (session.services())
          session.services()->finishRecords(); // the page is made of them, too
        report->write(path);
      });
    return remains;
  };
  // Between two steps all is whole, whatever fails.
  auto betweenSteps = [&](auto &&work) {
    try {
      return work();
    } catch (const Error &) {
      if (!ranks) // which would save together
        leave(/*isWhole=*/true).print();
      throw;
    }
  };
  auto evaluate = [&] {
    std::optional<double> loss =
        betweenSteps([&] { return heldOut->meanLoss(session, [&] { return interruption.signal() != 0; }); });
    if (report && loss)
      report->addEvaluation(session.stepCount(), loss);
    progress.eraseForOutput();
    if (loss && isFirst)
      printEvaluation(session.stepCount(), *loss, options.json);
  };
  int64_t steps = options.until ? std::max<int64_t>(0, options.until - session.stepCount()) : options.steps;
  int64_t last = session.stepCount() + steps;
  Pace pace;
  std::optional<StepProfiler> profiler;
  for (int64_t i = 0; i < steps && !signalOf(interruption, ranks.get()); ++i) {
    std::vector<TensorMap> batches = betweenSteps([&] { return setup.batches(); });
    // The first step plans and warms up: it counts only if it is the only one.
    if (options.profile && i == std::min<int64_t>(1, steps - 1))
      profiler.emplace(device);
    if (!device->hasBytes())
      device->memory().resetPeak();
    std::vector<double> rates;
    for (const RateSchedule &schedule : schedules)
      rates.push_back(schedule(session.stepCount()));
    Clock clock(*device);
    StepResult result;
    try {
      result = session.step(batches, rates);
    } catch (const Error &error) {
      together.know = true;
      if (report)
        report->addFailure(error.what());
      leave(/*isWhole=*/false).print(); // of what came before the failure
      throw;
    }
    if (!device->hasBytes())
      device->drain();
    double seconds = clock.seconds();
    pace.add(seconds);
    if (profiler)
      profiler->add(seconds);
    if (report)
      report->addStep(result, seconds);
    progress.eraseForOutput();
    if (device->hasBytes() && isFirst)
      printStep(result, rates, seconds, options.json);
    else if (isFirst)
      printVirtualStep(result.step, seconds, device->memory().peakBytes(Space::DeviceDram), options.json);
    progress.draw({.step = result.step,
                   .steps = last,
                   .secondsLeft = pace.perRound() * double(last - result.step),
                   .speed = speedText(setup, pace.perStep()),
                   .loss = result.loss,
                   .hasLoss = device->hasBytes(),
                   .peakBytes = device->memory().peakBytes(Space::DeviceDram),
                   .capBytes = device->memory().budget(Space::DeviceDram)});
    bool isLast = i + 1 == steps;
    bool isToEvaluate = heldOut && (isLast || (options.evalEvery && result.step % options.evalEvery == 0)); // on every rank
    if (isToEvaluate && !signalOf(interruption, ranks.get()))
      evaluate();
    bool isDue = options.saveEvery && (i + 1) % options.saveEvery == 0 && !isLast; // on every rank
    if (isDue && !signalOf(interruption, ranks.get()) && !options.save.empty()) {
      progress.erase(); // for a warning
      midway.writeOrGoOn();
    }
  }
  progress.erase();
  double perStep = pace.count() > 1 ? pace.perStep() : 0;
  if (ranks) {
    try {
      session.finishUpdates(); // a rank that saves nothing would never hear that its last one failed
    } catch (const Error &error) {
      if (report)
        report->addFailure(error.what());
      leave(/*isWhole=*/false).print();
      throw;
    }
    std::vector<Json> told;
    for (const std::string &line : ranks->exchange("figures of ranks", rankFigures(*device, *ranks, perStep).dump()))
      told.push_back(Json::parse(line));
    if (report)
      report->setRanks(std::move(told));
  }
  together.know = true;
  if (pace.count() > 1 && isFirst) {
    std::fprintf(stderr, "%.3f ms per step", perStep * 1e3);
    if (int64_t tokens = setup.tokensPerStep())
      std::fprintf(stderr, ", %.0f tokens/s", double(tokens) / perStep);
    std::fprintf(stderr, "\n");
  }
  if (profiler)
    profiler->print();
  leave(/*isWhole=*/true).rethrow();
  midway.print();
  if (budget && isFirst)
    printMemory(*device, budget->bytes, bytesBefore, midway.takenBytes());
  return interruption.status(Done);
}

int train(const TrainOptions &options) {
  Together together;
  try {
    return trainAmong(together, options);
  } catch (const std::exception &error) {
    if (together.ranks && !together.know) // they would wait for this one
      together.ranks->abandon(error.what());
    throw;
  }
}

} // namespace segue::tool
