//===- WeightRecord.cpp - what a step of streaming was like ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "WeightBlocks.h"
#include "../../JsonFields.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr size_t rollingSteps = 100;
/// The MiB by which memory may change between the halves of the window and still be stable.
static constexpr double trendMiB = 50;

void WeightStagehand::addStall(double milliseconds) { counts_->stallMs += milliseconds; }

void WeightStagehand::inTime(std::string_view id) {
  if (find(id); counts_->late == 0)
    throw Error(ErrorCode::StateTransition,
                "weight stagehand: block \"" + std::string(id) + "\" was in time, and none of the step was late");
  --counts_->late;
  --counts_->stalls;
  ++counts_->hits;
}

std::string WeightStagehand::addPoolWait(std::string_view id, double milliseconds) {
  return slabs_.addWait(find(id).id, milliseconds);
}

Json WeightStagehand::makeRecord(bool aborted) const {
  const Counts &counts = *counts_;
  return jsonOf({{"step", step_},
                 {"h2d_bytes", counts.h2dBytes},
                 {"d2h_bytes", counts.d2hBytes},
                 {"copy_time_ms", counts.copyMs},
                 {"compute_time_ms", counts.computeMs},
                 {"stall_time_ms", counts.stallMs},
                 {"stall_count", counts.stalls},
                 {"evictions", counts.evictions},
                 {"prefetch_hits", counts.hits},
                 {"prefetch_misses", counts.misses},
                 {"vram_used_mb", toMiB(vramBytes_)},
                 {"vram_reserved_mb", toMiB(std::max(reservedBytes_, vramBytes_))},
                 {"host_pool_free", slabs_.free()},
                 {"host_pool_in_use", slabs_.inUse()},
                 {"dtype_promotions", counts.promotions},
                 {"nan_count", counts.nans},
                 {"inf_count", counts.infs},
                 {"prefetch_late", counts.late},
                 {"loads", counts.loads},
                 {"reload_ratio", counts.blocksUsed ? double(counts.loads) / double(counts.blocksUsed) : 0.0},
                 {"file_read_ms", counts.fileReadMs},
                 {"denied_speculative", counts.deniedSpeculative},
                 {"save_back_bytes", counts.saveBackBytes},
                 {"blocks_rescued", counts.rescued},
                 {"blocks_lent", counts.lent},
                 {"aborted", aborted}});
}

void WeightStagehand::closeStep(bool aborted) {
  lastRecord_ = std::make_shared<const Json>(makeRecord(aborted));
  history_.push_back(
      {counts_->hits, counts_->late, counts_->misses, counts_->stallMs, toMiB(vramBytes_)});
  if (history_.size() > rollingSteps)
    history_.pop_front();
  for (Block &block : blocks_) {
    if (block.stepRuns && !aborted)
      block.computeMs = block.stepComputeMs / double(block.stepRuns);
    block.stepComputeMs = 0;
    block.stepRuns = 0;
  }
  inStep_ = false;
  dropPending();
}

/// Drops the loads that nobody needs any more.
void WeightStagehand::dropPending() {
  for (Block *block : pending_) {
    block->isPending = false;
    if (slabs_.holds(block->id))
      slabs_.release(block->id);
    else
      slabs_.cancel(block->id);
  }
  pending_.clear();
}

void WeightStagehand::abortStep() {
  closeStep(/*aborted=*/true);
  abandonUses();
}

void WeightStagehand::abandonUses() {
  dropPending();
  for (Block &block : blocks_)
    block.uses = 0;
}

WeightActions WeightStagehand::endStep() {
  for (const Block &block : blocks_)
    if (block.uses > 0)
      throw Error(ErrorCode::StateTransition, "weight stagehand: step " + std::to_string(step_) +
                                                  " ends while block \"" + block.id + "\" is in use");
  closeStep(/*aborted=*/false);
  replan();
  WeightActions actions;
  relievePressure(actions);
  return actions;
}

Json WeightStagehand::telemetry() const { return lastRecord_ ? *lastRecord_ : Json::object(); }

static double shareOf(int64_t part, int64_t whole) { return whole ? double(part) / double(whole) : 1.0; }

Json WeightStagehand::rolling() const {
  int64_t hits = 0, uses = 0;
  double stallSum = 0, stallMax = 0, halves[2] = {};
  size_t half = history_.size() / 2;
  for (size_t i = 0; i < history_.size(); ++i) {
    const StepSummary &step = history_[i];
    hits += step.hits;
    uses += step.hits + step.late + step.misses;
    stallSum += step.stallMs;
    stallMax = std::max(stallMax, step.stallMs);
    halves[i >= half] += step.vramMiB;
  }
  const char *trend = "stable";
  if (history_.size() >= 3) {
    double change = halves[1] / double(history_.size() - half) - halves[0] / double(half);
    trend = change > trendMiB ? "growing" : change < -trendMiB ? "shrinking" : "stable";
  }
  return jsonOf({{"steps", history_.size()},
                 {"hit_rate", shareOf(hits, uses)},
                 {"stall_mean_ms", history_.empty() ? 0.0 : stallSum / double(history_.size())},
                 {"stall_max_ms", stallMax},
                 {"vram_trend", trend}});
}

std::string WeightStagehand::logLine() const {
  if (!lastRecord_ || step_ % config_.telemetryIntervalSteps != 0)
    return "";
  const Json &record = *lastRecord_;
  char line[160];
  std::snprintf(line, sizeof(line),
                "[STAGEHAND step=%lld] hit=%.1f%% stall=%.1fms evict=%lld vram=%.1fG pool=%lld/%lld", (long long)step_,
                100 * rolling()["hit_rate"].get<double>(), record["stall_time_ms"].get<double>(),
                record["evictions"].get<long long>(), record["vram_used_mb"].get<double>() / 1024,
                record["host_pool_free"].get<long long>(), (long long)slabs_.slabs());
  return line;
}

} // namespace segue::inline runtime
