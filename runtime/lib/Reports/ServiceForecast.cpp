//===- ServiceForecast.cpp - what services would do in a step -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Nothing is estimated: the session of the run, with its services, trains on the twin,
// and what its services write about a step is the forecast.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/ServiceForecast.h"
#include "../Session/OwnDevice.h"
#include "../Session/SilentConfig.h"
#include "PlayedSession.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/Services/ActivationStagehandConfig.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

namespace segue::inline runtime {

/// The first steps find nothing in its place yet.
static constexpr int forecastStep = 3;

/// Adds `more` to the record of a service.
static Json with(Json record, Json more) {
  more.update(record);
  return more;
}

static Json ringOf(const WeightStreamer &streamer) {
  std::set<std::string> blocks;
  uint64_t bytes = 0;
  for (const StreamedParameter &parameter : streamer.parameters()) {
    blocks.insert(parameter.module + "/" + parameter.block);
    bytes += parameter.desc.spanBytes();
  }
  return {{"slots", streamer.slots()},
          {"ring_bytes", streamer.ringBytes()},
          {"blocks", blocks.size()},
          {"streamed_bytes", bytes},
          {"window", streamer.config().prefetchWindowBlocks}};
}

Json forecastServices(std::string_view device, const std::vector<SessionModule> &modules, const SessionOptions &options,
                      size_t microBatches, const Config &config) {
  OwnDevice own(virtualTwin(device));
  const DeviceRef &twin = *own;
  std::shared_ptr<Storage> programs = takeForPrograms(twin, bytesForPrograms(device, modules));
  SessionOptions same = playedOptions(options);
  same.config = silentConfig(config);
  Session session(twin, modules, std::move(same));
  session.allocateParameters();
  std::vector<TensorMap> batches(microBatches, batchWithoutValues(twin, session.modules(), options.wires));
  uint64_t certified = session.certify(microBatches);
  const TransferCounters &moved = twin->transfer().counters();
  uint64_t inBytes = 0, outBytes = 0;
  double seconds = 0;
  StepResult last; // whoever takes a step may keep what it gave until the next has ended
  for (int step = 1; step <= forecastStep; ++step) {
    twin->drain();
    twin->memory().resetPeak();
    inBytes = moved.h2dBytes, outBytes = moved.d2hBytes, seconds = twin->seconds();
    last = session.step(batches, LearningRates::same(1e-3, session.rateCount()));
    twin->drain();
  }

  DeviceMemory &memory = twin->memory();
  Json result{{"cap_bytes", memory.budget(Space::DeviceDram)},
              {"certified_bytes", certified},
              {"peak_bytes", memory.peakBytes(Space::DeviceDram)},
              {"seconds", twin->seconds() - seconds},
              {"out_bytes", uint64_t(moved.d2hBytes) - outBytes},
              {"in_bytes", uint64_t(moved.h2dBytes) - inBytes}};
  const MemoryServices *services = session.services();
  if (!services)
    return result;
  if (Json record = services->activationRecord(); record.is_object()) {
    ConfigReader reader = config.section("memory.stagehand.activation_stagehand");
    bool isPlanned = ActivationStagehandConfig::read(reader).mode == ActivationStagehandConfig::Mode::Planned;
    result["activation_stagehand"] = with(std::move(record), {{"mode", isPlanned ? "planned" : "watermark"}});
  }
  if (Json record = services->weightRecord(); record.is_object())
    result["weight_stagehand"] = with(std::move(record), ringOf(*services->weights()));
  if (Json record = services->stateRecord(); record.is_object())
    result["state_stagehand"] = std::move(record);
  if (Json record = services->conductorRecord(); record.is_object())
    result["conductor"] = std::move(record);
  return result;
}

std::string textOfServices(const Json &forecast) {
  std::string text;
  auto line = [&](const char *format, auto... values) {
    char buffer[512];
    std::snprintf(buffer, sizeof buffer, format, values...);
    text += buffer;
  };
  auto mib = [](const Json &bytes) { return bytes.get<double>() / bytesPerMiB; };
  auto number = [](const Json &value) { return (long long)value.get<int64_t>(); };
  line("By the config, under %.2f MiB: peak %.2f MiB, step %.3f ms, %.2f MiB go out and %.2f MiB come in\n",
       mib(forecast["cap_bytes"]), mib(forecast["peak_bytes"]), forecast["seconds"].get<double>() * 1e3,
       mib(forecast["out_bytes"]), mib(forecast["in_bytes"]));
  line("  certified: a device of %.2f MiB is enough\n", mib(forecast["certified_bytes"]));
  if (forecast.contains("activation_stagehand")) {
    const Json &record = forecast["activation_stagehand"];
    line("  Activation Stagehand by %s: of the saved tensors %lld leave (%.2f MiB), %lld are computed again, %lld "
         "stay; %lld stalls of %.3f ms\n",
         record["mode"] == "planned" ? "a plan" : "watermarks", number(record["activations_spilled"]),
         mib(record["spill_bytes"]), number(record["activations_recomputed"]), number(record["activations_kept"]),
         number(record["stall_count"]), record["stall_time_ms"].get<double>());
  }
  if (forecast.contains("weight_stagehand")) {
    const Json &weights = forecast["weight_stagehand"];
    line("  Weight Stagehand: a ring of %lld slots (%.2f MiB) for %lld blocks of %.2f MiB, %lld ahead\n",
         number(weights["slots"]), mib(weights["ring_bytes"]), number(weights["blocks"]),
         mib(weights["streamed_bytes"]), number(weights["window"]));
  }
  if (forecast.contains("state_stagehand")) {
    const Json &states = forecast["state_stagehand"];
    line("  State Stagehand: gradients and optimizer states leave, as a step does not fit otherwise: %lld (%.2f MiB)\n",
         number(states["left"]), mib(states["left_bytes"]));
  }
  if (forecast.contains("conductor")) {
    const Json &conductor = forecast["conductor"];
    std::string from = conductor["suppressed_at"].is_null() ? "nowhere" : "from " + conductor["suppressed_at"].get<std::string>() + " on";
    line("  Conductor: what is ahead is suppressed %s; tokens denied: %lld to the device, %lld from it\n", from.c_str(),
         number(conductor["h2d_denied"]), number(conductor["d2h_denied"]));
  }
  return text;
}

} // namespace segue::inline runtime
