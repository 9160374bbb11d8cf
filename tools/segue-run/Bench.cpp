//===- Bench.cpp - segue-run bench ----------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a program costs: time per submit, outputs waited for, then time per
// command in runs of their own, since reading the clock around each command is
// not free. Inputs lie as declared; those that are not given hold small numbers.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "ProgramValues.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Reports/Roofline.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

namespace segue::tool {

int bench(const BenchOptions &options) {
  DeviceRef device = openForValues(options.device);
  Binary binary = loadBinary(options.file, options);
  Executor executor(device, binary.program(options.program));
  const Program &program = executor.program();
  std::vector<Tensor> inputs = makeInputs(device, program, options.inputs);

  std::vector<Tensor> outputs(program.outputs().size());
  std::vector<double> seconds = timeSubmits(executor, inputs, outputs, options.repeat);
  CommandTimer timer(device);
  std::vector<double> timed = timeSubmits(executor, inputs, outputs, std::min<int64_t>(options.repeat, 10), /*warmUps=*/0);
  timer.stop();
  double timedSeconds = std::accumulate(timed.begin(), timed.end(), 0.0);
  std::optional<DeviceSpeed> speed;
  if (options.roofline)
    speed = speedOf(*device);
  Roofline table({options.device, device->threads(), "submit", timed.size(), timedSeconds}, timer.times(), std::move(speed));

  uint64_t bytes = 0;
  for (const std::vector<Value> *values : {&program.inputs(), &program.outputs()})
    for (const Value &value : *values)
      bytes += value.desc().spanBytes();
  double least = seconds.front(), median = seconds[seconds.size() / 2];
  double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / double(seconds.size());
  double rate = double(bytes) / least * 1e-9, flops = double(program.matmulFlops()) / least * 1e-9;
  if (!options.json) {
    std::printf("%s %s on %s, %lld submits: least %.3f us, median %.3f us, mean %.3f us\n", binary.name().c_str(),
                program.name().c_str(), options.device.c_str(), (long long)options.repeat, least * 1e6, median * 1e6,
                mean * 1e6);
    std::printf("%llu bytes in and out: %.3f GB/s; matmul %.3f GFLOP/s\n", (unsigned long long)bytes, rate, flops);
    std::fflush(stdout);
    std::fputs(table.text().c_str(), stderr);
    return Done;
  }
  Json json{{"file", binary.name()},
            {"program", program.name()},
            {"device", options.device},
            {"repeat", options.repeat},
            {"submit_us", {{"least", least * 1e6}, {"median", median * 1e6}, {"mean", mean * 1e6}}},
            {"bytes", bytes},
            {"gb_per_s", rate},
            {"matmul_gflop_per_s", flops}};
  json.update(table.json());
  std::printf("%s\n", json.dump(2).c_str());
  return Done;
}

} // namespace segue::tool
