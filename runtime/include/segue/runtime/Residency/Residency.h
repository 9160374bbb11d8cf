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
// none left. The device's bytes are given up once the copy is known to be whole,
// or earlier where their room is needed: then the host waits for it. A copy that
// fails after the engine's second try loses nothing: the device's copy stays, serves
// who asks, and leaves with the next that does. Where copies are checked, the hash
// of what left is compared before the bytes are used again. What a program failed
// to write makes the item's home FAILED, and no stale value is ever used.
//
// One thread, that submits.
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

/// Memory of the host, or of the disk where the device has one, for a value of such a shape
/// and type, not initialised: page-locked where `isPinned` and there is room for it beside
/// what copies are staged in, else pageable. The books have it under `owner`. Throws DeviceOom.
Tensor emptyHome(const DeviceRef &device, TensorDesc desc, bool isPinned = true, OwnerId owner = 0);

class Residency {
public:
  explicit Residency(DeviceRef device);
  Residency(const Residency &) = delete;
  Residency &operator=(const Residency &) = delete;
  ~Residency();

  /// `warn` gets a sentence for each item whose copy to the host failed, once until
  /// one succeeds.
  void setWarn(std::function<void(const std::string &)> warn) { warn_ = std::move(warn); }
  /// From now on what leaves gets a hash, which is compared before its bytes are used
  /// on the device again: ChecksumMismatch.
  void checkCopies(bool check) { checksCopies_ = check; }
  /// Copies to the host take a token each, as no plan has decided when they go.
  void takeTokens(bool take) { takesTokens_ = take; }
  /// A plan says at which address each copy lies: an item that is needed again while
  /// it leaves gets a new copy there, as if it had left.
  void setPlaced(bool isPlaced) { isPlaced_ = isPlaced; }

  //===--------------------------------------------------------------------===//
  // The table
  //===--------------------------------------------------------------------===//

  /// Whether `tensor` lies in memory of the host that programs cannot compute in.
  bool isHome(const Tensor &tensor) const;
  /// The item whose home is `home`; made where there is none, with its truth there.
  Item &adopt(const Tensor &home, std::string name, OwnerId owner, std::shared_ptr<const TensorDesc> onDevice);
  /// A new item of the session whose home is `source`, which outlives it.
  Item &add(ItemSource &source, std::string name);
  /// A new item whose truth is `value`, on the device.
  Item &hold(const Tensor &value, std::string name, OwnerId owner, ItemLifetime lifetime);
  /// `home`, memory of the host that nobody has written, becomes the home of an item that
  /// has none: the newest value comes there when the item leaves.
  void giveHome(Item &item, const Tensor &home);
  /// Null where there is none (any more).
  Item *find(Item::Id id);
  /// The item whose home is the storage of `home`, or null.
  Item *findHome(const Tensor &home);
  /// Forgets the item, and gives up its copies once queued work is done with them.
  void forget(Item &item);
  /// Forgets a reported item that is Leaving; the end of its copy is reported as one
  /// that went well, and its home is kept until then.
  void abandon(Item &item);
  /// Forgets every item whose home nobody else holds.
  void forgetUnheld();
  /// The step is over or was given up: forgets the items that live within it.
  void forgetStep();

  //===--------------------------------------------------------------------===//
  // The verbs
  //===--------------------------------------------------------------------===//

