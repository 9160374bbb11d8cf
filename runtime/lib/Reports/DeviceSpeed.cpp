//===- DeviceSpeed.cpp - the most that a device can do --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/DeviceSpeed.h"
#include "../Drivers/DeviceOptions.h"
#include "../Drivers/DeviceProfile.h"
#include "Measured.h"
#include "segue/runtime/Engine/Threads.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// Returns the figures of the profile that the spec names.
static DeviceSpeed speedByProfile(const Device &device, const DeviceOptions &given) {
  std::string path = given.text("profile", "");
  DeviceOptions profile = readDeviceProfile(given.driver(), path);
  for (const char *key : {"flops", "membw"})
    if (!profile.has(key))
      profile.fail(std::string("it does not say ") + key + "=, which bounds commands; measure it with segue-run profile-device");
  DeviceSpeed speed{profile.flopsPerSecond("flops", 0), profile.bytesPerSecond("membw", 0), path};
  int threads = int(profile.integer("threads", uint64_t(device.threads()), 1, 1024));
  if (threads != device.threads())
    speed.source += ", of " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  return speed;
}

DeviceSpeed speedOf(const Device &device, double seconds) {
  std::string name = device.name(), driver = name.substr(0, name.find(':'));
  DeviceOptions given(driver, driver.size() < name.size() ? std::string_view(name).substr(driver.size() + 1) : "");
  if (given.has("profile"))
    return speedByProfile(device, given);
  char taken[32];
  std::snprintf(taken, sizeof taken, ", measured in %.3g s", seconds);
  if (driver == "cuda") {
    Json profile;
    measureGpuSpeed(given, seconds, profile);
    DeviceOptions figures(driver, "flops=" + profile["flops"].get<std::string>() +
                                      ",membw=" + profile["membw"].get<std::string>());
    return {figures.flopsPerSecond("flops", 0), figures.bytesPerSecond("membw", 0), driver + taken};
  }
  // All others compute on the processors of this machine.
  Threads threads(device.threads());
  double flops = flopsPerSecond(threads, seconds / 2);
  return {flops, memoryBytesPerSecond(threads, seconds / 2), processor() + taken};
}

} // namespace segue::inline runtime
