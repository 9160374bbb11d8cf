//===- Recompute.cpp - segue-run recompute --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs forward, then everything that makes its saved values again, each from
// what forward saved, and compares the bytes. The runtime may use the one in the
// place of the other at any time: they must not differ in one bit.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "ProgramValues.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Program/Recomputation.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace segue::tool {

namespace {
struct Made {
  std::string value, block, program;
  uint64_t bytes = 0, flops = 0;
  double seconds = 0;
  bool isEqual = false;
};
} // namespace

static bool equalBytes(const Tensor &a, const Tensor &b) {
  Tensor x = toHost(a), y = toHost(b);
  return x.desc().spanBytes() == y.desc().spanBytes() && std::memcmp(x.bytes(), y.bytes(), x.desc().spanBytes()) == 0;
}

static Json recomputeFile(const Binary &binary, const DeviceRef &device, const RecomputeOptions &options,
                          bool &allEqual) {
  Executor executor(device, binary.program("forward"));
  const Program &forward = executor.program();
  std::vector<Tensor> inputs = makeInputs(device, forward, options.inputs), outputs(forward.outputs().size());
  double forwardSeconds = timeSubmits(executor, inputs, outputs, options.repeat).front();

  std::vector<std::optional<Recomputation>> again = recomputations(forward);
  std::map<size_t, std::pair<double, std::vector<Tensor>>> runs; // by program: one run may make several values
  std::vector<Made> made;
  uint64_t savedBytes = 0, madeBytes = 0;
  for (size_t i = 0; i < again.size(); ++i) {
    const SavePoint &point = forward.savePoints()[i];
    savedBytes += point.bytes;
    if (!again[i])
      continue;
    auto [run, isNew] = runs.try_emplace(again[i]->program.index());
    if (isNew) {
      std::vector<Tensor> sources;
      for (const Recomputation::Source &source : again[i]->sources)
        sources.push_back((source.isSaved ? outputs : inputs)[source.index]);
      run->second.second.resize(again[i]->program.outputs().size());
      run->second.first =
          timeSubmits(Executor(device, again[i]->program), sources, run->second.second, options.repeat).front();
    }
    madeBytes += point.bytes;
    made.push_back({forward.output(point.value).name, point.block, again[i]->program.name(), point.bytes,
                    again[i]->flops, run->second.first,
                    equalBytes(outputs[point.value], run->second.second[again[i]->output])});
    allEqual &= made.back().isEqual;
  }
  double seconds = 0;
  for (const auto &[index, run] : runs)
    seconds += run.first;

  Json json{{"file", binary.name()},           {"forward_ms", forwardSeconds * 1e3}, {"saved_bytes", savedBytes},
            {"recomputable_bytes", madeBytes}, {"recompute_ms", seconds * 1e3},      {"values", Json::array()}};
  for (const Made &each : made)
    json["values"].push_back({{"value", each.value},
                              {"block", each.block},
                              {"program", each.program},
                              {"bytes", each.bytes},
                              {"flops", each.flops},
                              {"ms", each.seconds * 1e3},
                              {"equal", each.isEqual}});
  if (options.json)
    return json;
  for (const Made &each : made)
    std::printf("  %-12s %-12s %-14s %10llu bytes %9.3f GFLOP %9.3f ms  %s\n", each.value.c_str(), each.block.c_str(),
                each.program.c_str(), (unsigned long long)each.bytes, double(each.flops) / 1e9, each.seconds * 1e3,
                each.isEqual ? "equal" : "DIFFERS");
  std::printf("%s: forward %.3f ms saves %llu bytes in %zu values; %llu bytes in %zu values can be computed again, "
              "%.3f ms in all\n",
              binary.name().c_str(), forwardSeconds * 1e3, (unsigned long long)savedBytes, again.size(),
              (unsigned long long)madeBytes, made.size(), seconds * 1e3);
  return json;
}

int recompute(const RecomputeOptions &options) {
  DeviceRef device = openForValues(options.device);
  Json json = Json::array();
  bool allEqual = true;
  for (const std::string &file : options.files)
    json.push_back(recomputeFile(loadBinary(file, options), device, options, allEqual));
  if (options.json)
    std::printf("%s\n", json.dump(2).c_str());
  if (!allEqual)
    std::fprintf(stderr, "segue-run: what was computed again is not what was saved; do not recompute this file, and "
                         "report it with the file\n");
  return allEqual ? Done : Unexpected;
}

} // namespace segue::tool
