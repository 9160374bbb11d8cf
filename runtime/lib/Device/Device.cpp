//===- Device.cpp - the list of drivers -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A new device is a new line in `builtIn`.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "CpuDevice.h"
#include "DiskDevice.h"
#include "Drivers.h"
#include "SimDevice.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
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
/// What a spec asks for, and of whom.
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

Device::Device() : memory_(*this), lane_(makeSubmitLane(*this)) {}
Device::~Device() = default;

TransferEngine &Device::transfer() {
  std::call_once(transferOnce_, [&] { transfer_ = std::make_unique<TransferEngine>(*this); });
  return *transfer_;
}

bool Device::hasSpace(Space space) const {
  return std::ranges::any_of(spaces(), [&](const SpaceInfo &info) { return info.space == space; });
}

FreeMemory Device::freeMemory(Space space) const {
  for (const SpaceInfo &info : spaces())
    if (info.space == space) {
      uint64_t live = memory_.liveBytes(space);
      uint64_t free = info.capacityBytes > live ? info.capacityBytes - live : 0;
      return {free, free, free ? 1u : 0u};
    }
  return {};
}

bool Device::waitFor(const Fence &fence, double) {
  wait(fence);
  return true;
}

uint64_t Device::enqueueStamp(Queue queue, const Fence &after, TimestampRef stamp, std::string_view label) {
  return enqueue(queue, after, {[this, stamp = std::move(stamp)] { this->stamp(stamp); }, {}, label});
}

uint64_t Device::enqueueCall(Queue queue, const Fence &after, std::function<void()> call, std::string_view label) {
  return enqueue(queue, after, {[this, call = std::move(call)] { this->call(call); }, {}, label});
}

void Device::drain() {
  Fence all;
  for (Queue queue : allQueues)
    all.join(Fence(queue, position(queue)));
  wait(all);
}

} // namespace segue::inline runtime
