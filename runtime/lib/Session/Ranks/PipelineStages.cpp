//===- PipelineStages.cpp - which rank runs which modules -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PipelineStages.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/ProgramCosts.h"
#include <algorithm>
#include <limits>
#include <numeric>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Stages
//===----------------------------------------------------------------------===//

/// Returns what forward and backward of a module cost: a byte of the device's memory takes as long as ten operations on
/// most devices, within a factor of three or so.
static double costOf(const Module &module) {
  constexpr double flopsPerByte = 10;
  double cost = 0;
  for (const char *name : {"forward", "backward"})
    if (const Program *program = module.find(name))
      for (const CommandCost &each : commandCosts(*program))
        cost += std::max(double(each.flops), flopsPerByte * double(each.bytes));
  return cost;
}

std::vector<size_t> cutEvenly(std::span<const double> costs, size_t runs) {
  // best[r][n]: the greatest sum of a run where the first n costs are cut into r + 1 runs, and where the last one
  // begins.
  size_t count = costs.size();
  std::vector<double> sums(count + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  std::vector<std::vector<double>> best(runs, sums);
  std::vector<std::vector<size_t>> begins(runs, std::vector<size_t>(count + 1, 0));
  for (size_t r = 1; r < runs; ++r)
    for (size_t n = r + 1; n <= count; ++n) {
      best[r][n] = std::numeric_limits<double>::infinity();
      for (size_t begin = r; begin < n; ++begin)
        if (double worst = std::max(best[r - 1][begin], sums[n] - sums[begin]); worst < best[r][n]) {
          best[r][n] = worst;
          begins[r][n] = begin;
        }
    }
  std::vector<size_t> ends(runs);
  for (size_t r = runs, end = count; r-- > 0; end = begins[r][end])
    ends[r] = end;
  return ends;
}

PipelineStages::PipelineStages(std::span<const Module> modules, std::span<const size_t> counts, int ranks) {
  auto refuse = [&](const std::string &why) {
    throw Error(ErrorCode::InvalidArgument, "a pipeline of " + std::to_string(ranks) + " ranks over " +
                                                std::to_string(modules.size()) + " modules: " + why);
  };
  if (modules.size() < size_t(ranks))
    refuse("each rank runs one at least; compile the model as more modules, or start fewer ranks");
  if (counts.empty()) {
    std::vector<double> costs;
    for (const Module &module : modules)
      costs.push_back(costOf(module));
    ends_ = cutEvenly(costs, size_t(ranks));
    return;
  }
  if (counts.size() != size_t(ranks))
    refuse("stages are given for " + std::to_string(counts.size()) + " ranks");
  for (size_t count : counts) {
    if (!count || count > modules.size())
      refuse("a stage is to have " + std::to_string(count) + " modules");
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + count);
  }
  if (ends_.back() != modules.size())
    refuse("stages are given for " + std::to_string(ends_.back()) + " modules");
}

int PipelineStages::rankOf(size_t module) const {
  return int(std::ranges::upper_bound(ends_, module) - ends_.begin());
}

//===----------------------------------------------------------------------===//
// Crossings
//===----------------------------------------------------------------------===//

/// Returns the description of dense bytes for `wanted`, which is that of the program that reads them.
static std::shared_ptr<const TensorDesc> denseLike(const Value &wanted, ElementType element) {
  if (wanted.desc().isDense() && wanted.desc().element == element)
    return wanted.sharedDesc;
  TensorDesc desc(wanted.desc().shape, element);
  desc.layout.alignment = wanted.desc().layout.alignment;
  return std::make_shared<TensorDesc>(std::move(desc));
}

/// Returns the input of backward that is the gradient of `output`, or its output that is that of `input`; null if there
/// is none.
static const Value *gradientOf(const Module &module, std::string_view of, bool isTaken) {
  const Binary &binary = module.binary();
  if (!binary.hasProgram("backward"))
    return nullptr;
  const Program &backward = binary.program("backward");
  for (const Value &value : isTaken ? backward.inputs() : backward.outputs())
    if (value.role == Role::Gradient && value.of == of)
      return &value;
  return nullptr;
}

std::shared_ptr<const TensorDesc> gradientSentOf(const Module &module, std::string_view of) {
  const Value *gradient = gradientOf(module, of, /*isTaken=*/false);
  return gradient ? denseLike(*gradient, gradient->desc().element) : nullptr;
}

std::vector<Crossing> crossingsTo(size_t boundary, std::span<const Module> modules, const Wiring &wiring) {
  std::vector<Crossing> crossings;
  std::vector<std::vector<const Value *>> givers; // the gradients of each, by who gives them
  for (size_t m = boundary; m < modules.size(); ++m)
    for (size_t i = 0; i < wiring[m].size(); ++i) {
      if (!wiring[m][i] || wiring[m][i]->module >= boundary)
        continue;
      const OutputRef &from = *wiring[m][i];
      const Value &input = modules[m].inputs()[i];
      size_t at = size_t(std::ranges::find(crossings, from, &Crossing::value) - crossings.begin());
      if (at == crossings.size()) {
        crossings.push_back({from, denseLike(input, input.desc().element), nullptr});
        givers.emplace_back();
      }
      if (const Value *gradient = gradientOf(modules[m], input.name, /*isTaken=*/false))
        givers[at].push_back(gradient);
    }
  for (size_t at = 0; at < crossings.size(); ++at) {
    const Module &producer = modules[crossings[at].value.module];
    const Value *taken = gradientOf(producer, producer.outputs()[crossings[at].value.output].name, /*isTaken=*/true);
    // Several are added up in f32, as they are on one rank.
    if (taken && !givers[at].empty())
      crossings[at].gradient =
          denseLike(*taken, givers[at].size() == 1 ? givers[at][0]->desc().element : ElementType::f32);
  }
  return crossings;
}

//===----------------------------------------------------------------------===//
// The order of a step
//===----------------------------------------------------------------------===//

std::vector<PipelineMove> pipelineMoves(int rank, int ranks, size_t batches) {
  std::vector<PipelineMove> moves;
  bool hasBefore = rank > 0, hasBehind = rank + 1 < ranks;
  auto forward = [&](size_t batch) {
    if (hasBefore)
      moves.push_back({PipelineAct::Receive, batch});
    moves.push_back({PipelineAct::Forward, batch});
    if (hasBehind)
      moves.push_back({PipelineAct::Send, batch});
  };
  size_t ahead = std::min(batches, size_t(ranks - 1 - rank));
  for (size_t batch = 0; batch < ahead; ++batch)
    forward(batch);
  for (size_t batch = 0; batch < batches; ++batch) {
    if (batch + ahead < batches)
      forward(batch + ahead);
    if (hasBehind)
      moves.push_back({PipelineAct::ReceiveGradient, batch});
    moves.push_back({PipelineAct::Backward, batch});
    if (hasBefore)
      moves.push_back({PipelineAct::SendGradient, batch});
  }
  return moves;
}

} // namespace segue::inline runtime
