//===- VerifyInvariance.cpp - segue-run train --verify-invariance ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A budget never changes a result: trains the user's modules without services,
// then with each combination of services under caps that are shares of the peak
// of the first run, each on a device of its own, and compares losses and
// gradients of every step, to the bit; where backward updates parameters and gives no
// gradients, the parameters in their place. Both are kept as 64-bit hashes.
//
// A cap below what must be on the device at once (optimizer state, temporaries of
// one program, and the parameters unless they are streamed) cannot be kept to: such
// a run is refused before its first step with BUDGET_INFEASIBLE, and the smallest
// budget that is named there is tried in its turn. A run that ends for want of
// memory otherwise, or does not run within what was named, is a difference.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "ExitStatus.h"
#include "TrainingSetup.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

namespace {
/// The results of a step.
struct StepBits {
  uint64_t loss = 0;
  /// The gradients of trained parameters by session key, or with `isUpdated` their new values.
  std::map<std::string, uint64_t> hashes;
  bool isUpdated = false;
};

struct RunBits {
  std::vector<StepBits> steps;
  /// The budget of a run that was refused its cap and had this one; 0 for other runs.
  uint64_t namedBytes = 0;
  /// The bytes in use before the first step, and the most.
  uint64_t restBytes = 0, peakBytes = 0;
  /// At most below the device, where that is more than one tier.
  uint64_t hostPeakBytes = 0, diskPeakBytes = 0;
  int64_t spilled = 0, restored = 0, recomputed = 0, loads = 0;
};

/// The services of a run, as the config has them.
struct Combination {
  std::string name;
  Json activation;
  Json conductor;
  bool streamsWeights = false;
};
} // namespace

static uint64_t hashOf(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return std::hash<std::string_view>()({reinterpret_cast<const char *>(host.bytes()), host.desc().spanBytes()});
}

/// Runs once. `capBytes` is all memory of the device, as whoever has a cap has a card of
/// that size; 0 for the device as it is given.
static RunBits runOnce(const TrainOptions &options, TrainingTextRef text, const Config &config,
                       uint64_t capBytes = 0) {
  DeviceRef device = Device::open(capBytes ? withDram(options.device, std::to_string(capBytes)) : options.device);
  SessionOptions given;
  given.config = config;
  TrainingSetup setup(device, options, text, std::move(given));
  Session &session = setup.session;
  RunBits bits;
  device->drain();
  bits.restBytes = device->memory().liveBytes(Space::DeviceDram);
  device->memory().resetPeak();
  for (int64_t i = 0; i < options.steps; ++i) {
    StepBits &step = bits.steps.emplace_back();
    step.isUpdated = std::ranges::any_of(session.modules(), &Module::updatesInBackward);
    double loss = 0;
    if (step.isUpdated)
      loss = session.step(setup.batches(), options.lr).loss;
    else
      for (const TensorMap &batch : setup.batches())
        session.forwardBackward(batch);
    for (const ParameterInfo &info : session.parameters())
      if (info.trained)
        step.hashes[info.key] = hashOf(step.isUpdated ? session.parameter(info.key) : session.gradient(info.key));
    if (!step.isUpdated)
      loss = session.optimize(options.lr).loss;
    step.loss = std::bit_cast<uint64_t>(loss);
    if (const MemoryServices *services = session.services())
      if (Json record = services->activationRecord(); record.is_object()) {
        bits.spilled += int64_t(record["activations_spilled"]);
        bits.restored += int64_t(record["activations_restored"]);
        bits.recomputed += int64_t(record["activations_recomputed"]);
      }
    if (const MemoryServices *services = session.services(); services && services->weights())
      bits.loads += int64_t(services->weightRecord()["loads"]);
  }
  bits.peakBytes = device->memory().peakBytes(Space::DeviceDram);
  if (device->diskLink()) {
    bits.hostPeakBytes = device->memory().peakBytes(Space::HostPinned);
    bits.diskPeakBytes = device->memory().peakBytes(Space::Disk);
  }
  return bits;
}

/// The smallest budget that a refusal before the first step names.
static uint64_t smallestBudget(const Error &error) {
  static constexpr std::string_view before = "the smallest budget is ";
  std::string_view text = error.what();
  size_t at = text.find(before);
  return at == text.npos ? 0 : std::stoull(std::string(text.substr(at + before.size())));
}

