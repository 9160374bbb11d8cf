//===- SilentConfig.cpp - services that write nothing ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SilentConfig.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static void silence(Json &section) {
  section["telemetry_enabled"] = false;
  for (const char *key : {"debug_trace", "debug_event_trace"})
    if (section.contains(key))
      section[key] = false;
}

Config silentConfig(const Config &config, const std::function<void(Json &stagehand)> &edit) {
  Json stagehand = config.json("memory.stagehand"), stitch = config.json("memory.stitch");
  stagehand.erase("selective_precision");
  // A key that is no section makes it Weight Stagehand's own, whose telemetry would
  // switch that on.
  if (std::ranges::any_of(stagehand.items(), [](const auto &item) { return !item.value().is_object(); }))
    silence(stagehand);
  constexpr std::string_view prefix = "memory.stagehand.";
  for (const ConfigSection &section : configSections())
    if (section.hasTelemetry && section.path.starts_with(prefix))
      if (std::string service(section.path.substr(prefix.size())); stagehand.contains(service))
        silence(stagehand[service]);
  if (edit)
    edit(stagehand);
  Json memory = {{"stagehand", std::move(stagehand)}};
  if (!stitch.empty()) {
    stitch["telemetry_enabled"] = false;
    memory["stitch"] = std::move(stitch);
  }
  return Config::parse(Json{{"memory", std::move(memory)}}.dump(), "(rehearsal)");
}

Config withRing(const std::optional<Config> &config) {
  Json stagehand = config ? config->json("memory.stagehand") : Json::object();
  stagehand["prefetch_window_blocks"] = 1;
  stagehand["telemetry_interval_steps"] = INT32_MAX; // nobody has asked for its lines
  for (const char *guard : {"strict_bf16", "fail_on_dtype_promotion", "nan_inf_check", "telemetry_enabled"})
    stagehand[guard] = false;
  Json memory = {{"stagehand", std::move(stagehand)}};
  if (config && config->has("memory.stitch"))
    memory["stitch"] = config->json("memory.stitch");
  return Config::parse(Json{{"memory", std::move(memory)}}.dump(), "(with a ring)");
}

} // namespace segue::inline runtime
