//===- Residency.h - where items are, and how they move ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One table of items (see Item.h) on one device with memory of its own, and the
// verbs by which policies move them. A plan says only when (leave, fetch); watermarks
// choose the host's memory and the token of each copy, and are told of its end
// (leaveTo, tryFetch, takeEnds); a ring of weights chooses the place on the device, too,
// and the item's home may be any ItemSource (add, fetchInto, takeEnd):
//
//   Item &item = residency.hold(saved, "h.0.saved.1", owner);   // truth on the device
//   residency.leave(item);                        // queued; the host has it soon
//   residency.fetch(item);                        // queued, ahead of its need
//   Tensor there = residency.take(item);          // for the program that reads it
//
//   Item &block = residency.add(weights, "h.0");  // an ItemSource
//   residency.fetchInto(block, slot, how);        // queued; takeEnd says how it went
//
// A value that leaves is copied to page-locked memory, or to pageable memory where there is
// none left. The device's bytes are given up once the copy is known to be whole, or earlier
// where their room is needed: then the host waits for the copy. A copy that fails after the
// engine's second try loses nothing: the device's copy stays, serves readers, and leaves
// again later (leaveKept). Where copies are checked, the hash of what left is compared
// before the bytes are used again. If a program failed to write a value, the item's home
// becomes FAILED, and no stale value is ever used.
//
// All calls come from the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_RESIDENCY_RESIDENCY_H
#define SEGUE_RUNTIME_RESIDENCY_RESIDENCY_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Residency/Item.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace segue::inline runtime {

/// Returns memory of the host, or of the disk where the device has one, for a value of such a
/// shape and type, not initialised. It is page-locked if `isPinned` and there is room for it
/// beside what copies are staged in, else pageable. The books have it under `owner`. Throws
/// DeviceOom.
Tensor emptyHome(const DeviceRef &device, TensorDesc desc, bool isPinned = true, OwnerId owner = 0);

class Residency {
public:
  explicit Residency(DeviceRef device);
  Residency(const Residency &) = delete;
  Residency &operator=(const Residency &) = delete;
  ~Residency();

  /// Sets the function that gets a sentence for each item whose copy to the host failed,
  /// once until one succeeds.
  void setWarn(std::function<void(const std::string &)> warn) { warn_ = std::move(warn); }
  /// With true, what leaves from now on gets a hash, which is compared before its bytes are
  /// used on the device again; a difference is ChecksumMismatch.
  void checkCopies(bool check) { checksCopies_ = check; }
  /// With true, copies to the host take a token each, as no plan has decided when they go.
  void takeTokens(bool take) { takesTokens_ = take; }
  /// With true, a plan says at which address each copy lies: an item that is needed again
  /// while it leaves gets a new copy there, as if it had left.
  void setPlaced(bool isPlaced) { isPlaced_ = isPlaced; }

  //===--------------------------------------------------------------------===//
  // The table
  //===--------------------------------------------------------------------===//

  /// Returns true if `tensor` lies in memory of the host that programs cannot compute in.
  bool isHome(const Tensor &tensor) const;
  /// Returns the item whose home is `home`; makes one where there is none, with its truth there.
  Item &adopt(const Tensor &home, std::string name, OwnerId owner, std::shared_ptr<const TensorDesc> onDevice);
  /// Whoever asks next for an item that has a home says anew under which name and role the books have it: the programs have
  /// changed, and with them what a parameter is to them. A plan knows blocks by these.
  void forgetOwners();
  /// Makes an item of the session whose home is `source`, which must outlive it.
  Item &add(ItemSource &source, std::string name);
  /// Makes an item whose truth is `value`, on the device.
  Item &hold(const Tensor &value, std::string name, OwnerId owner, ItemLifetime lifetime);
  /// Makes `home`, memory of the host that nobody has written, the home of an item that has
  /// none: the newest value comes there when the item leaves.
  void giveHome(Item &item, const Tensor &home);
  /// Returns the item, or null where there is none (any more).
  Item *find(Item::Id id);
  /// Returns the item whose home is the storage of `home`, or null.
  Item *findHome(const Tensor &home);
  /// Forgets the item, and gives up its copies once queued work is done with them.
  void forget(Item &item);
  /// Forgets a reported item that is Leaving; the end of its copy is reported as one
  /// that went well, and its home is kept until then.
  void abandon(Item &item);
  /// Forgets every item whose home nobody else holds.
  void forgetUnheld();
  /// Ends a step that is over or was given up: forgets the items that live within it.
  void forgetStep();

