//===- ActivationActor.h - activations that leave and return ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Carries out what Activation Stagehand decides, with the verbs of Residency. A tensor that leaves is copied into a
// slab of the pinned pool on the D2H queue; a need that comes first, or a copy that failed, finds the device's bytes
// whole. One that returns is copied to new memory on the H2D queue, ahead of its need where the policy says so; a copy
// ahead that finds no token or no memory is put off and tried again at the next event. A reader waits in the compute
// queue, and the copy is tried again in its own queue; how it ended is heard later, at the latest before the optimizer
// runs. The host waits for a copy of a tensor that can be computed again, since its failure must be known before its
// reader is queued; and for copies out, since their memory is free only then.
//
// A tensor that is to be computed again is dropped at once, and a placeholder
// stands for it in the program's hands; at its need, what it is made from is
// brought as for a need of its own, and one more program runs. That also serves
// for a tensor whose bytes were lost on the way.
//
// The order of needs comes from the compiled programs: the forward submits of
// the step backwards, each by the order in which its backward program restores;
// what a dropped tensor is made from comes before it.
//
// Events are in ActivationActor.cpp, copies in ActivationCopies.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_ACTIVATIONACTOR_H
#define SEGUE_LIB_SERVICES_ACTORS_ACTIVATIONACTOR_H

#include "../../Replay/Recorded.h"
#include "BlockClock.h"
#include "ServiceContext.h"
#include "StepFigures.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Recomputer.h"
#include "segue/runtime/Residency/PinnedPool.h"
#include "segue/runtime/Residency/Residency.h"
#include "segue/runtime/Services/ActivationCalls.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <deque>
#include <map>
#include <set>
#include <tuple>

namespace segue::inline runtime {

class ActivationActor final : public EventSink {
public:
  /// Takes the pool, and its reservation from Conductor. Throws ConfigError, DeviceOom.
  /// `section` is the config as it was written, for the log.
  ActivationActor(ServiceContext &context, ActivationStagehandConfig config, Json section);
  ~ActivationActor() override;

  Json record() const { return lastRecord_; }
  RehearsedStep rehearsed() const { return {grown_, toRecompute_}; }
  void prepare(const RehearsedStep &step);
  void setWatermarks(int64_t high, int64_t low) { policy_.tell(activation_calls::watermarks, high, low); }
  /// Sets the lender of parameters that live on the host to what is computed again; null for none.
  void borrowFrom(WeightLender *lender) { recomputer_.setLender(lender); }

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::Submit &submit);
  void on(const event::Save &save);
  void on(const event::Restore &restore);
  void on(const event::Free &free);
  void on(const event::Poll &);
  void on(const event::Pressure &pressure);
  void on(const event::StepAbort &);

private:
  /// One saved storage that backward has not finished with.
  struct Held {
    std::string id, block;
    /// Whom the books name for its bytes wherever they return to: as where the program made them.
    OwnerId owner = 0;
    uint64_t bytes = 0;
    /// Its place: the forward submit within the step and the output; and its number in the
    /// order of the backward program.
    SavedPlace place;
    uint32_t order = 0;
    /// True if its bytes are nowhere until they are computed again.
    bool recompute = false;
    /// The error with which the step ends if there is no room to compute the bytes again,
    /// since the host's copy is of no use. Nothing if they were dropped on purpose.
    std::optional<Error> lost = {};
    /// Its number among the saves of the step.
    size_t number = 0;
    /// The length of the longest chain of tensors that must be made one from the other to make it.
    int depth = 0;
    /// True if it has its place in the order of needs.
    bool ordered = false;
    /// The number of saves that share it and are not freed.
    int uses = 1;
    bool needed = false;
    /// True if it is on the device, and backward has not asked for it yet.
    bool isIdle = false;
    /// The storages that stand for it in programs' hands.
    std::set<uint64_t> storages;
    std::shared_ptr<const TensorDesc> deviceDesc;
    /// The item with its bytes, from when it leaves on; null for one that never left, or
    /// that nobody has.
    Item *item = nullptr;
    /// Its key in byItem_, also when the item is given up before its copy out ends.
    Item::Id itemId = 0;
    /// The program's storage, if the tensor never left.
    std::weak_ptr<Storage> kept;
    /// The tensor that the program returned in its place: nobody without a handle of it will ask for
    /// the tensor. Nothing until the save is over.
    std::optional<std::weak_ptr<Storage>> given = {};
    std::optional<uint32_t> checksum;
    std::shared_ptr<TransferRetries> retries; // of a copy in
    /// True if the policy wants it back, and no copy could be started yet.
    bool putOff = false;
    /// The number of Conductor's reservation for the returned bytes; 0 for none.
    uint64_t reservation = 0;

    /// Returns the device's bytes while they must stay: until a copy out is good, and from
    /// the start of a copy in to the last use.
    Tensor device() const { return item ? item->device().tensor : Tensor(); }
    Tensor host() const { return item ? item->host().tensor : Tensor(); }
    bool isLeaving() const { return item && item->device().state == CopyState::Leaving; }
    bool isComing() const { return item && item->device().state == CopyState::Coming; }
  };
  /// A copy back whose readers are queued behind it.
  struct Queued {
    std::string id, block;
    Fence fence;
    std::shared_ptr<Outcome> outcome;
    std::shared_ptr<TransferRetries> retries;
  };
  class Hints;

