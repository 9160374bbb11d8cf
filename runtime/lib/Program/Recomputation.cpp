//===- Recomputation.cpp - saved values made again ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Recomputation.h"
#include "BinaryImage.h"
#include "segue/runtime/Program/ProgramCosts.h"
#include <algorithm>

namespace segue::inline runtime {

static double secondsOf(const Program &program, double flopsPerSecond, double bytesPerSecond,
                        double secondsPerCommand) {
  double sum = 0;
  for (const CommandCost &cost : commandCosts(program))
    sum += secondsPerCommand + std::max(double(cost.flops) / flopsPerSecond, double(cost.bytes) / bytesPerSecond);
  return sum;
}

double Recomputation::seconds(double flopsPerSecond, double bytesPerSecond, double secondsPerCommand) const {
  return secondsOf(program, flopsPerSecond, bytesPerSecond, secondsPerCommand);
}

static bool hasConstants(const Program &program) {
  const schema::Program &table = *program.image()->programs()[program.index()].table;
  for (uint32_t i = 0; i < countOf(table.buffers()); ++i)
    if (table.buffers()->Get(i)->kind() == schema::BufferKind::constant)
      return true;
  for (uint32_t i = 0; i < countOf(table.commands()); ++i) // its pattern is one
    if (table.commands()->Get(i)->body_type() == schema::CommandBody::Fill)
      return true;
  return false;
}

double relativeCost(const Program &program) { return secondsOf(program, 10, 1, 0); }

std::vector<std::optional<Recomputation>> recomputations(const Program &forward) {
  std::vector<std::optional<Recomputation>> found;
  for (const SavePoint &point : forward.savePoints()) {
    if (point.recomputeProgram < 0) {
      found.emplace_back();
      continue;
    }
    Recomputation again{.program = forward.sibling(size_t(point.recomputeProgram)), .output = point.recomputeOutput};
    for (const Value &input : again.program.inputs()) { // verified when the file was loaded
      bool isSaved = input.role == Role::Saved;
      again.sources.push_back(
          {isSaved, uint32_t(isSaved ? forward.findOutput(input.name) : forward.findInput(input.name))});
    }
    again.cost = relativeCost(again.program);
    again.hasConstants = hasConstants(again.program);
    for (const CommandCost &cost : commandCosts(again.program)) {
      again.flops += cost.flops;
      again.bytes += cost.bytes;
      ++again.commands;
    }
    found.push_back(std::move(again));
  }
  return found;
}

} // namespace segue::inline runtime
