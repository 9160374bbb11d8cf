//===- MeasureGpu.cpp - how fast a GPU is ---------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Link, memory, products and launches of a device with streams, through the interface of
// devices: what a run will call. Times are those of stamps in the queue, so that the host,
// which runs ahead, is in none of them; only waits and entries are timed by its clock.
// Rows are long, since a stamp of a GPU has steps and the first of a row pays for its start.
//
//===----------------------------------------------------------------------===//

#include "../Drivers/DeviceOptions.h"
#include "Measured.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

using Clock = std::chrono::steady_clock;

static constexpr uint64_t perKiB = uint64_t(1) << 10, perMiB = uint64_t(1) << 20;
/// Blocks that are measured: beyond any cache, and a second one beside it.
static constexpr uint64_t mostDeviceBytes = 512 * perMiB, mostPinnedBytes = 64 * perMiB, leastBytes = 4 * perMiB;
/// The largest side of a product, and how long one is to take: a shorter one says what its launch costs.
static constexpr int64_t mostSide = 8192;
static constexpr double longProduct = 1e-3;

namespace {
/// Memory that is given back.
class Held {
public:
  Held(Device &device, Space space, uint64_t bytes)
      : device_(device), space_(space), bytes_(bytes), block_(device.memory().allocate(space, bytes, 512)) {
    device.wait(block_.after);
  }
  ~Held() { device_.memory().free(space_, block_.data, bytes_, 512, block_.account, {}); }
  Held(const Held &) = delete;
  std::byte *data() const { return static_cast<std::byte *>(block_.data); }

private:
  Device &device_;
  Space space_;
  uint64_t bytes_;
  MemoryBlock block_;
};

class GpuMeasurement {
public:
  /// `part` is about how long each figure may take.
  GpuMeasurement(Device &device, double part)
      : device_(device), part_(part), deviceBytes_(half(Space::DeviceDram, mostDeviceBytes)),
        pinnedBytes_(half(Space::HostPinned, mostPinnedBytes)), block_(device, Space::DeviceDram, deviceBytes_),
        pinned_(device, Space::HostPinned, pinnedBytes_) {
    std::memset(pinned_.data(), 1, pinnedBytes_);
  }

  void measureLink(Json &profile, Json &measured);
  void measureMemory(Json &profile, Json &measured);
  void measureProducts(bool tf32, Json &profile, Json &measured);
  void measureLaunches(Json &profile, Json &measured);

private:
  uint64_t half(Space space, uint64_t most) const;
  uint64_t enqueue(Queue queue, std::function<void()> body);
  double leastOfQueues(std::span<const Queue> queues, const std::function<void(Queue)> &body);
  double leastOf(Queue queue, const std::function<void()> &body) {
    return leastOfQueues({&queue, 1}, [&](Queue) { body(); });
  }
  double product(ElementType element);

  Device &device_;
  double part_;
  uint64_t deviceBytes_, pinnedBytes_;
  Held block_, pinned_;
  std::optional<Error> error_;
};
} // namespace

/// Half of a space, so that the rest is there for what a library takes; whole chunks of 2 MiB.
uint64_t GpuMeasurement::half(Space space, uint64_t most) const {
  uint64_t bytes = std::min(device_.memory().budget(space) / 2, most) / (2 * perMiB) * (2 * perMiB);
  if (bytes < leastBytes)
    throw Error(ErrorCode::InvalidArgument, "device \"" + device_.name() + "\": it has too little " +
                                                std::string(name(space)) + " to be measured; give it 8 MiB or more");
  return bytes;
}

/// An entry whose error is thrown by the next wait.
uint64_t GpuMeasurement::enqueue(Queue queue, std::function<void()> body) {
  Work work;
  work.run = std::move(body);
  work.ended = [this](const Error *error) {
    if (error && !error_)
      error_ = *error;
  };
  return device_.enqueue(queue, {}, std::move(work));
}

/// Returns the least seconds that what `body` gives to all of `queues` took, the first time of
/// all not counted.
double GpuMeasurement::leastOfQueues(std::span<const Queue> queues, const std::function<void(Queue)> &body) {
  double least = INFINITY;
  Clock::time_point start = Clock::now();
  for (int round = 0; round < 3 || secondsSince(start) < part_; ++round) {
    std::vector<TimestampRef> begins, ends;
    Fence all;
    for (Queue queue : queues) {
      begins.push_back(std::make_shared<Timestamp>()), ends.push_back(std::make_shared<Timestamp>());
      all.join(Fence(queue, enqueue(queue, [&, queue, begin = begins.back(), end = ends.back()] {
                       device_.stamp(begin);
                       body(queue);
                       device_.stamp(end);
                     })));
    }
    device_.wait(all);
    if (error_)
      throw *error_;
    auto earlier = [](const TimestampRef &a, const TimestampRef &b) { return a->seconds() < b->seconds(); };
    double seconds = (*std::ranges::max_element(ends, earlier))->seconds() -
                     (*std::ranges::min_element(begins, earlier))->seconds();
    if (round > 0 && seconds > 0)
      least = std::min(least, seconds);
  }
  if (least == INFINITY)
    throw Error(ErrorCode::Unsupported, "device \"" + device_.name() + "\": its stamps do not advance");
  return least;
}

