//===- AllocationTrace.h - what steps take of a device's memory -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An allocation trace has every block of device_dram that some steps take, with its
// owner and the times from which and until which it lives. Time is the number of
// allocations and frees before, so that a trace is the same in every run. From it,
// packAddresses makes an AddressPlan.
//
//   AllocationTrace trace(device->memory());
//   trace.begin();
//   for (...) trace.beginStep(), session.step(...);
//   StepAllocations steps = trace.end();
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_ALLOCATIONTRACE_H
#define SEGUE_RUNTIME_PLAN_ALLOCATIONTRACE_H

#include "segue/runtime/Memory/DeviceMemory.h"
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace segue::inline runtime {

/// The bytes of which most blocks begin at a multiple.
inline constexpr uint64_t addressGrain = 64;
constexpr uint64_t alignedUp(uint64_t bytes) { return (bytes + addressGrain - 1) / addressGrain * addressGrain; }

struct StepAllocations {
  static constexpr uint64_t never = UINT64_MAX;

  struct Block {
    /// The index into `owners`, and the step in which the block was taken.
    uint32_t owner = 0, step = 0;
    uint32_t alignment = 1;
    uint64_t bytes = 0;
    /// The times from which and until which the block lives.
    uint64_t begin = 0, end = never;
  };
  /// Blocks in the order in which they were taken.
  std::vector<Block> blocks;
  std::vector<MemoryOwner> owners;
  /// The time at which each step begins, and the one at which the last step ends.
  std::vector<uint64_t> times;
  /// The most bytes, from the beginning of an empty device on, that memory which was live
  /// before the first step takes, in whatever order it came there.
  uint64_t bytesBefore = 0;

  uint32_t steps() const { return uint32_t(times.size() - 1); }
  /// Returns the first step after the first one that the next repeats, block for block;
  /// nothing if no two are the same.
  std::optional<uint32_t> repeats() const;
};

class AllocationTrace final : public MemoryWatcher {
public:
  /// Watches `memory` until it is destroyed, from its first block on.
  explicit AllocationTrace(DeviceMemory &memory) : memory_(memory) { memory_.watch(this); }
  ~AllocationTrace() override { memory_.watch(nullptr); }
  AllocationTrace(const AllocationTrace &) = delete;
  AllocationTrace &operator=(const AllocationTrace &) = delete;

  /// Begins the trace. Calls of beginStep() follow.
  void begin();
  void beginStep() { seen_.times.push_back(now_); }
  /// Returns true if the steps so far would repeat, had the last one ended now.
  bool repeats();
  /// Ends the last step and returns what all of them have taken.
  StepAllocations end();

  /// The end of the highest block that was ever taken, counted from `origin`.
  uint64_t highest(const std::byte *origin) const { return highest_ ? highest_ - reinterpret_cast<uintptr_t>(origin) : 0; }

  void onTaken(const void *data, uint64_t bytes, uint32_t alignment, OwnerId owner) override;
  void onGiven(const void *data) override;

private:
  static constexpr size_t noBlock = SIZE_MAX;
  struct Live {
    uint64_t bytes;
    uint32_t alignment;
    /// The index into the blocks of the steps, or noBlock if it was taken outside of them.
    size_t block;
  };

  DeviceMemory &memory_;
  StepAllocations seen_;
  bool isOn_ = false;
  uint64_t now_ = 0;
  uintptr_t highest_ = 0;
  std::unordered_map<OwnerId, uint32_t> owners_;
  std::vector<OwnerId> numbers_;
  std::unordered_map<const void *, Live> live_;
};

/// Returns addresses for all blocks of the steps and of all steps after them, within `free`
/// (ascending, disjoint ranges, each used from its beginning on). Tries several orders
/// until one takes `goalBytes` or less, and returns the least that was found. Returns
/// nothing if the steps never repeat, or their blocks do not fit.
std::optional<AddressPlan> packAddresses(const StepAllocations &steps, std::span<const AddressRange> free,
                                         uint64_t goalBytes);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_ALLOCATIONTRACE_H
