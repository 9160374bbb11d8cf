//===- DeviceMemory.h - who holds a device's memory -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every byte of every space of a device is taken and given back through this
// class. It keeps a budget per space (at most the capacity), counts live bytes
// and their high-water mark, by owner and phase, and asks for room before it
// fails. The bytes themselves come from the device, which knows where they lie.
//
//   DeviceMemory &memory = device->memory();
//   memory.setBudget(Space::DeviceDram, 512 << 20);
//   OwnerId owner = memory.intern({.program = "forward", .value = "h.0.saved.1", .role = "saved"});
//   auto storage = Storage::allocate(device, Space::DeviceDram, bytes, 64, owner);
//   for (const MemoryHolder &holder : memory.holders(Space::DeviceDram)) ...
//
// Any thread may allocate and free. Budgets and room makers are set by the
// thread that submits; room makers run on the thread that allocates, with no
// lock held.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H
#define SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H

#include "segue/runtime/Device/Fence.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Layout.h"
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>

namespace segue::inline runtime {

class Device;

/// A block of raw memory; `after`: done with its former contents. Whoever
/// writes it first, on whatever queue, waits for that fence.
struct MemoryBlock {
  void *data = nullptr;
  Fence after;
  /// Who holds it, in which phase it was taken; goes back to `free`.
  uint32_t account = 0;
};

/// Where a space is filled from both ends, short-lived blocks lie at one end.
enum class Lifetime : uint8_t { Long, Short };

struct FreeMemory {
  uint64_t bytes = 0, largestRange = 0, ranges = 0;
};

/// Names an owner within the DeviceMemory that gave the number; 0 is nobody in
/// particular.
using OwnerId = uint32_t;

/// Who holds bytes, and why. Texts may be empty.
struct MemoryOwner {
  std::string program;
  /// Name of the tensor; "(arena)" for the temporaries of a program.
  std::string value;
  std::string role;
  std::string block;
  /// In the source: "model.py:12:3 (h.0.attn)".
  std::string location;
  auto operator<=>(const MemoryOwner &) const = default;
  /// `forward: h.0.saved.1 (saved, block h.0, model.py:12:3)`.
  std::string str() const;
};

/// One line of the books.
struct MemoryHolder {
  MemoryOwner owner;
  /// The phase in which the bytes were taken, or empty.
  std::string phase;
  uint64_t liveBytes = 0, blocks = 0;
  /// The most this line ever held, and what it held when the space as a whole
  /// was at its high-water mark.
  uint64_t peakBytes = 0, bytesAtPeak = 0;
};

/// DEVICE_OOM with everything that was known; the message says it in words.
class __attribute__((visibility("default"))) OutOfMemory : public Error {
public:
  struct Report {
    std::string device;
    Space space = Space::DeviceDram;
    uint64_t wantedBytes = 0, budgetBytes = 0, liveBytes = 0, capacityBytes = 0;
    MemoryOwner wantedBy;
    FreeMemory free;
    /// Room makers asked, with the bytes that each gave back.
    std::vector<std::pair<std::string, uint64_t>> tried;
    /// Greatest first.
    std::vector<MemoryHolder> holders;
    /// The smallest budget under which this allocation would have fitted;
    /// the present one if only fragmentation stood in the way.
    uint64_t smallestBudgetBytes = 0;
  };
  explicit OutOfMemory(Report report);
  const Report &report() const { return *report_; }

private:
  std::shared_ptr<const Report> report_;
};

class DeviceMemory {
public:
  explicit DeviceMemory(Device &device);
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;

  /// Not initialised. Asks for room (see addRoomMaker) before it throws
  /// OutOfMemory. Throws Unsupported where the device lacks the space.
  MemoryBlock allocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner = 0,
                       Lifetime lifetime = Lifetime::Long);

  /// The same, but null data instead of making room or throwing.
  MemoryBlock tryAllocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner = 0,
                          Lifetime lifetime = Lifetime::Long);

  /// `account` is the block's; the rest are the arguments of allocate.
  /// `lastUse`: queued work that still touches the block; it may be given out
  /// again at once, with that fence.
  void free(Space space, void *data, uint64_t bytes, uint32_t alignment, uint32_t account,
            const Fence &lastUse) noexcept;

  //===--------------------------------------------------------------------===//
  // Budgets
  //===--------------------------------------------------------------------===//

  /// The capacity until set. A budget above the capacity counts as the
  /// capacity; one below what is live holds for allocations to come.
  void setBudget(Space space, uint64_t bytes);
  uint64_t budget(Space space) const;

  /// Gives memory back when asked: `wanted` bytes of `space` are missing.
  /// Returns the bytes that it freed, 0 if it had none.
  using RoomMaker = std::function<uint64_t(Space space, uint64_t wanted)>;
  /// Forgets the room maker when destroyed.
  class RoomMakerHandle {
  public:
    RoomMakerHandle() = default;
    RoomMakerHandle(RoomMakerHandle &&) = default;
    RoomMakerHandle &operator=(RoomMakerHandle &&) = default;

  private:
    friend class DeviceMemory;
    std::shared_ptr<void> entry_;
  };
  /// Asked in the order of `rank`, then of registration. `name` stands for it
  /// in the report of a failure.
  [[nodiscard]] RoomMakerHandle addRoomMaker(std::string name, int rank, RoomMaker maker);

  //===--------------------------------------------------------------------===//
  // The books
  //===--------------------------------------------------------------------===//

  /// The same number for the same owner.
  OwnerId intern(const MemoryOwner &owner);

  /// Bytes taken from now on are of this phase: a literal, "" outside of steps.
  void setPhase(std::string_view phase);

  /// Bytes allocated now, and the most there ever were since resetPeak.
  uint64_t liveBytes(Space space) const;
  uint64_t peakBytes(Space space) const;
  void resetPeak();

  /// Who holds bytes now or held some at the peak; most bytes first, then by
  /// owner.
  std::vector<MemoryHolder> holders(Space space) const;
  /// The same as a table of at most `lines` lines for people.
  std::string holdersTable(Space space, size_t lines = 12) const;

private:
  struct Account {
    uint64_t live = 0, peak = 0, blocks = 0;
    /// Live when the space last reached a new peak, valid if `seen` is the
    /// number of that peak; otherwise nothing changed since and `live` is it.
    uint64_t atPeak = 0, seen = 0;
  };
  struct Usage {
    uint64_t budget = 0, live = 0, peak = 0, peakNumber = 0;
    /// By account number.
    std::vector<Account> accounts;
  };
  struct Maker {
    std::string name;
    int rank;
    RoomMaker make;
  };
  static constexpr uint32_t maxPhases = 8;

  bool fits(const Usage &usage, uint64_t taken) const {
    return usage.live <= usage.budget && taken <= usage.budget - usage.live;
  }
  void loadCapacities();
  void touch(Usage &usage, Account &account);
  OutOfMemory::Report report(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner) const;

  Device &device_;
  mutable std::mutex mutex_;
  Usage usage_[4];
  bool loaded_ = false;
  std::vector<MemoryOwner> owners_{MemoryOwner{}};
  std::map<MemoryOwner, OwnerId> ownerIds_;
  std::vector<std::string> phases_{""};
  uint32_t phase_ = 0;
  std::list<std::weak_ptr<Maker>> makers_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H