  //===--------------------------------------------------------------------===//
  // The verbs
  //===--------------------------------------------------------------------===//

  /// Queues a copy of the newest value to the host, unless it is there, and gives up the
  /// device's copy once that is whole. Returns false, with nothing done, if the host's
  /// memory is the device's. Throws, with nothing changed, what a source throws.
  bool leave(Item &item);
  /// Queues a copy of an item without a home to `home`, in any memory of the host, which becomes its home, and gives up
  /// the device's copy once that is whole. `how` says how the copy is made. Its end is reported. Throws DeviceOom, with
  /// nothing changed, where the copy finds no memory to be staged in.
  void leaveTo(Item &item, const Tensor &home, const TransferOptions &how);
  void leaveAll();
  /// Returns the blocks of the device that are given back by leaveAll() and settle(). Called when nothing leaves.
  std::vector<HeldBlock> blocksThatLeave() const;
  /// Makes the items that could not be copied to the host leave again.
  void leaveKept();
  /// Queues a copy to the device, unless there is one.
  void fetch(Item &item);
  /// Queues a copy to the device as `how` says. Its end is reported, unless `need` is
  /// called before: then the reader waits for it in its queue. Returns false, with nothing
  /// done, if the gate denies it. Throws DeviceOom, with nothing changed.
  bool tryFetch(Item &item, const TransferOptions &how);
  /// Queues a copy from the item's source into `place`, memory of the caller, which is the
  /// item's copy on the device until that is dropped. Its end is reported, and so is what
  /// keeps it from being queued. Returns false, with nothing done, if the source denies it.
  bool fetchInto(Item &item, const Tensor &place, const TransferOptions &how);
  /// Makes an item that leaves stay, as it is needed again: where it lies, or where a plan
  /// has its next copy. Returns false if it is not leaving.
  bool stay(Item &item);
  /// Returns the copy on the device; fetches it where there is none. With `isWritten`, the
  /// work that is queued next changes it. With `mustArrive`, blocks until it is there, and
  /// fetches again what did not arrive; throws TransferFailed after eight times. That is
  /// for programs that write in place, which must not begin without all they read.
  Tensor need(Item &item, bool isWritten = false, bool mustArrive = false);
  /// Gives up the copy of `tier`, which another tier must have too. The host's memory is
  /// the caller's again, and the item has no home.
  void drop(Item &item, Tier tier);
  /// Returns the copy on the device, fetched where there is none, as the caller's own, and
  /// forgets the item.
  Tensor take(Item &item);
  /// Gives up copies on the device until `wanted` bytes fit the budget: first those on
  /// their way to the host, the oldest first, for which it blocks, then others that the
  /// host has too. Returns the bytes given.
  uint64_t makeRoom(uint64_t wanted);

  //===--------------------------------------------------------------------===//
  // Ends of copies, and values that change outside
  //===--------------------------------------------------------------------===//

