//===- ExecutorHookBench.cpp - what the executor pays for services --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The time of a submit of 32 tiny blocks: without a sink; with what a config
// whose services are all disabled makes of one (nothing); with a sink that does
// nothing; with Conductor at work. In turns, so that whatever else the machine
// does meets all alike. The noise is what two series of the same, the first and
// the last, differ by, and half of the middle of each series.
//
//   chrt -f 10 taskset -c 1 build/bin/segue-bench-hook [rounds]
//
//===----------------------------------------------------------------------===//

#include "Services/LayerChain.h"
#include "segue/runtime/Runtime.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

using namespace segue;
using namespace segue::test;

namespace {
struct Variant {
  const char *name;
  EventSink *sink;
  std::vector<double> microseconds = {};

  double quantile(double part) {
    std::ranges::sort(microseconds);
    return microseconds[size_t(part * double(microseconds.size() - 1))];
  }
};
} // namespace

static constexpr int submits = 50;

static std::unique_ptr<MemoryServices> services(const DeviceRef &device, const char *text) {
  return MemoryServices::create(device, Config::parse(text, "bench"));
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::max(3, std::atoi(argv[1])) : 400;
  DeviceRef device = Device::open("cpu:threads=1");
  Binary binary = ChainWriter({.layers = 32, .rows = 2, .width = 8}).binary();
  const Program &forward = binary.program("forward");
  std::vector<Tensor> inputs;
  for (uint32_t i = 0; i < forward.inputs().size(); ++i)
    inputs.push_back(Tensor::zeros(device, forward.input(i).desc()));

  std::unique_ptr<MemoryServices> disabled =
      services(device, R"({"memory": {"stagehand": {"conductor_config": {"enabled": false},
                           "activation_stagehand": {"enabled": false}}}})");
  std::unique_ptr<MemoryServices> conductor =
      services(device, R"({"memory": {"stagehand": {"conductor_config": {"enabled": true,
                           "telemetry_enabled": false}}}})");
  if (disabled) {
    std::fprintf(stderr, "disabled services were constructed\n");
    return 1;
  }
  conductor->enter(Phase::StepBegin);
  conductor->enter(Phase::Forward);
  EventSink nothing;
  std::vector<Variant> variants{{"no sink", nullptr},
                                {"services disabled", disabled.get()},
                                {"a sink that does nothing", &nothing},
                                {"Conductor", conductor.get()},
                                {"no sink, again", nullptr}};

  for (int round = -1; round < rounds; ++round)
    for (Variant &variant : variants) {
      auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < submits; ++i)
        submit(device, forward, inputs, variant.sink);
      std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
      if (round >= 0)
        variant.microseconds.push_back(time.count() / submits);
    }

  double base = variants[0].quantile(0.5), noise = std::abs(variants.back().quantile(0.5) - base);
  for (size_t i : {0, 1})
    noise = std::max(noise, (variants[i].quantile(0.75) - variants[i].quantile(0.25)) / 2);
  std::printf("%-26s %10s %12s %14s\n", "32 blocks", "us", "difference", "ns per block");
  for (Variant &variant : variants) {
    double median = variant.quantile(0.5);
    std::printf("%-26s %10.3f %+12.3f %+14.1f\n", variant.name, median, median - base, (median - base) / 32 * 1e3);
  }
  double difference = variants[1].quantile(0.5) - base;
  bool isLess = std::abs(difference) <= noise;
  std::printf("disabled differs by %+.3f us, noise %.3f us: %s\n", difference, noise,
              isLess ? "less than the noise" : "MORE than the noise");
  conductor->abortStep();
  return isLess ? 0 : 1;
}