  /// Queues a copy of the newest value to the host, unless it is there, and gives up
  /// the device's copy once that is whole. False, with nothing done, where the host's
  /// memory is the device's. Throws, with nothing changed, what a source throws.
  bool leave(Item &item);
  /// Queues a copy of an item without a home to `home`, in any memory of the host,
  /// which becomes its home, and gives up the device's copy once that is whole. `how`: of the copy. Its end is reported. Throws
  /// DeviceOom, with nothing changed, where the copy finds no memory to be staged in.
  void leaveTo(Item &item, const Tensor &home, const TransferOptions &how);
  void leaveAll();
  /// Items that could not be copied to the host leave again.
  void leaveKept();
  /// Queues a copy to the device, unless there is one.
  void fetch(Item &item);
  /// Queues one as `how` says, whose end is reported, unless somebody calls `need`
  /// before: then whoever reads it waits in its queue. False, with nothing done, where
  /// the gate denies it. Throws DeviceOom, with nothing changed.
  bool tryFetch(Item &item, const TransferOptions &how);
  /// Queues a copy from its source into `place`, memory of the caller, which is its copy on
  /// the device until that is dropped. Its end is reported, and so is what keeps it from
  /// being queued. False, with nothing done, where the source denies it.
  bool fetchInto(Item &item, const Tensor &place, const TransferOptions &how);
  /// An item that leaves is needed again, and stays: where it lies, or where a plan has
  /// its next copy. False where it is not leaving.
  bool stay(Item &item);
  /// The copy on the device; fetches it where there is none. `isWritten`: what is
  /// queued next changes it. `mustArrive`: blocks until it is there, and fetches
  /// again what did not arrive; throws TransferFailed after eight times. For programs
  /// that write in place, which must not begin without all they read.
  Tensor need(Item &item, bool isWritten = false, bool mustArrive = false);
  /// Gives up the copy of `tier`, which another has, too. The host's memory is the
  /// caller's again, and the item has no home.
  void drop(Item &item, Tier tier);
  /// The copy on the device becomes the caller's own, fetched where there is none,
  /// and the item is forgotten.
  Tensor take(Item &item);
  /// Gives up copies on the device, those first whose way to the host is longest under
  /// way, until `wanted` bytes fit the budget; blocks for them. Returns the bytes given.
  uint64_t makeRoom(uint64_t wanted);

  //===--------------------------------------------------------------------===//
  // Ends of copies, and values that change outside
  //===--------------------------------------------------------------------===//

  /// Gives up what has left by now. Every verb does.
  void poll();
  /// The end of a copy that was reported.
  struct End {
    Item::Id item;
    /// Where the copy came to, or would have.
    Tier tier;
    /// The cause, where the copy failed; its source is whole then, and says whether the
    /// copy may succeed another time.
    std::optional<Error> failure = {};
    bool mayFetchAgain = true;
  };
  /// The ends that were noticed since the last call, in their order.
  std::vector<End> takeEnds() { return std::exchange(ends_, {}); }
  /// One end of a copy to `tier`, the oldest; `waits`: blocks for it. Nothing where there
  /// is none, or none under way.
  std::optional<End> takeEnd(Tier tier, bool waits);
  /// Blocks until the copy of the item that is under way has ended; nothing where none is.
  std::optional<End> awaitEnd(Item &item);
  /// Asked of each reported copy to the host that has ended, before the device's bytes
  /// are given up: false takes it for one that failed.
  void setJudge(std::function<bool(const Item &)> isGood) { isGood_ = std::move(isGood); }
  /// The item whose copy to `tier` is longest under way, or null. To the device: of those
  /// whose ends are reported.
  Item *oldest(Tier tier);
  /// Blocks until one more item has left, or stays; false if none is leaving.
  bool awaitDeparture();
  /// Blocks until every item that leaves has left, or stays.
  void settle();
  /// Homes have the newest values when it returns; copies on the device stay. Throws
  /// TransferFailed.
  void writeBack();
  /// Writes one item back in the same way, which is not Leaving; its end is not reported.
  void writeBack(Item &item);
  /// Blocks until the newest value is whole where it is. Throws what it failed with.
  void await(const Tensor &home);
  /// True if the device has a value that the home lacks, or may lack.
  bool holdsNewer(const Tensor &home);
  /// The hash of the bytes at home, where they were hashed on their way there and are the newest value.
  std::optional<uint64_t> hashAtHome(const Tensor &home);
  /// The home was written by the caller: the copy on the device is stale and dropped.
  void homeWritten(const Tensor &home);
  void homeWritten(Item &item);
  /// Every home was written by the caller.
  void homesWritten();

  struct Counts {
    uint64_t fetched = 0, fetchedBytes = 0, left = 0, leftBytes = 0;
    /// Items that left for pageable memory, as no page-locked memory was left.
    uint64_t unpinned = 0;
    /// Copies to the host that failed, so that the device's stayed.
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
  /// Items by the storage of their home.
  std::map<uint64_t, Item *> byHome_;
  /// Items whose copy to each tier is under way, the oldest first; some are gone. Those
  /// on the way to the device were reported.
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