  // ActivationActor.cpp
  double now() const { return context_.device->seconds(); }
  int64_t used() const { return int64_t(context_.usedBytes()); }
  std::string uniqueId(const std::string &name);
  Held &find(const std::string &id) { return *held_.find(id)->second; }
  Held *findStorage(const Tensor &tensor);
  void know(Held &held, const Tensor &tensor);
  void release(Held &held);
  bool isDropped(const Held &held) const;
  void releaseDropped();
  int64_t takenBytes(const TensorDesc &desc) const;
  std::optional<MadeAgain> madeAgain(SavedPlace place) const;
  int64_t occupied() const;
  void setIdle(Held &held, bool isIdle);
  /// Returns the depth of the chain of values to be made again whose end it would be.
  int depthOf(SavedPlace place) const;
  void dropToRecompute(Held &held, Tensor &saved);
  /// Notes that its copy on the host is lost, but that it can be made again. The step ends
  /// with `why` if there is no room for that.
  void loseHost(Held &held, Error why);
  void makeAgain(Held &held);
  void recompute(Held &held);
  void makeWhatComesAlong(const Held &held);
  /// Returns it on the device, for a need of backward or of a program that makes another
  /// again from it.
  Tensor bring(Held &held);
  Held *findPlace(SavedPlace place) const;
  void addNeeds(Held &held);
  void endStep();
  bool reservePinned(int64_t bytes);
  /// Adds slabs to the pool; returns how many there was memory and leave for.
  uint32_t grow(const HostBufferBook::Growth &growth);
  void writeRecord();
  void forgetStep();

  // ActivationCopies.cpp, out
  void dropMade(int64_t goal);
  void spill(Held &held, const HostBuffer &buffer, Tensor &saved);
  Tensor takeHost(Held &held, const HostBuffer &buffer);
  bool startSpill(Held &held, const Tensor &home);
  bool isGood(Held &held);
  /// Blocks until the copy out is good or given up.
  void settleSpill(Held &held);
  /// Ends a copy out; returns false if it failed and was started again.
  bool finishSpill(Held &held, bool failed);
  void giveHost(Held &held);
  void reclaimSlabs();
  /// Says who hears of the copies that have ended, and of which: All for records and the
  /// policy, ToHost for those to the host alone, Nothing for records alone, when the step
  /// is over.
  enum class Hears : uint8_t { All, ToHost, Nothing };
  void noteEnds(Hears hears = Hears::All);
  void noteEnd(Held &held, const Residency::End &end, bool tellsPolicy);
  /// Takes the end of the held one's copy from those that were noticed.
  std::optional<Residency::End> takeEnd(const Held &held);
  Held *findItem(Item::Id item);
  // back
  enum class Urgency : uint8_t { Ahead, Needed };
  void issue(const std::vector<std::string> &ids);
  void issuePutOff();
  bool startRestore(Held &held, Urgency urgency);
  bool reserve(Held &held, Urgency urgency, Priority priority);
  /// Checks the host's copy. Returns false if it was lost, and is to be made again. Throws if it cannot.
  bool verifyHost(Held &held);
  /// Returns when the bytes are back, or their copy is queued, or they are to be made again.
  void settleRestore(Held &held);
  void leaveToQueue(Held &held);
  /// Notes how queued copies ended; with `all`, blocks until every one has.
  void settleQueued(bool all);
  /// Tells the policy of each try of a copy back, and of its end if it failed.
  TransferDecision tellRestore(const std::string &id, TransferRetries &retries, bool failed);
  /// Tells the policy of a copy back that failed. Throws if the policy gives up.
  void noteFailedRestore(Held &held, const Error &cause);
  /// Blocks for a copy; the time that compute stands still meanwhile is a stall.
  void waitFor(const Fence &copy);
  void noteStall(std::shared_ptr<const CopyWait> wait);
  /// Adds up the stalls of the step, and returns their seconds.
  double settleStalls();
  LinkRates linkRates() const;
  void dropDevice(Held &held);
  void freeDevice(Held &held);
  void holdItem(Held &held, const Tensor &device);
  void forgetItem(Held &held);
  static bool takeOut(std::deque<Held *> &queue, Held &held);

  ServiceContext &context_;
  Recorded<ActivationStagehand> policy_;
  std::optional<PinnedPool> pool_;
  /// Slabs of the pool that hold copies, or that somebody still holds a tensor in.
  std::vector<PinnedSlab> slabs_;
  Residency residency_;
  std::vector<Residency::End> ends_;
  std::map<Item::Id, Held *> byItem_;
  std::unique_ptr<Hints> hints_;
  ServiceId service_{};
  std::vector<uint64_t> poolReservations_;
  std::optional<JsonlWriter> telemetry_;
  Json lastRecord_;

  std::map<std::string, std::unique_ptr<Held>> held_;
  std::map<uint64_t, Held *> byStorage_;
  /// Saved tensors that a backward program was given and has not freed, by program and input.
  std::map<std::tuple<const void *, size_t, uint32_t>, Held *> inUse_;
  std::map<std::string, int> names_;
  Recomputer recomputer_;
  StepFigures figures_;
  /// The records to compute again in this step, chosen by the figures of the last one, and
  /// in the first step by those of its rehearsal.
  std::vector<bool> toRecompute_;
  /// Slabs that the pool got or lacked after the last step.
  std::vector<HostBufferBook::Growth> grown_;
  /// The sum over all tensors that are idle.
  int64_t idleBytes_ = 0;
  double stepBegan_ = 0;
  std::vector<std::shared_ptr<const CopyWait>> stalls_;
  /// The position in the compute queue at which the last stall ends.
  uint64_t lastStall_ = 0;
  /// Saved tensors by the output that backward gets, until they are released.
  std::vector<std::pair<SavedPlace, Held *>> byPlace_;
  /// The restores that were put off, and the needs to come.
  std::deque<Held *> putOff_, order_;
  std::deque<Queued> queued_;
  bool makingRoom_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_ACTIVATIONACTOR_H