void GpuMeasurement::measureLink(Json &profile, Json &measured) {
  uint64_t bytes = std::min(pinnedBytes_, deviceBytes_ / 2);
  std::byte *up = block_.data(), *down = up + bytes;
  // The two directions take halves of the host's block, and blocks of the device of their own.
  auto copies = [&](Queue queue, uint64_t row, uint64_t each) {
    for (uint64_t at = 0; at + each <= row; at += each)
      if (queue == Queue::HostToDevice)
        device_.copy(up + at, pinned_.data() + at, each);
      else
        device_.copy(pinned_.data() + (row <= bytes / 2 ? bytes / 2 : 0) + at, down + at, each);
  };
  struct {
    Queue queue;
    const char *key;
  } directions[] = {{Queue::HostToDevice, "h2d"}, {Queue::DeviceToHost, "d2h"}};
  device_.wait(Fence(Queue::Compute, enqueue(Queue::Compute, [&] {
                       device_.engine().fill(block_.data(), deviceBytes_, 0x3f003f00, 4);
                     })));
  for (auto [queue, key] : directions) {
    double best = 0;
    for (uint64_t each : {64 * perKiB, perMiB, 16 * perMiB, 64 * perMiB}) {
      if (each > bytes)
        break;
      uint64_t row = bytes / each * each;
      double rate = double(row) / leastOf(queue, [&] { copies(queue, row, each); });
      best = std::max(best, rate);
      measured[std::string(key) + " by " + (each < perMiB ? std::to_string(each / perKiB) + " KiB" : std::to_string(each / perMiB) + " MiB")] =
          figure(rate / 1e9, "GB/s");
    }
    profile[key] = figure(best / 1e9, "GB/s");
  }
  const Queue both[] = {Queue::HostToDevice, Queue::DeviceToHost};
  uint64_t row = bytes / 2 / perMiB * perMiB;
  measured["both directions at once, each by 1 MiB"] =
      figure(double(row) / leastOfQueues(both, [&](Queue queue) { copies(queue, row, perMiB); }) / 1e9, "GB/s");
  profile["latency"] = figure(leastSeconds(part_, [&] {
                                device_.wait(Fence(Queue::HostToDevice, enqueue(Queue::HostToDevice, [&] {
                                                     device_.copy(up, pinned_.data(), 4 * perKiB);
                                                   })));
                              }) * 1e6, "us");
}

void GpuMeasurement::measureMemory(Json &profile, Json &measured) {
  constexpr int times = 4;
  uint64_t bytes = deviceBytes_ / 2;
  double copied = 2.0 * double(bytes) * times / leastOf(Queue::Compute, [&] {
                    for (int i = 0; i < times; ++i)
                      device_.copy(block_.data() + bytes, block_.data(), bytes);
                  });
  double filled = double(deviceBytes_) * times / leastOf(Queue::Compute, [&] {
                    for (int i = 0; i < times; ++i)
                      device_.engine().fill(block_.data(), deviceBytes_, 0x3f003f00, 4);
                  });
  // Kernels read and write, so a copy is what they are like.
  profile["membw"] = figure(copied / 1e9, "GB/s");
  measured["memory, copied"] = figure(copied / 1e9, "GB/s");
  measured["memory, filled"] = figure(filled / 1e9, "GB/s");
}

/// Returns the rate of the largest square product that there is room for, or of the first that is long.
double GpuMeasurement::product(ElementType element) {
  double rate = 0;
  for (int64_t side = 256; side <= mostSide; side *= 2) {
    uint64_t bytes = uint64_t(side * side) * byteSize(element);
    if (3 * bytes > deviceBytes_)
      break;
    MatmulSpec spec;
    spec.m = spec.n = spec.k = side;
    for (MatrixView *view : {&spec.a, &spec.b, &spec.c})
      *view = {element, {side * side, side, 1}};
    auto plan = device_.engine().planMatmul(spec);
    std::byte *a = block_.data(), *b = a + bytes, *c = b + bytes;
    double seconds = leastOf(Queue::Compute, [&] { plan->run(a, b, c, nullptr); });
    rate = std::max(rate, spec.flops() / seconds);
    if (seconds > longProduct)
      break;
  }
  return rate;
}