/// The first thing that differs, or nothing.
static std::string difference(const RunBits &reference, const RunBits &other) {
  auto inHex = [](uint64_t bits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.17g", std::bit_cast<double>(bits));
    return std::string(text);
  };
  for (size_t i = 0; i < reference.steps.size(); ++i) {
    const StepBits &a = reference.steps[i], &b = other.steps[i];
    std::string step = "step " + std::to_string(i + 1) + ", ";
    for (const auto &[key, hash] : a.hashes)
      if (auto it = b.hashes.find(key); it == b.hashes.end() || it->second != hash)
        return step + (a.isUpdated ? "parameter \"" : "gradient of \"") + key + "\"";
    if (a.loss != b.loss)
      return step + "loss " + inHex(b.loss) + ", " + inHex(a.loss) + " without services";
  }
  return "";
}

static uint64_t capacityOf(const std::string &spec, Space wanted) {
  DeviceRef device = Device::open(spec);
  for (const SpaceInfo &info : device->spaces())
    if (info.space == wanted)
      return info.capacityBytes;
  return 0;
}

static std::vector<Combination> combinations(uint64_t pinnedBytes) {
  // A quarter of page-locked memory at first, growing to half.
  int64_t slabs = std::clamp<int64_t>(int64_t(pinnedBytes >> 22), 1, 256);
  Json spill = {{"enabled", true},
                {"pinned_pool_classes_mb", {1, 4, 16, 64, 256}},
                {"slabs_per_class", {slabs, 0, 0, 0, 0}},
                {"pinned_pool_max_mb", 2 * slabs},
                {"min_spill_bytes", 0},
                {"predictive_restore", false},
                {"telemetry_enabled", false}};
  Json recompute = spill;
  recompute["recompute_threshold_bytes"] = int64_t(1) << 50;
  Json all = spill;
  all["recompute_threshold_bytes"] = 1 << 20;
  all["predictive_restore"] = true;
  all["debug_checksums"] = true;
  all["max_inflight_d2h"] = all["max_inflight_h2d"] = 2;
  Json planned = {{"enabled", true}, {"mode", "planned"}, {"telemetry_enabled", false}};
  Json conductor = {{"enabled", true}, {"telemetry_enabled", false}};
  Json off = {{"enabled", false}};
  return {{"none", off, off},
          {"spill", spill, conductor},
          {"recompute", recompute, conductor},
          {"stream", off, conductor, /*streamsWeights=*/true},
          {"all", all, conductor, /*streamsWeights=*/true},
          {"planned", planned, conductor},
          {"planned, streamed", planned, conductor, /*streamsWeights=*/true}};
}

/// Makes a config with `capBytes` for all; watermarks of weights stay at their parts of
/// `markBytes`. Spilling begins at `highMiB`, and does not end.
static Config makeConfig(const Combination &combination, uint64_t capBytes, uint64_t markBytes, double highMiB) {
  double cap = double(capBytes) / bytesPerMiB, mark = double(markBytes) / bytesPerMiB;
  Json activation = combination.activation, conductor = combination.conductor;
  if (activation["enabled"] && !activation.contains("mode")) {
    activation["vram_high_watermark_mb"] = highMiB;
    activation["vram_low_watermark_mb"] = 0;
  }
  if (conductor["enabled"])
    conductor["vram_hard_cap_mb"] = conductor["vram_soft_cap_mb"] = cap;
  Json stagehand = {{"activation_stagehand", activation}, {"conductor_config", conductor}};
  if (combination.streamsWeights)
    stagehand.update({{"stagehand_enabled", true},
                      {"telemetry_enabled", false},
                      {"vram_high_watermark_mb", mark},
                      {"vram_low_watermark_mb", mark * 0.75}});
  Json root = {{"memory", {{"stagehand", stagehand}}}};
  return Config::parse(root.dump(), "--verify-invariance");
}

