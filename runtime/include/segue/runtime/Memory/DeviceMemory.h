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
#include <set>

namespace segue::inline runtime {

class AddressFollower;

/// One line of the books: what an owner holds that was taken in one phase.
struct MemoryHolder {
  MemoryOwner owner;
  /// The phase in which the bytes were taken, or empty.
  std::string phase;
  uint64_t liveBytes = 0, blocks = 0;
  /// The most this line ever held, and what it held when the space as a whole
  /// was at its high-water mark.
  uint64_t peakBytes = 0, bytesAtPeak = 0;
};

/// The error DEVICE_OOM with everything that was known; the message says it in words. Who catches one that may have
/// been put within another sentence on its way asks it for details<OutOfMemory::Report>().
class __attribute__((visibility("default"))) OutOfMemory : public Error {
public:
  struct __attribute__((visibility("default"))) Report : ErrorDetails {
    std::string device;
    Space space = Space::DeviceDram;
    uint64_t wantedBytes = 0, budgetBytes = 0, liveBytes = 0, capacityBytes = 0;
    MemoryOwner wantedBy;
    FreeMemory free;
    /// The room makers that were asked, with the bytes that each gave back.
    std::vector<std::pair<std::string, uint64_t>> tried;
    /// A tensor that should have left and could not, with the cause; empty where none is known.
    std::string stayed;
    /// All holders of the space, greatest first.
    std::vector<MemoryHolder> holders;
    /// The smallest budget under which this allocation would have fitted, in bytes; the
    /// present one if only fragmentation stood in the way.
    uint64_t smallestBudgetBytes = 0;
  };
  explicit OutOfMemory(Report report);
  const Report &report() const { return *details<Report>(); }
};

/// An object that is told of every block of device_dram that is taken and given back. It is
/// called while the books are locked.
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

  /// Takes memory, which is not initialised. Asks for room (see addRoomMaker) before it
  /// throws OutOfMemory. Throws Unsupported where the device lacks the space.
  MemoryBlock allocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner = 0,
                       Lifetime lifetime = Lifetime::Long);

  /// Allocates without making room; gives null data in place of throwing.
  MemoryBlock tryAllocate(Space space, uint64_t bytes, uint32_t alignment, OwnerId owner = 0,
                          Lifetime lifetime = Lifetime::Long);

  /// Gives a block back. `account` is the block's; the rest are the arguments of allocate.
  /// `lastUse` names queued work that still touches the block; it may be given out again at
  /// once, with that fence.
  void free(Space space, void *data, uint64_t bytes, uint32_t alignment, uint32_t account,
            const Fence &lastUse) noexcept;

  //===--------------------------------------------------------------------===//
  // Budgets
  //===--------------------------------------------------------------------===//

  /// Sets the budget of a space, which is its capacity until then. A budget above the
  /// capacity counts as the capacity; one below what is live holds for allocations to come.
  void setBudget(Space space, uint64_t bytes);
  /// Returns the bytes that allocations keep to: the least of the budget and of all caps that are in force.
  uint64_t budget(Space space) const;

  /// A cap of somebody who shares the device with others. It is in force until it is destroyed, before the memory
  /// is, in whatever order caps come and go.
  class CapHandle {
  public:
    CapHandle() = default;
    CapHandle(CapHandle &&) = default;
    CapHandle &operator=(CapHandle &&) = default;

  private:
    friend class DeviceMemory;
    std::shared_ptr<void> entry_;
  };
  [[nodiscard]] CapHandle addCap(Space space, uint64_t bytes);

  /// A function that gives memory back when asked, since `wanted` bytes of `space` are
  /// missing. It returns the bytes that it freed, 0 if it had none.
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
  /// Adds a room maker. They are asked in the order of `rank`, then of registration. `name`
  /// stands for the maker in the report of a failure.
  [[nodiscard]] RoomMakerHandle addRoomMaker(std::string name, int rank, RoomMaker maker);

  /// Notes a sentence about what should have left device_dram and could not, with the cause. The report of a
  /// failure has the last one. An empty text says that it has left since.
  void noteStayed(std::string what);

  /// Sets who joins free ranges of device_dram. If there are enough free bytes but they lie
  /// apart, `maker` makes one range of them before any room maker is asked, and again after
  /// each that gave some, unless a plan has addresses. With null nobody does. `maker` must
  /// live until it is replaced.
  void setRangeMaker(RangeMaker *maker) { rangeMaker_ = maker; }
  /// A function through which all calls of the range maker are made. It runs its argument
  /// on this thread as the one that submits, or returns false if another thread submits.
  using Exclusively = std::function<bool(const std::function<void()> &body)>;
  void setExclusively(Exclusively exclusively) { exclusively_ = std::move(exclusively); }

  //===--------------------------------------------------------------------===//
  // Certified addresses of device_dram
  //===--------------------------------------------------------------------===//

  /// Makes steps from the next on take their blocks where `plan` says. The plan's ranges,
  /// which must be free now, count as taken from the budget for everybody else; others get
  /// free parts of them only where nothing else is free. `awaitRoom` is called without
  /// locks when an address is not free yet, and returns false if nobody is about to leave
  /// it. Returns false, with nothing changed, on a device that cannot place a block where
  /// it is told to, or if a range is not free.
  bool followAddresses(AddressPlan plan, std::function<bool()> awaitRoom);
  /// Returns a number of the plan whose addresses are followed, which no other has, and 0 where none is.
  uint64_t addressPlan() const;
  /// Ends the plan. Its ranges are anybody's again; blocks that lie there stay.
  void forgetAddresses();
  /// Makes the step that begins next the plan's first.
  void restartAddresses();
  /// Begin and end a step of the plan. Called on the thread whose allocations are planned.
  void beginPlannedStep();
  void endPlannedStep();
  /// Returns true between the two.
  bool isInPlannedStep() const;
  /// While an object of this class lives, what the thread of the steps allocates is no block
  /// of the plan, whatever its owner and size: it lies in the room that was left beside the
  /// plan, or is lent some of the plan's. Not nested.
  class BesidePlan {
  public:
    explicit BesidePlan(DeviceMemory &memory) : memory_(memory) { memory_.setBesidePlan(true); }
    ~BesidePlan() { memory_.setBesidePlan(false); }
    BesidePlan(const BesidePlan &) = delete;
    BesidePlan &operator=(const BesidePlan &) = delete;

  private:
    DeviceMemory &memory_;
  };
  /// Says where the plan has the next block of `owner`, which still holds the block at
  /// `data` of `bytes` (as they were allocated). Here: at the same place, and the address
  /// then counts as taken. Overlapping: over a part of it. Elsewhere: at another place, or
  /// there is no plan.
  enum class NextPlace : uint8_t { Here, Overlapping, Elsewhere };
  NextPlace nextPlace(const void *data, uint64_t bytes, OwnerId owner);
  /// Returns the bytes of a plan's ranges that others hold, so that steps cannot keep to it.
  uint64_t lentBytes() const;
  /// Returns the figures since the plan was made.
  AddressFigures addressFigures() const;

  /// Sets the watcher. There is one at a time; with null there is none.
  void watch(MemoryWatcher *watcher);

  //===--------------------------------------------------------------------===//
  // The books
  //===--------------------------------------------------------------------===//

  /// Returns the number of an owner; equal owners have one number.
  OwnerId intern(const MemoryOwner &owner);
  MemoryOwner owner(OwnerId id) const;

  /// Makes bytes that are taken from now on count to this phase: a literal, "" outside of steps.
  void setPhase(std::string_view phase);

  /// Returns the bytes allocated now, and the most that there were since resetPeak.
  uint64_t liveBytes(Space space) const;
  uint64_t peakBytes(Space space) const;
  void resetPeak();

  /// Returns those who hold bytes now or held some at the peak; most bytes first, then by
  /// owner.
  std::vector<MemoryHolder> holders(Space space) const;
  /// Returns the holders as a table of at most `lines` lines for people.
  std::string holdersTable(Space space, size_t lines = 12) const;

