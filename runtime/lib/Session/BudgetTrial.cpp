//===- BudgetTrial.cpp - whether a budget lets a session train ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What is tried and found too small is not always smaller than what does, as choices
// depend on the budget; so what is named has been tried itself.
//
//===----------------------------------------------------------------------===//

#include "BudgetTrial.h"
#include "OwnDevice.h"
#include "SilentConfig.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include "segue/runtime/Session/StepTwin.h"
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The number of steps of a try, after which everything is there that services and programs keep for later.
static constexpr int triedSteps = 3;
/// The search for the smallest ends where it has taken so long.
static constexpr auto mostTime = std::chrono::seconds(10);
/// The bytes of which budgets that are named are multiples.
static constexpr uint64_t grainBytes = 256;

/// Returns the bytes of a budget that are not counted on. With services, what alignment
/// leaves between blocks depends on their order, and that on when copies end: it is a part
/// in 256 but no less than a dozen small blocks may lose. Without services, every step is
/// the one that was tried.
static uint64_t lostBytes(uint64_t ownBytes) {
  return std::clamp<uint64_t>(ownBytes / 256, std::min<uint64_t>(1024, ownBytes / 16), 2048);
}

/// The owner, in the books of the twin, of what the session does not hold.
static constexpr std::string_view othersName = "(others)";

BudgetTrial::BudgetTrial(const StepToPlan &step, uint64_t others, StatesLeave states)
    : step_(step), others_(others), states_(states), spec_(virtualTwin(*step.device)) {}

std::optional<Config> BudgetTrial::configFor(uint64_t budgetBytes, States states) const {
  if (!step_.options.config)
    return std::nullopt;
  double budget = toMiB(int64_t(budgetBytes));
  auto lower = [&](Json &section, const char *key) {
    if (section.contains(key) && section[key].is_number())
      section[key] = std::min(double(section[key]), budget);
  };
  return silentConfig(*step_.options.config, [&](Json &stagehand) {
    if (states_ != StatesLeave::Never) {
      stagehand["state_stagehand"]["mode"] = states == States::Away ? "on" : "off";
      stagehand["state_stagehand"]["telemetry_enabled"] = false;
    }
    for (const char *service : {"activation_stagehand", "state_stagehand"}) {
      if (!stagehand.contains(service))
        continue;
      Json &section = stagehand[service];
      lower(section, "vram_high_watermark_mb");
      // The low watermark is below the budget, too, but not as high: that would be no pair of watermarks.
      if (Json &low = section["vram_low_watermark_mb"]; low.is_number() && double(low) >= budget)
        low = 0.9 * budget;
      else if (low.is_null())
        section.erase("vram_low_watermark_mb");
    }
    if (!stagehand.contains("conductor_config"))
      return;
    Json &conductor = stagehand["conductor_config"];
    auto given = [&](const char *key) { return conductor.contains(key) && conductor[key].is_number(); };
    // A config with both caps alike means one cap.
    if (given("vram_soft_cap_mb") && given("vram_hard_cap_mb") &&
        conductor["vram_soft_cap_mb"] >= conductor["vram_hard_cap_mb"])
      conductor["vram_soft_cap_mb"] = budget;
    conductor["vram_hard_cap_mb"] = budget;
    lower(conductor, "vram_soft_cap_mb");
  });
}

bool BudgetTrial::trains(uint64_t budgetBytes) {
  return (states_ != StatesLeave::Never && trains(budgetBytes, States::Away)) ||
         (states_ != StatesLeave::Always && trains(budgetBytes, States::Stay));
}

bool BudgetTrial::trains(uint64_t budgetBytes, States states) {
  uint64_t lost = step_.options.config ? lostBytes(budgetBytes - std::min(budgetBytes, others_)) : 0;
  budgetBytes -= lost;
  auto [modules, same, sizes] = twinParts(step_);
  same.openSlab = step_.options.openSlab;
  same.aliases = step_.options.aliases;
  same.warn = [](const std::string &) {}; // the session itself says it
  same.isRehearsal = true;
  OwnDevice own(withDram(spec_, std::to_string(std::max<uint64_t>(budgetBytes, 1))));
  const DeviceRef &device = *own;
  try {
    // Watermarks and shares are of all that there is.
    std::shared_ptr<Storage> others;
    if (others_)
      others = Storage::allocate(device, Space::DeviceDram, others_, /*alignment=*/1,
                                 device->memory().intern({.value = std::string(othersName)}));
    same.config = configFor(budgetBytes, states);
    takeRanks(same, device);
    Session session(device, std::move(modules), std::move(same));
    session.allocateParameters();
    BatchesToPlay played = addTwinBatches(session, sizes, step_.options.wires);
    StepResult last; // whoever takes a step may keep what it gave until the next has ended
    for (int step = 0; step < triedSteps; ++step)
      last = session.step(played.batches, LearningRates::same(1e-3, session.rateCount()));
    peakBytes_ = device->memory().peakBytes(Space::DeviceDram) + lost;
    return true;
  } catch (const Error &error) {
    bool isTooSmall = error.code() == ErrorCode::DeviceOom || error.code() == ErrorCode::BudgetInfeasible ||
                      std::string_view(error.what()).find("DEVICE_OOM") != std::string_view::npos;
    if (!isTooSmall)
      throw;
    if (states == States::Stay && states_ != StatesLeave::Never)
      return false; // what is said is of the step that needs less
    lastError_ = error;
    if (auto *report = error.details<OutOfMemory::Report>()) {
      holders_ = report->holders;
      std::erase_if(holders_, [](const MemoryHolder &holder) { return holder.owner.value == othersName; });
    }
    return false;
  }
}

std::optional<uint64_t> BudgetTrial::smallest(uint64_t tooSmall, uint64_t enough) {
  auto until = std::chrono::steady_clock::now() + mostTime;
  uint64_t low = tooSmall / grainBytes, high = std::max(low, (enough + lostBytes(enough)) / grainBytes) + 1;
  for (int more = 0; !trains(high * grainBytes); ++more) {
    if (more == 3)
      return std::nullopt;
    low = high;
    high += high / 4;
  }
  while (high - low > std::max<uint64_t>(high / 200, 1) && std::chrono::steady_clock::now() < until) {
    uint64_t middle = low + (high - low) / 2;
    (trains(middle * grainBytes) ? high : low) = middle;
  }
  return high * grainBytes;
}

} // namespace segue::inline runtime
