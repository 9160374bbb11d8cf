//===- SimProfile.cpp - what a simulated device is like -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimProfile.h"
#include "DeviceProfile.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <charconv>
#include <random>
#include <unistd.h>

namespace segue::inline runtime {

static constexpr std::string_view specKeys[] = {
    "adversarial", "d2h",       "disk",     "diskread", "diskwrite", "dram",    "fail-alloc", "fail-copy", "fail-d2h",
    "fail-dram",   "fail-h2d",  "flops",    "h2d",      "host",      "hostmem", "l1",         "latency",   "launch",
    "link",        "membw",     "pinned",   "profile",  "shrink",    "stall",   "threads"};
static constexpr std::string_view specFlags[] = {"adversarial", "streams", "virtual"};

/// A device of virtual time has none of these.
static constexpr std::string_view realityKeys[] = {"adversarial", "fail-copy", "fail-alloc", "fail-d2h",
                                                   "fail-dram",   "fail-h2d",  "shrink",     "stall",
                                                   "streams",     "threads",   "virtual"};

/// Reads a text such as "7", "7x2" or "7+".
static SimProfile::FaultRange readPlaces(const DeviceOptions &options, std::string_view key) {
  if (!options.has(key))
    return {};
  std::string text = options.text(key, "");
  SimProfile::FaultRange range{0, 1};
  const char *end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, range.first);
  bool isGood = error == std::errc() && range.first > 0;
  if (isGood && std::string_view(rest, end) == "+") {
    range.count = UINT64_MAX;
  } else if (isGood && rest != end) {
    auto [after, wrong] = std::from_chars(rest + 1, end, range.count);
    isGood = *rest == 'x' && wrong == std::errc() && after == end && range.count > 0;
  }
  if (!isGood)
    options.fail(std::string(key) + "=" + text + " names none: 7 is the seventh, 7x2 two from it on, 7+ all");
  return range;
}

/// A disk with bytes is one of so many bytes there, and the host's memory above it page-locked.
static std::string twinOf(const SimProfile &profile, const DeviceOptions &options) {
  if (profile.isVirtual)
    return profile.name;
  DeviceOptions twin("sim", "virtual");
  twin.add(options, realityKeys);
  if (!profile.disk)
    return twin.spec();
  static constexpr std::string_view replaced[] = {"disk", "host", "pinned"};
  DeviceOptions below("sim", "");
  below.add(twin, replaced);
  auto rate = [](double value) { return std::to_string(uint64_t(value)) + "B/s"; };
  below.set("pinned", std::to_string(profile.pinnedBytes));
  below.set("disk", std::to_string(profile.diskBytes));
  below.set("diskread", rate(profile.diskLink->h2dBytesPerSecond));
  below.set("diskwrite", rate(profile.diskLink->d2hBytesPerSecond));
  return below.spec();
}

