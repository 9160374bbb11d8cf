//===- MeasureDevice.cpp - how fast this machine is -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/MeasureDevice.h"
#include "../Drivers/DeviceOptions.h"
#include "../Drivers/DiskDevice.h"
#include "Measured.h"
#include "segue/runtime/Disk/SpillFile.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <unistd.h>
#include <utility>
#include <vector>

namespace segue::inline runtime {

using Clock = std::chrono::steady_clock;

double leastSeconds(double seconds, const std::function<void()> &work) {
  Clock::time_point start = Clock::now();
  double least = INFINITY;
  for (int runs = 0; runs < 2 || secondsSince(start) < seconds; ++runs) {
    Clock::time_point begin = Clock::now();
    work();
    least = std::min(least, secondsSince(begin));
  }
  return least;
}

std::string figure(double value, const char *unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%.4g%s", value, unit);
  return text;
}

double flopsPerSecond(Threads threads, double seconds) {
  constexpr int64_t size = 1024;
  MatmulSpec spec;
  spec.m = spec.n = spec.k = size;
  for (MatrixView *view : {&spec.a, &spec.b, &spec.c})
    view->strides = {size * size, size, 1};
  std::vector<float> a(size * size, 0.5f), b(size * size, 0.25f), c(size * size);
  CpuEngine engine(threads);
  auto plan = engine.planMatmul(spec);
  plan->run(a.data(), b.data(), c.data(), nullptr); // may compile code
  return double(spec.flops()) / leastSeconds(seconds, [&] { plan->run(a.data(), b.data(), c.data(), nullptr); });
}

double memoryBytesPerSecond(Threads threads, double seconds) {
  constexpr int64_t count = 8 << 20;
  std::vector<float> a(count, 1), b(count, 2), c(count, 3);
  double least = leastSeconds(seconds, [&] {
    threads.parallelFor(count, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        c[size_t(i)] = a[size_t(i)] + 0.5f * b[size_t(i)];
    });
  });
  return 3.0 * count * sizeof(float) / least;
}

double copyBytesPerSecond(double seconds) {
  constexpr size_t bytes = 32 << 20;
  std::vector<char> source(bytes, 1), target(bytes);
  return double(bytes) / leastSeconds(seconds, [&] { std::memcpy(target.data(), source.data(), bytes); });
}

/// Measures how long threads take that are called and come back with nothing done.
static double launchSeconds(Threads threads, double seconds) {
  std::vector<int64_t> done(size_t(threads.count()) * 16);
  // One call at a time: where somebody else has a processor, most calls wait for a thread.
  return leastSeconds(seconds, [&] {
    threads.parallelFor(threads.count(), 1, [&](int64_t begin, int64_t) { ++done[size_t(begin) * 16]; });
  });
}

