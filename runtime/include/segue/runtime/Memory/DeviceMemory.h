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

#include "segue/runtime/Error.h"
#include "segue/runtime/Memory/AddressPlan.h"
#include "segue/runtime/Memory/RawMemory.h"
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>

namespace segue::inline runtime {

class AddressFollower;

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
    /// A tensor that should have left and could not, with the cause; empty where none is known.
    std::string stayed;
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

/// Told of every block of device_dram that is taken and given back, with the books
/// locked.
class MemoryWatcher {
public:
  virtual ~MemoryWatcher() = default;
  virtual void onTaken(const void *data, uint64_t bytes, uint32_t alignment, OwnerId owner) = 0;
  virtual void onGiven(const void *data) = 0;
};

class DeviceMemory {
public:
  explicit DeviceMemory(RawMemory &device);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;

  /// Not initialised. Asks for room (see addRoomMaker) before it throws
  /// OutOfMemory. Throws Unsupported where the device lacks the space.
  MemoryBlock allocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner = 0,
                       Lifetime lifetime = Lifetime::Long);

  /// Allocates without making room; gives null data in place of throwing.
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

  /// A sentence about what should have left device_dram and could not, with the cause: the report of a failure has
  /// the last one. Empty: it has left since.
  void noteStayed(std::string what);

  /// Where free bytes of device_dram are enough but lie apart, `maker` makes a range of
  /// them before anybody is asked for room, and after each who gave some, unless a plan
  /// has addresses. Null: nobody does. It lives until it is replaced.
  void setRangeMaker(RangeMaker *maker) { rangeMaker_ = maker; }
  /// The range maker's calls are made by `exclusively`, which runs its argument on this
  /// thread as the one that submits; where another does it returns false.
  using Exclusively = std::function<bool(const std::function<void()> &body)>;
  void setExclusively(Exclusively exclusively) { exclusively_ = std::move(exclusively); }

  //===--------------------------------------------------------------------===//
  // Certified addresses of device_dram
  //===--------------------------------------------------------------------===//

  /// Steps from the next on take their blocks where `plan` says. Its ranges, which
  /// are free now, count as taken from the budget for everybody else, who gets of
  /// them what is free only where nothing else is. `awaitRoom`: called without locks
  /// where an address is not free yet; returns false if nobody is about to leave
  /// one. False, and nothing changes, on a device that cannot place a block where it
  /// is told to, or if a range is not free.
  bool followAddresses(AddressPlan plan, std::function<bool()> awaitRoom);
  /// The ranges are anybody's again; blocks that lie there stay.
  void forgetAddresses();
  /// The step that begins next is the plan's first.
  void restartAddresses();
  /// On the thread whose allocations are planned.
  void beginPlannedStep();
  void endPlannedStep();
  /// While one lives, what the thread of the steps allocates is no block of the plan, whatever
  /// its owner and size: it lies in the room that was left beside the plan, or is lent some of
  /// the plan's. Not nested.
  class BesidePlan {
  public:
    explicit BesidePlan(DeviceMemory &memory) : memory_(memory) { memory_.setBesidePlan(true); }
    ~BesidePlan() { memory_.setBesidePlan(false); }
    BesidePlan(const BesidePlan &) = delete;
    BesidePlan &operator=(const BesidePlan &) = delete;

  private:
    DeviceMemory &memory_;
  };
  /// Where the plan has the next block of `owner`, which has this one still: where it
  /// lies, and then it counts as taken; over a part of it; or elsewhere, as where there
  /// is no plan. `bytes` as they were allocated.
  enum class NextPlace : uint8_t { Here, Overlapping, Elsewhere };
  NextPlace nextPlace(const void *data, uint64_t bytes, OwnerId owner);
  /// Returns the bytes of a plan's ranges that others hold, so that steps cannot keep to it.
  uint64_t lentBytes() const;
  /// Since the plan was made.
  AddressFigures addressFigures() const;

