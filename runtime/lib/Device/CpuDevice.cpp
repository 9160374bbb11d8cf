//===- CpuDevice.cpp - this machine's processors --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Memory is unified: host, host_pinned and device_dram are one heap. Launches
// run on the OpenMP pool that oneDNN uses too, hence one set of threads.
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"
#include "../Memory/CachingAllocator.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <unistd.h>

namespace segue::inline runtime {

namespace {
class CpuDevice final : public Device {
public:
  explicit CpuDevice(int threads) : engine_(Threads(threads)), namedThreads_(threads) {
    uint64_t capacity = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
    spaces_[0] = {Space::Host, capacity};
    spaces_[1] = {Space::HostPinned, capacity};
    spaces_[2] = {Space::DeviceDram, capacity};
  }

  std::string name() const override {
    return namedThreads_ ? "cpu:threads=" + std::to_string(namedThreads_) : std::string("cpu");
  }
  std::span<const SpaceInfo> spaces() const override { return spaces_; }
  bool hasUnifiedMemory() const override { return true; }
  int threads() const override { return engine_.threads().count(); }

  bool runsInline() const override { return true; }
  MemoryBlock takeMemory(Space, uint64_t bytes, uint32_t alignment, Lifetime) override {
    return {raw_.allocate(bytes, alignment), {}};
  }
  void giveMemory(Space, void *data, uint64_t bytes, uint32_t alignment, const Fence &) noexcept override {
    raw_.free(data, bytes, alignment);
  }

  uint64_t enqueue(Queue queue, const Fence &, Work work) override {
    uint64_t position = positions_[uint8_t(queue)].fetch_add(1, std::memory_order_relaxed) + 1;
    work.run();
    return position;
  }
  uint64_t position(Queue queue) const override { return positions_[uint8_t(queue)].load(std::memory_order_relaxed); }
  bool isDone(const Fence &) const override { return true; }
  void wait(const Fence &) override {}

  void copy(void *target, const void *source, uint64_t bytes) override {
    if (bytes)
      std::memcpy(target, source, bytes);
  }

  void relayout(const CopyPlan &plan, const void *source, void *target) override {
    plan.run(source, target, threads());
  }

  Engine &engine() override { return engine_; }

  int64_t launch(KernelFunction kernel, void *const *args, int64_t range, int64_t grain, int threads) override;

  double seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

private:
  CachingAllocator raw_;
  std::atomic<uint64_t> positions_[queueCount]{};
  Engine engine_;
  int namedThreads_;
  SpaceInfo spaces_[3];
};
} // namespace

int64_t CpuDevice::launch(KernelFunction kernel, void *const *args, int64_t range, int64_t grain, int threads) {
  if (threads <= 1) {
    FlushDenormals flush;
    return kernel(args, 0, range);
  }
  // The failing piece of the lowest position decides, so that the report does
  // not depend on which thread was first. A piece fails once.
  std::atomic<int64_t> firstFailure{INT64_MAX};
  std::atomic<int64_t> result{0};
  Threads(std::min(threads, engine_.threads().count())).parallelFor(range, grain, [&](int64_t begin, int64_t end) {
    int64_t code = kernel(args, begin, end);
    if (code == 0)
      return;
    int64_t first = firstFailure.load();
    while (begin < first)
      if (firstFailure.compare_exchange_weak(first, begin)) {
        result.store(code);
        break;
      }
  });
  return result.load();
}

DeviceRef openCpuDevice(const std::map<std::string, std::string> &options) {
  int threads = 0;
  for (const auto &[key, value] : options) {
    if (key != "threads")
      throw Error(ErrorCode::InvalidArgument,
                  "device \"cpu\": there is no option \"" + key + "\"; known is \"threads\"");
    auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), threads);
    if (error != std::errc() || end != value.data() + value.size() || threads < 1 || threads > 1024)
      throw Error(ErrorCode::InvalidArgument,
                  "device \"cpu\": threads=" + value + " is not a number between 1 and 1024");
  }
  return std::make_shared<CpuDevice>(threads);
}

} // namespace segue::inline runtime