void GpuMeasurement::measureProducts(bool tf32, Json &profile, Json &measured) {
  // What products read is finite in each type.
  device_.wait(Fence(Queue::Compute, enqueue(Queue::Compute, [&] {
                       device_.engine().fill(block_.data(), deviceBytes_, 0x3f003f00, 4);
                     })));
  double f32 = product(ElementType::f32), bf16 = product(ElementType::bf16);
  measured[tf32 ? "products of tf32" : "products of f32"] = figure(f32 / 1e9, "GFLOP/s");
  measured["products of bf16"] = figure(bf16 / 1e9, "GFLOP/s");
  profile["flops"] = figure(bf16 / 1e9, "GFLOP/s");
}

void GpuMeasurement::measureLaunches(Json &profile, Json &measured) {
  constexpr int row = 50, entries = 200;
  auto *numbers = reinterpret_cast<float *>(block_.data());
  auto kernel = [&] { device_.engine().scale(numbers, 1, 1.0f); };
  profile["launch"] = figure(leastOf(Queue::Compute, [&] {
                               for (int i = 0; i < row; ++i)
                                 kernel();
                             }) / row * 1e6, "us");
  auto perEntry = [&](const std::function<void()> &body) {
    double least = leastSeconds(part_, [&] {
      for (int i = 0; i < entries; ++i)
        body ? enqueue(Queue::Compute, body) : device_.enqueue(Queue::Compute, {}, {});
      device_.drain();
    });
    return figure(least / entries * 1e6, "us");
  };
  measured["an empty entry"] = perEntry(nullptr);
  measured["an entry with a kernel"] = perEntry(kernel);
  measured["a kernel with the wait for it"] =
      figure(leastSeconds(part_, [&] { device_.wait(Fence(Queue::Compute, enqueue(Queue::Compute, kernel))); }) * 1e6, "us");
}

void measureGpuSpeed(const DeviceOptions &given, double seconds, Json &profile) {
  DeviceOptions without(given.driver(), "");
  static constexpr std::string_view ofDisks[] = {"disk", "host"};
  without.add(given, ofDisks);
  DeviceRef device = Device::open(without.spec());
  Json measured = Json::object();
  GpuMeasurement measurement(*device, seconds / 8);
  measurement.measureMemory(profile, measured);
  measurement.measureProducts(given.text("tf32", "") == "on", profile, measured);
}

void measureGpu(const DeviceOptions &given, const std::string &folder, const MeasureOptions &options, Json &profile) {
  // A disk is measured by itself; a device above one would take all of it.
  DeviceOptions without(given.driver(), "");
  static constexpr std::string_view ofDisks[] = {"disk", "host"};
  without.add(given, ofDisks);
  double part = options.seconds / (folder.empty() ? 20 : 30);
  DeviceRef device = Device::open(without.spec());
  Json measured = Json::object();
  for (const SpaceInfo &space : device->spaces())
    if (space.space != Space::DeviceDram)
      profile[space.space == Space::HostPinned ? "pinned" : space.space == Space::DeviceL1 ? "l1" : "host"] =
          std::to_string(space.capacityBytes);
  {
    GpuMeasurement measurement(*device, part);
    measurement.measureLink(profile, measured);
    measurement.measureMemory(profile, measured);
    measurement.measureProducts(given.text("tf32", "") == "on", profile, measured);
    measurement.measureLaunches(profile, measured);
  }
  uint64_t dram = device->memory().budget(Space::DeviceDram);
  if (options.gpuMemory) {
    // What is free goes back to the driver. The rest that is taken is in no books: contexts, code, and other programs.
    device->memory().setBudget(Space::DeviceDram, device->memory().liveBytes(Space::DeviceDram));
    GpuMemory now = options.gpuMemory(device->number());
    uint64_t taken = now.totalBytes - now.freeBytes;
    taken -= std::min(taken, device->memory().liveBytes(Space::DeviceDram));
    measured["memory that the driver and other programs take"] = std::to_string(taken);
    measured["memory in all"] = std::to_string(now.totalBytes);
    dram = std::min(dram, now.totalBytes - taken);
  }
  profile["dram"] = std::to_string(dram);
  profile["hostmem"] = figure(copyBytesPerSecond(part) / 1e9, "GB/s");
  if (!folder.empty()) {
    DiskFigures disk = measureDisk(folder, options.diskBytes, 10 * part);
    profile["diskread"] = figure(disk.readBytesPerSecond / 1e9, "GB/s");
    profile["diskwrite"] = figure(disk.writeBytesPerSecond / 1e9, "GB/s");
    measured["a block of 4 KiB from the disk"] = figure(disk.latencySeconds * 1e6, "us");
  }
  profile["measured"] = std::move(measured);
}

} // namespace segue::inline runtime