  /// One at a time; null: nobody.
  void watch(MemoryWatcher *watcher);

  //===--------------------------------------------------------------------===//
  // The books
  //===--------------------------------------------------------------------===//

  /// Numbers owners: equal ones have one number.
  OwnerId intern(const MemoryOwner &owner);
  MemoryOwner owner(OwnerId id) const;

  /// Bytes taken from now on are of this phase: a literal, "" outside of steps.
  void setPhase(std::string_view phase);

  /// Bytes allocated now, and the most there ever were since resetPeak.
  uint64_t liveBytes(Space space) const;
  uint64_t peakBytes(Space space) const;
  void resetPeak();

  /// Who holds bytes now or held some at the peak; most bytes first, then by
  /// owner.
  std::vector<MemoryHolder> holders(Space space) const;
  /// The holders as a table of at most `lines` lines for people.
  std::string holdersTable(Space space, size_t lines = 12) const;

private:
  struct Account {
    uint64_t live = 0, blocks = 0;
    /// Valid if `reset` is the number of the last reset; otherwise nothing changed since and `live` is it.
    uint64_t peak = 0, reset = 0;
    /// Live when the space last reached a new peak, valid if `seen` is the
    /// number of that peak; otherwise nothing changed since and `live` is it.
    uint64_t atPeak = 0, seen = 0;
  };
  struct Usage {
    uint64_t budget = 0, live = 0, peak = 0, peakNumber = 0, resets = 0;
    /// The accounts by their numbers.
    std::vector<Account> accounts;
  };
  struct Maker {
    std::string name;
    int rank;
    RoomMaker make;
  };
  static constexpr uint32_t maxPhases = 8;
  /// In MemoryBlock::account: it lies in a plan's ranges and is none of the plan's.
  static constexpr uint32_t lentBit = uint32_t(1) << 31;

  /// Says what an allocation of a planned step does where its address is not free.
  enum class Occupied : uint8_t { Tell, GoElsewhere };

  static bool fits(uint64_t budget, uint64_t live, uint64_t taken) { return live <= budget && taken <= budget - live; }
  MemoryBlock attempt(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner, Lifetime lifetime,
                      Occupied occupied, bool *isOccupied = nullptr);
  MemoryBlock takeRaw(Usage &usage, Space space, uint64_t bytes, uint32_t alignment, OwnerId owner, Lifetime lifetime,
                      uint64_t taken, Occupied occupied, bool *isOccupied);
  bool isPlanned(Space space, const void *data) const;
  bool mayMove(Space space) const;
  void stir(Space space);
  /// False if nothing has changed.
  bool compact(Space space, uint64_t bytes, uint32_t alignment);
  void loadCapacities();
  void touch(Usage &usage, Account &account);
  OutOfMemory::Report report(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner) const;

  RawMemory &device_;
  mutable std::mutex mutex_;
  Usage usage_[spaceCount];
  bool loaded_ = false;
  std::vector<MemoryOwner> owners_{MemoryOwner{}};
  std::map<MemoryOwner, OwnerId> ownerIds_;
  std::vector<std::string> phases_{""};
  uint32_t phase_ = 0;
  std::list<std::weak_ptr<Maker>> makers_;
  RangeMaker *rangeMaker_ = nullptr;
  Exclusively exclusively_;
  MemoryWatcher *watcher_ = nullptr;
  /// Null without a plan; then also its ranges' bytes, those of them that are taken,
  /// and the address of offset 0.
  void setBesidePlan(bool isBeside);
  /// Whether a block that is allocated now is to be where the plan has the next of its kind.
  bool asksPlan() const;

  std::unique_ptr<AddressFollower> follower_;
  bool isBesidePlan_ = false;
  std::string stayed_;
  uint64_t plannedBytes_ = 0, liveInPlan_ = 0, lentBytes_ = 0;
  const std::byte *planOrigin_ = nullptr;
  std::function<bool()> awaitRoom_;
  AddressFigures addressFigures_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H