SimProfile SimProfile::parse(DeviceOptions options) {
  options.requireKnown(specKeys, specFlags);
  SimProfile profile;
  profile.isVirtual = options.has("virtual");
  bool adversarial = options.has("adversarial");
  profile.streams = options.has("streams");
  if (adversarial && profile.isVirtual)
    options.fail("it is either adversarial or virtual");
  if (profile.streams && profile.isVirtual)
    options.fail("it either has streams or is virtual, where no body runs");
  for (std::string_view key : {"fail-copy", "fail-alloc", "shrink", "stall"})
    if (options.has(key) && !adversarial)
      options.fail("option \"" + std::string(key) + "\" needs adversarial=SEED");
  for (std::string_view key : {"fail-d2h", "fail-h2d"})
    if (options.has(key) && profile.isVirtual)
      options.fail("option \"" + std::string(key) + "\" does not go with virtual, where nothing is copied");
  for (std::string_view key : {"flops", "membw", "hostmem", "launch", "diskread", "diskwrite"})
    if (options.has(key) && !profile.isVirtual)
      options.fail("option \"" + std::string(key) + "\" needs virtual: elsewhere " +
                   (key.starts_with("disk")
                        ? "a disk has its speeds behind its folder, disk=FOLDER?read=2GB/s&write=1GB/s"
                        : "kernels take the time they take"));
  bool hasFile = options.has("disk") && !profile.isVirtual;
  if (adversarial && options.text("adversarial", "").empty())
    options.set("adversarial", std::to_string(std::random_device()()));
  profile.name = options.spec();

  // Options of the file are checked as those of the spec, and are named as the file's.
  DeviceOptions file("sim", "");
  if (options.has("profile"))
    file = readDeviceProfile("sim", options.text("profile", ""));
  auto from = [&](std::string_view key) -> const DeviceOptions & {
    return options.has(key) || !file.has(key) ? options : file;
  };
  uint64_t physical = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  profile.hostBytes = from("host").bytes("host", profile.isVirtual ? uint64_t(1) << 40 : physical);
  profile.dramBytes = from("dram").bytes("dram", 512 << 20);
  profile.pinnedBytes = from("pinned").bytes("pinned", 256 << 20);
  LinkSpeed diskSpeed = usualDisk;
  diskSpeed.h2dBytesPerSecond = from("diskread").bytesPerSecond("diskread", usualDisk.h2dBytesPerSecond);
  diskSpeed.d2hBytesPerSecond = from("diskwrite").bytesPerSecond("diskwrite", usualDisk.d2hBytesPerSecond);
  if (profile.isVirtual) {
    profile.diskBytes = from("disk").bytes("disk", 0);
    bool isBelowHost = options.has("diskread") || options.has("diskwrite");
    if (isBelowHost && !profile.diskBytes)
      options.fail("diskread= and diskwrite= need disk=, the size of that disk");
    if (isBelowHost)
      profile.diskLink = diskSpeed;
  } else if (hasFile) {
    profile.pinnedBytes = hostAboveDisk(options, profile.pinnedBytes);
    profile.hostBytes = physical;
    profile.disk = std::make_shared<const DiskOptions>(options, diskSpeed);
    profile.diskBytes = profile.disk->wholeBytes();
    profile.diskLink = profile.disk->speed;
  }
  if (profile.diskLink && profile.isVirtual)
    requireHostAboveDisk(options, "pinned=", profile.pinnedBytes);
  profile.l1Bytes = from("l1").bytes("l1", 1 << 20);
  // A direction in the spec, then the link in the spec, then the file's.
  double fileLink = file.bytesPerSecond("link", 16e9);
  auto direction = [&](std::string_view key) {
    return options.bytesPerSecond(key, options.bytesPerSecond("link", file.bytesPerSecond(key, fileLink)));
  };
  profile.h2dBytesPerSecond = direction("h2d");
  profile.d2hBytesPerSecond = direction("d2h");
  profile.latencySeconds = from("latency").seconds("latency", 10e-6);
  profile.threads = int(from("threads").integer("threads", 0, 1, 1024));
  profile.flopsPerSecond = from("flops").flopsPerSecond("flops", 100e12);
  profile.memoryBytesPerSecond = from("membw").bytesPerSecond("membw", 1000e9);
  profile.hostBytesPerSecond = from("hostmem").bytesPerSecond("hostmem", 8e9);
  profile.launchSeconds = from("launch").seconds("launch", 5e-6);
  if (adversarial)
    profile.adversary = options.integer("adversarial", 0, 0, UINT64_MAX);
  profile.failCopy = options.fraction("fail-copy", 0);
  profile.failAlloc = options.fraction("fail-alloc", 0);
  profile.shrink = options.fraction("shrink", 1);
  profile.stall = options.fraction("stall", 0);
  profile.failToDevice = readPlaces(options, "fail-h2d");
  profile.failToHost = readPlaces(options, "fail-d2h");
  profile.failDram = readPlaces(options, "fail-dram");
  profile.twin = twinOf(profile, options);
  return profile;
}

} // namespace segue::inline runtime