  /// Gives up what has left by now. Every verb calls it.
  void poll();
  /// The end of a copy that was reported.
  struct End {
    Item::Id item;
    /// The tier that the copy came to, or would have.
    Tier tier;
    /// The cause, if the copy failed; its source is whole then. `mayFetchAgain` is what the
    /// source says of another try.
    std::optional<Error> failure = {};
    bool mayFetchAgain = true;
  };
  /// Returns the ends that were noticed since the last call, in their order.
  std::vector<End> takeEnds() { return std::exchange(ends_, {}); }
  /// Returns the oldest end of a copy to `tier`, or nothing if there is none. With `waits`,
  /// blocks for one if a copy is under way.
  std::optional<End> takeEnd(Tier tier, bool waits);
  /// Blocks until the copy of the item that is under way has ended, and returns its end; nothing if none is under way.
  std::optional<End> awaitEnd(Item &item);
  /// Sets a function that is asked of each reported copy to the host that has ended, before
  /// the device's bytes are given up. If it returns false, the copy counts as one that
  /// failed.
  void setJudge(std::function<bool(const Item &)> isGood) { isGood_ = std::move(isGood); }
  /// Returns the item whose copy to `tier` is longest under way, or null. To the device,
  /// only copies whose ends are reported count.
  Item *oldest(Tier tier);
  /// Blocks until one more item has left, or stays; returns false if none is leaving.
  bool awaitDeparture();
  /// Blocks until every item that leaves has left, or stays.
  void settle();
  /// Brings the newest values home, and returns when they are there; copies on the device
  /// stay. Throws TransferFailed.
  void writeBack();
  /// Writes one item back in the same way, which must not be Leaving; its end is not reported.
  void writeBack(Item &item);
  /// Blocks until the newest value is whole where it is. Throws the error of its copy if that failed.
  void await(const Tensor &home);
  /// Returns true if the device has a value that the home lacks, or may lack.
  bool holdsNewer(const Tensor &home);
  /// Returns the hash of the bytes at home, if they were hashed on their way there and are the newest value.
  std::optional<uint64_t> hashAtHome(const Tensor &home);
  /// Notes that the caller has written the home: the copy on the device is stale and dropped.
  void homeWritten(const Tensor &home);
  void homeWritten(Item &item);
  /// Notes that the caller has written every home.
  void homesWritten();

  struct Counts {
    uint64_t fetched = 0, fetchedBytes = 0, left = 0, leftBytes = 0;
    /// Items that left for pageable memory, as no page-locked memory was left.
    uint64_t unpinned = 0;
    /// Copies to the host that failed, so that the device's copies stayed.
    uint64_t kept = 0;
  };
  const Counts &counts() const { return counts_; }

private:
  void dropFailed(Item &item);
  void startFetch(Item &item);
  void copyToHost(Item &item);
  std::optional<Error> takeHomeFailure(Item &item);
  std::optional<Error> finishCopy(Item &item);
  std::deque<Item::Id> &comingTo(Tier tier) { return coming_[size_t(tier)]; }
  const Fence &endOf(const Item &item, Tier tier) const;
  void poll(Tier tier);
  void arrive(Item &item, Tier tier);
  void arriveOnHost(Item &item);
  void arriveOnDevice(Item &item);
  End takeEnd(std::vector<End>::iterator end);
  std::map<Item::Id, Item>::iterator erase(std::map<Item::Id, Item>::iterator item);

  DeviceRef device_;
  std::map<Item::Id, Item> items_;
  Item::Id nextId_ = 1;
  /// Items by the id of the storage of their home.
  std::map<uint64_t, Item *> byHome_;
  /// Items whose copy to each tier is under way, the oldest first; some may be gone. Copies
  /// to the device are here only if their ends are reported.
  std::array<std::deque<Item::Id>, tierNames.size()> coming_;
  std::vector<End> ends_;
  struct Abandoned {
    Item::Id item;
    Tensor home;
  };
  std::deque<Abandoned> abandoned_;
  std::function<bool(const Item &)> isGood_;
  std::function<void(const std::string &)> warn_;
  Counts counts_;
  bool isPlaced_ = false, checksCopies_ = false, takesTokens_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_RESIDENCY_RESIDENCY_H