DiskFigures measureDisk(const std::string &folder, uint64_t mostBytes, double seconds) {
  constexpr uint64_t most = 16 << 20;
  std::error_code unknown;
  std::filesystem::space_info room = std::filesystem::space(folder, unknown);
  uint64_t bytes = unknown ? mostBytes : std::min<uint64_t>(mostBytes, room.available / 4);
  uint64_t piece = std::min(most, bytes) / SpillFile::block * SpillFile::block;
  if (!piece)
    throw Error(ErrorCode::IoFailed, "folder " + folder + " has too little room to measure its disk");
  bytes = bytes / piece * piece;
  std::unique_ptr<SpillFile> file = SpillFile::open(folder, bytes);
  // The words are random, so that no disk can compress them.
  std::vector<uint64_t> words(piece / sizeof(uint64_t) + SpillFile::block / sizeof(uint64_t));
  std::mt19937_64 random(1);
  std::ranges::generate(words, std::ref(random));
  size_t room64 = words.size() * sizeof(uint64_t);
  void *buffer = words.data();
  buffer = std::align(SpillFile::block, piece, buffer, room64);
  // Writes all of it at first, so that reads find what was written.
  uint64_t at = 0;
  auto next = [&] { return std::exchange(at, (at + piece) % bytes); };
  double leastWrite = INFINITY;
  for (uint64_t written = 0; written < bytes; written += piece)
    leastWrite = std::min(leastWrite, leastSeconds(0, [&] { file->write(at, buffer, piece); next(); }));
  leastWrite = std::min(leastWrite, leastSeconds(seconds * 0.4, [&] { file->write(next(), buffer, piece); }));
  double leastRead = leastSeconds(seconds * 0.4, [&] { file->read(buffer, next(), piece); });
  std::uniform_int_distribution<uint64_t> block(0, bytes / SpillFile::block - 1);
  std::vector<double> latencies;
  Clock::time_point start = Clock::now();
  while (latencies.size() < 3 || (latencies.size() < 1000 && secondsSince(start) < seconds * 0.2)) {
    uint64_t offset = block(random) * SpillFile::block;
    Clock::time_point begin = Clock::now();
    file->read(buffer, offset, SpillFile::block);
    latencies.push_back(secondsSince(begin));
  }
  std::ranges::nth_element(latencies, latencies.begin() + latencies.size() / 2);
  return {double(piece) / leastRead, double(piece) / leastWrite, latencies[latencies.size() / 2]};
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      return line.substr(std::min(line.size(), line.find(':') + 2));
  return "a processor";
}

/// Measures the threads and the memory of this machine, into `profile`.
static void measureCpu(const DeviceOptions &given, const std::string &folder, const MeasureOptions &options, Json &profile) {
  double part = options.seconds / (folder.empty() ? 5 : 10);
  Threads threads(int(given.integer("threads", 0, 1, 1024)));
  uint64_t physical = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  profile["threads"] = threads.count();
  profile["dram"] = std::to_string(given.bytes("dram", physical));
  profile["flops"] = figure(flopsPerSecond(threads, 2 * part) / 1e9, "GFLOP/s");
  profile["membw"] = figure(memoryBytesPerSecond(threads, part) / 1e9, "GB/s");
  profile["hostmem"] = figure(copyBytesPerSecond(part) / 1e9, "GB/s");
  profile["launch"] = figure(launchSeconds(threads, part) * 1e6, "us");
  if (folder.empty())
    return;
  // The link of a cpu is that to its disk.
  DiskFigures disk = measureDisk(folder, options.diskBytes, 5 * part);
  profile["h2d"] = figure(disk.readBytesPerSecond / 1e9, "GB/s");
  profile["d2h"] = figure(disk.writeBytesPerSecond / 1e9, "GB/s");
  profile["latency"] = figure(disk.latencySeconds * 1e6, "us");
}

Json measureDevice(std::string_view spec, const MeasureOptions &options) {
  std::string_view driver = spec.substr(0, spec.find(':'));
  DeviceOptions given(driver, driver.size() < spec.size() ? spec.substr(driver.size() + 1) : "");
  bool isCpu = driver == "cpu";
  if (!isCpu && driver != "cuda")
    given.fail("what is measured is this machine: a cpu, as cpu:disk=/mnt/ssd with the disk below it, or a GPU, as cuda:0");
  if (isCpu)
    given.requireKnown(cpuKeys); // a GPU says itself what it knows
  if (!(options.seconds > 0 && options.seconds <= 3600) || options.diskBytes < SpillFile::block)
    given.fail("it is measured for up to an hour, with 4096 bytes of the disk or more");
  std::string folder = given.text("disk", "");
  folder.resize(std::min(folder.size(), folder.rfind('?')));
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    given.fail("disk=" + folder + " is not a folder");

  std::time_t now = std::time(nullptr);
  std::tm day{};
  gmtime_r(&now, &day);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", &day);
  std::string what = isCpu ? processor() : std::string(spec.substr(0, spec.find(','))) + " beside " + processor();
  Json profile{{"version", 1},
               {"about", what + ", measured " + date + (folder.empty() ? "" : ", disk " + folder)}};
  (isCpu ? measureCpu : measureGpu)(given, folder, options, profile);
  return profile;
}

} // namespace segue::inline runtime
