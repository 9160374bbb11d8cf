//===- RunBudget.cpp - a budget as people say it --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/RunBudget.h"
#include "../Drivers/DeviceOptions.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Mebibytes.h"

namespace segue::inline runtime {

RunBudget RunBudget::read(ConfigReader &reader) {
  RunBudget budget;
  auto bytesOf = [&](const char *key) {
    std::optional<double> mebibytes = reader.getOptionalNumber(key, Range::aboveUpTo(0, double(1ull << 32)));
    return mebibytes ? uint64_t(*mebibytes * bytesPerMiB) : 0;
  };
  budget.bytes = bytesOf("device_dram_mb");
  budget.hostBytes = bytesOf("host_mb");
  budget.spillFolder = reader.getString("disk", "");
  budget.spillCapacityBytes = bytesOf("disk_mb");
  if (!budget.bytes && reader.has("host_mb") + reader.has("disk") + reader.has("disk_mb") > 0)
    reader.fail("device_dram_mb", "needed where other tiers are named");
  if (budget.spillCapacityBytes && budget.spillFolder.empty())
    reader.fail("disk", "needed with disk_mb: the folder of which that is the capacity");
  reader.finish();
  return budget;
}

std::optional<RunBudget> RunBudget::of(const Config &config) {
  if (!config.has(section))
    return std::nullopt;
  ConfigReader reader = config.section(section);
  RunBudget budget = read(reader);
  return budget.bytes ? std::optional(std::move(budget)) : std::nullopt;
}

std::string RunBudget::device(std::string_view device) const {
  size_t colon = std::min(device.find(':'), device.size());
  std::string_view driver = device.substr(0, colon);
  DeviceOptions options(driver, device.substr(std::min(colon + 1, device.size())));
  auto refuse = [&](const std::string &why) {
    throw Error(ErrorCode::InvalidArgument, "a budget on device \"" + std::string(device) + "\": " + why);
  };
  for (std::string_view key : {"dram", "disk", hostBytes ? "host" : "disk"})
    if (options.has(key))
      refuse("its spec says " + std::string(key) + "= itself; leave that or the budget out");
  if (driver == "cpu" && spillFolder.empty())
    refuse("what has no room in memory needs a disk; give the spill folder (--spill-dir FOLDER, "
           "spill_dir=\"FOLDER\")");
  if (spillCapacityBytes && spillFolder.empty())
    refuse("a capacity of the spill folder goes with such a folder (--spill-dir FOLDER, spill_dir=\"FOLDER\")");
  options.set("dram", std::to_string(bytes));
  if (hostBytes)
    options.set("host", std::to_string(hostBytes));
  if (!spillFolder.empty()) {
    if (spillFolder.string().find_first_of(",?") != std::string::npos)
      refuse("the name of the spill folder \"" + spillFolder.string() + "\" has a comma or a question mark, which "
             "part the options of a device; give another name, or a link to it");
    std::string capacity = spillCapacityBytes ? "?capacity=" + std::to_string(spillCapacityBytes) : std::string();
    options.set("disk", spillFolder.string() + capacity);
  }
  return options.spec();
}

Config RunBudget::config(const std::optional<Config> &given) const {
  Json root = given ? given->json("") : Json::object();
  Json &stagehand = root["memory"]["stagehand"];
  if (!stagehand.is_object())
    stagehand = Json::object();
  if (!stagehand.contains("conductor_config"))
    // All of it: by itself Conductor would leave a part of the device alone.
    stagehand["conductor_config"] = {{"enabled", true},
                                     {"telemetry_enabled", false},
                                     {"vram_hard_cap_mb", bytes / bytesPerMiB},
                                     {"vram_soft_cap_mb", bytes / bytesPerMiB}};
  Json &activation = stagehand["activation_stagehand"];
  if (activation.is_null())
    activation = {{"enabled", true},
                  {"telemetry_enabled", false},
                  {"mode", "planned"},
                  {"debug_checksums", !spillFolder.empty()}};
  else if (!activation.value("enabled", false))
    throw Error(ErrorCode::InvalidArgument, "a budget and a config with memory.stagehand.activation_stagehand off: "
                                            "nothing would leave; turn it on, or leave the section out");
  return Config::parse(root.dump(), "the config with its budget");
}

} // namespace segue::inline runtime
