//===- Drivers.cpp - the list of drivers ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A new device is a new line in `builtIn`.
//
//===----------------------------------------------------------------------===//

#include "Drivers.h"
#include "CpuDevice.h"
#include "DiskDevice.h"
#include "SimDevice.h"
#include "segue/runtime/Error.h"
#include <vector>

namespace segue::inline runtime {

static constexpr Driver builtIn[] = {
    {"cpu", openCpuDevice, diskTwin},
    {"sim", openSimDevice, simTwin},
};

static std::vector<Driver> &drivers() {
  static std::vector<Driver> drivers(std::begin(builtIn), std::end(builtIn));
  return drivers;
}

void addDriver(const Driver &driver) { drivers().push_back(driver); }

namespace {
/// A spec names a driver and gives it options.
struct ParsedSpec {
  const Driver &driver;
  DeviceOptions options;
};
} // namespace

static ParsedSpec parseSpec(std::string_view spec) {
  std::string_view driverName = spec.substr(0, spec.find(':'));
  std::string_view rest = driverName.size() < spec.size() ? spec.substr(driverName.size() + 1) : "";
  std::string known;
  for (const Driver &driver : drivers()) {
    if (driver.name == driverName)
      return {driver, DeviceOptions(driverName, rest)};
    known += (known.empty() ? "\"" : ", \"") + std::string(driver.name) + "\"";
  }
  throw Error(ErrorCode::InvalidArgument, "device \"" + std::string(spec) + "\": there is no driver \"" +
                                              std::string(driverName) + "\"; known are " + known);
}

DeviceRef Device::open(std::string_view spec) {
  ParsedSpec parsed = parseSpec(spec);
  return parsed.driver.open(parsed.options);
}

std::optional<std::string> twinOf(std::string_view spec) {
  ParsedSpec parsed = parseSpec(spec);
  return parsed.driver.twin ? parsed.driver.twin(parsed.options) : parsed.driver.open(parsed.options)->twin();
}

bool isOpenedForTwin(std::string_view spec) { return !parseSpec(spec).driver.twin; }

} // namespace segue::inline runtime