/// Runs under the cap or, if that is refused, under the smallest budget that is named
/// instead, both on a device of just as much.
static RunBits runOrRefused(const TrainOptions &options, TrainingTextRef text, const Combination &combination,
                            uint64_t capBytes, double highMiB) {
  uint64_t named = 0;
  try {
    return runOnce(options, text, makeConfig(combination, capBytes, capBytes, highMiB), capBytes);
  } catch (const Error &error) {
    if (error.code() != ErrorCode::BudgetInfeasible)
      throw;
    named = smallestBudget(error);
    if (named <= capBytes)
      throw Error(ErrorCode::InvalidArgument, std::string("no larger budget was named: ") + error.what());
  }
  RunBits bits = runOnce(options, text, makeConfig(combination, named, capBytes, highMiB), named);
  bits.namedBytes = named;
  return bits;
}

/// Keeps on the device what fits; if that is too much, nothing that may leave.
static RunBits runCapped(const TrainOptions &options, TrainingTextRef text, const Combination &combination,
                         uint64_t restBytes, uint64_t capBytes) {
  double cap = double(capBytes) / bytesPerMiB, rest = double(restBytes) / bytesPerMiB;
  bool hasMarks = combination.activation["enabled"] && !combination.activation.contains("mode");
  if (cap > rest || !hasMarks)
    if (RunBits bits = runOrRefused(options, text, combination, capBytes, (rest + cap) / 2);
        !bits.namedBytes || !hasMarks)
      return bits;
  return runOrRefused(options, text, combination, capBytes, std::min(cap, 1 / bytesPerMiB));
}

int verifyInvariance(const TrainOptions &options) {
  for (const std::string &file : options.files)
    if (file == "-")
      throw Error(ErrorCode::InvalidArgument, "--verify-invariance loads modules several times; give files, not -");
  TrainingTextRef data = openTrainingData(options);
  RunBits reference = runOnce(options, data, Config());
  std::printf("without services: %lld steps, peak %.3f MiB, %.3f MiB of it before the first step\n",
              (long long)options.steps, double(reference.peakBytes) / bytesPerMiB,
              double(reference.restBytes) / bytesPerMiB);
  int differences = 0;
  auto report = [&](const std::string &name, uint64_t capBytes, auto run) {
    std::printf("%s: ", name.c_str());
    std::fflush(stdout);
    try {
      RunBits bits = run();
      std::string what = difference(reference, bits);
      capBytes = std::max(capBytes, bits.namedBytes);
      if (what.empty() && capBytes && bits.peakBytes > capBytes)
        what = "the peak, " + std::to_string(bits.peakBytes) + " bytes, is above the cap";
      differences += !what.empty();
      if (bits.namedBytes)
        std::printf("refused; within the %.3f MiB that are named ", double(bits.namedBytes) / bytesPerMiB);
      std::printf("%s%s; %lld spilled, %lld restored, %lld recomputed, %lld blocks of weights loaded, peak %.3f MiB",
                  what.empty() ? "equal to the bit" : "DIFFERS: ", what.c_str(), (long long)bits.spilled,
                  (long long)bits.restored, (long long)bits.recomputed, (long long)bits.loads,
                  double(bits.peakBytes) / bytesPerMiB);
      if (bits.hostPeakBytes)
        std::printf("; the host %.3f MiB, the disk %.3f MiB", double(bits.hostPeakBytes) / bytesPerMiB,
                    double(bits.diskPeakBytes) / bytesPerMiB);
      std::printf("\n");
    } catch (const Error &error) {
      std::string what = error.what();
      std::printf("ENDS: %s\n", what.substr(0, what.find('\n')).c_str());
      ++differences;
    }
    std::fflush(stdout);
  };
  if (!options.config.empty())
    report(options.config, 0, [&] { return runOnce(options, data, Config::load(options.config)); });
  for (const Combination &combination : combinations(capacityOf(options.device, Space::HostPinned)))
    for (int percent : options.caps) {
      uint64_t cap = reference.peakBytes * uint64_t(percent) / 100;
      char name[96];
      std::snprintf(name, sizeof name, "%s, cap %d %% (%.3f MiB)", combination.name.c_str(), percent,
                    double(cap) / bytesPerMiB);
      report(name, cap, [&] { return runCapped(options, data, combination, reference.restBytes, cap); });
    }
  std::printf(differences ? "%d runs differ\n" : "no run differs\n", differences);
  return differences ? Failed : Done;
}

} // namespace segue::tool