private:
  struct Account {
    uint64_t live = 0, blocks = 0;
    /// Valid if `reset` is the number of the last reset; otherwise nothing changed since and `live` is it.
    uint64_t peak = 0, reset = 0;
    /// The bytes that were live when the space last reached a new peak. Valid if `seen` is
    /// the number of that peak; otherwise nothing has changed since and `live` is it.
    uint64_t atPeak = 0, seen = 0;
  };
  struct Usage {
    /// `given` is what setBudget has set; `budget` is the least of it and of the caps.
    uint64_t given = 0;
    std::multiset<uint64_t> caps;
    uint64_t budget = 0;
    uint64_t live = 0, peak = 0, peakNumber = 0, resets = 0;
    /// The accounts by their numbers.
    std::vector<Account> accounts;
  };
  struct Maker {
    std::string name;
    int rank;
    RoomMaker make;
  };
  static constexpr uint32_t maxPhases = 8;
  /// A bit of MemoryBlock::account: the block lies in a plan's ranges and is not one of the plan's.
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
  /// Returns false if nothing has changed.
  bool compact(Space space, uint64_t bytes, uint32_t alignment);
  void loadCapacities();
  /// Makes the budget of a space the least that it may be.
  void limit(Space space);
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
  void setBesidePlan(bool isBeside);
  /// Returns true if a block that is allocated now is to be where the plan has the next of its kind.
  bool asksPlan() const;

  /// The follower is null without a plan. Below are the bytes of the plan's ranges, those of them that are taken, and
  /// the address of offset 0.
  std::unique_ptr<AddressFollower> follower_;
  /// The number of plans so far.
  uint64_t addressPlans_ = 0;
  bool isBesidePlan_ = false;
  std::string stayed_;
  uint64_t plannedBytes_ = 0, liveInPlan_ = 0, lentBytes_ = 0;
  const std::byte *planOrigin_ = nullptr;
  std::function<bool()> awaitRoom_;
  AddressFigures addressFigures_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEMORY_DEVICEMEMORY_H
