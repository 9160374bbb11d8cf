//===- WeightStreamerImpl.h - blocks, slots and their copies ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_WEIGHTSTREAMER_WEIGHTSTREAMERIMPL_H
#define SEGUE_LIB_SERVICES_WEIGHTSTREAMER_WEIGHTSTREAMERIMPL_H

#include "../../Replay/Recorded.h"
#include "../../Tensor/CountNonFinite.h"
#include "../Actors/BlockClock.h"
#include "../SquareQ/StoredFile.h"
#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Residency/PinnedPool.h"
#include "segue/runtime/Residency/Residency.h"
#include "segue/runtime/Services/WeightCalls.h"
#include "segue/runtime/Services/WeightStreamer.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The two times at which a queue came by, set by the queue's thread.
struct Stopwatch {
  Timestamp begin, end;
  double milliseconds() const { return std::max(0.0, 1000 * (end.seconds() - begin.seconds())); }
};

/// A LoadWatch times a load on the queue of the link, which sets it: from when its slot is
/// free on, less the reads of files between its copies.
struct LoadWatch {
  Timestamp begin, end;
  std::atomic<double> readSeconds{0}, readBetween{0};
  /// True if the stamp of the begin is queued. Only the thread that submits uses it.
  bool isStarted = false;

  void addRead(double seconds) {
    readSeconds = readSeconds + seconds;
    if (begin.isKnown())
      readBetween = readBetween + seconds;
  }
  LoadTimes times() const {
    double copySeconds = begin.isKnown() && end.isKnown() ? end.seconds() - begin.seconds() - readBetween : 0;
    return {.copyMs = 1000 * std::max(0.0, copySeconds), .fileReadMs = 1000 * readSeconds};
  }
};

struct WeightStreamer::Impl {
  /// The alignment of the place at which a parameter begins in its slot, in bytes: what device_dram asks for.
  static constexpr uint64_t slotAlignment = 512;

  /// The policy with its log. A scope of it must not outlive it.
  using Policy = Recorded<LoggedWeights>;

  struct Block;
  struct ProgramPlan;
  struct Weight {
    /// The key "module.name", for errors.
    std::string key;
    /// The parameter as the first program declares it, and the function that knows its source.
    Value value;
    Sources sources;
    /// The description of the parameter on the device, from its offset in the slot on.
    std::shared_ptr<const TensorDesc> desc;
    WeightSource source;
    std::shared_ptr<const StoredFile> file;
    const SafetensorsEntry *entry = nullptr;
    /// The block's id for the policy, its name in programs, and their module.
    std::string blockId, blockName, module;
    Block *block = nullptr;
    /// False if it is touched by several blocks, or outside of blocks.
    bool isStreamed = true;
    /// The first program that writes it, or empty.
    std::string writer;
    /// The version of its block's item for which a program wrote it last.
    uint64_t version = 0;
    /// The bytes that cross the link.
    uint64_t storedBytes = 0;
    std::shared_ptr<const TransferConsumer> consumer;
    /// The slab that it comes from in the place of its source, and the unit with which it
    /// does so; null if it comes from its source.
    std::shared_ptr<SlabSource> slab;
    std::string unit;
  };
  /// Weights that travel together, and where they lie on the host: an item of `residency`,
  /// whose copy on the device lies in a slot of the ring.
  struct Block final : ItemSource {
    explicit Block(Impl &ring) : ring(ring) {}
    bool fetchInto(const Tensor &place, const TransferOptions &how) override;
    bool mayFetchAgain(const Error &error) const override;
    Fence saveFrom(const Tensor &place, uint64_t since) override;
    std::optional<Error> takeSaveFailure() override;

    Impl &ring;
    std::string id, module;
    std::vector<Weight *> weights;
    uint64_t slotBytes = 0, storedBytes = 0;
    bool isStaged = false;
    Item *item = nullptr;
    /// The description of the whole block in a slot.
    std::shared_ptr<const TensorDesc> desc;
    /// The slot of the ring; null while the policy has the block nowhere on the device.
    std::shared_ptr<Storage> slot;
    std::shared_ptr<LoadWatch> copyWatch;
    std::shared_ptr<Stopwatch> computeWatch;
    std::vector<PinnedSlab> slabs;
    /// The buffers of parts that had no place in a slab.
    std::vector<Tensor> unpinned;
    /// The tries of the last load that failed in the queue, by weight.
    std::vector<std::shared_ptr<TransferRetries>> retries;
    /// True if every copy of the last load was queued.
    bool isQueued = false;
    /// True if programs of the step have read it: what they read next of it is the same.
    bool isUsed = false;
    /// The weight that the last load could not have in its unit's form, though the step has
    /// used that form, and the error.
    std::optional<std::pair<const Weight *, Error>> lost;
    /// The weights whose copies home are under way.
    std::vector<const Weight *> sent;
  };
  /// A block of the model gives activations of a higher precision than it takes.
  struct Promotion {
    ElementType takes, gives;
  };
  /// A Use says what happens where a block of a program is opened, and closed.
  struct Use {
    Block *begins = nullptr, *ends = nullptr;
    /// The streamed block that it is a part of, whether or not its weights are touched;
    /// null if it has none.
    Block *part = nullptr;
    std::optional<Promotion> promotion;
  };
  /// A value of a block that the compute queue counts.
  struct Look {
    Block *block;
    const ProgramPlan *plan;
    uint32_t result;
    std::shared_ptr<const NonFiniteCount> count;
    Fence done;
  };
  /// A run of a block that the compute queue measures.
  struct Run {
    Block *block;
    std::shared_ptr<const Stopwatch> watch;
    Fence done;
  };
  /// The wait of the compute queue for a block that was not there when its use was queued.
  /// Late: it may have come in time.
  struct Wait {
    Block *block;
    bool isLate;
    std::shared_ptr<const CopyWait> watch;
    Fence done;
  };
  /// Somebody's claim on what stays on the device, while his scope lives.
  struct Claim {
    std::function<WeightStagehand::Scope(Policy &)> apply;
    /// The scope of the policy in force.
    WeightStagehand::Scope scope;
  };
  struct ProgramPlan {
    /// The program, kept for its image, which names it.
    Program program;
    std::string module;
    BlockUses uses;
    /// The weight of each input, or null.
    std::vector<Weight *> inputs;
    std::vector<Use> blocks;
  };

  Impl(DeviceRef device, WeightStagehandConfig config, WeightStreamerOptions options);

  static std::string inModule(const std::string &module, std::string_view name, const char *separator);

  // Plans.
  using Order = std::vector<ProgramPlan *>;
  void add(Order &order, const std::string &module, const Program &program, const Sources &sources);
  void start();
  void stop();
  void askSources();
  void openFiles();
  void describeStored(Weight &weight);
  void makeBlocks();
  void makeUses();
  std::vector<std::string> blocksOf(const Order &order) const;
  void registerBlocks();
  void setOrders(bool isTraining);
  void takeMemory();
  void takePool(const WeightLimits &limits);
  void giveSlabsBuffers(const WeightLimits &limits);
  bool isCurrent(const Program &program) const;

  // Numeric guards.
  void checkPromotions(Policy &policy);
  bool isActivation(const ProgramPlan &plan, const BlockResult &result) const;
  void take(const Look &look);
  /// Tells the policy what the compute queue has come by; with `all`, everything that is done by now.
  void takeObservations(bool all);

  /// Makes `call` of the policy, with a name for what it claims, and of each policy that follows.
  template <typename Call, typename... Given> Scope claim(const Call &call, Given... given);

  // Forms.
  void restate(Block &block);
  void giveUpForm(const Weight &failed, const Error &error);
  void giveUpLost();
  void serve(SlabSource &slab, std::string_view name, const Tensor &target, const TransferOptions &how,
             bool isNeeded) const;
  std::vector<SlabSource *> slabs() const;
  std::pair<SlabSource *, std::string_view> slabOf(const Weight &weight) const;
  void readSlabsAhead(const Order &order);
  void countServed(const Block &block);
  SlabTelemetry takeSlabTelemetry();

  // Copies.
  void carryOut(const WeightActions &actions);
  void load(Block &block, Priority priority);
  void fetch(Block &block, Priority priority, uint32_t retries);
  void queueWeights(Block &block, TransferOptions how, uint64_t &slabOffset);
  /// Returns true if another rank has the weight.
  bool isElsewhere(const WeightSource &source) const;
  /// Who gathers for others alone keeps nothing of it.
  Fence gather(Block &block, bool keeps = true);
  void queueFile(Block &block, const Weight &weight, const TransferOptions &how, uint64_t &slabOffset,
                 const Fence &free);
  void readInto(const Block &block, const Weight &weight, uint64_t from, const Tensor &target);
  void startClock(Block &block, const Fence &after);
  bool hear(Tier to, bool waits);
  void finish(const Residency::End &end);
  void finishLoad(Block &block, const Residency::End &end);
  void finishSaveBack(Block &block);
  void evict(Block &block, bool saveBack);
  void release(Block &block);
  void flush(Block &block);
  /// Gives up what the device has of a block: it is not used again.
  void drop(Block &block);
  bool takeSlot();
  void giveSlot();
  /// Takes slots again that were given back under pressure, before a block.
  void growRing(const Block &next);
  void changeRing(weight_calls::RingChange change);
  bool isSeenOutside(const Weight &weight) const;
  void poll();
  /// Says whether the program that opens the block is one of the step, or one beside it.
  enum class Opens : uint8_t { InOrder, Beside };
  void bring(Block &block, Opens how);
  Weight *weightAt(const Tensor &home) const;
  std::vector<Block *> blocksToOpen(std::span<const Tensor> homes) const;
  bool isWritten(const Block &block) const;
  void awaitLoad(Block &block, bool isQueued);
  void settleAwaited();
  void mark(Queue queue, const std::shared_ptr<Stopwatch> &watch, bool isEnd, const Fence &after);
  int64_t usedBytes() const;
  int64_t reservedBytes() const;

  void beginStep();
  void endStep(bool aborted);
  void dropStale();
  void flushSeenOutside();
  void endCopies();
  void abortStep();

  DeviceRef device;
  WeightStagehandConfig config;
  WeightStreamerOptions options;
  TransferEngine &engine;
  /// The ranks that weights are gathered from, or null; and why one could not be that nobody waits for yet.
  std::shared_ptr<Collectives> ranks;
  std::function<void(const std::string &)> toldOfGathering;
  std::optional<Error> lostGathering;

  std::vector<std::unique_ptr<ProgramPlan>> programs;
  /// The plans by program. Modules that were made of one binary share it.
  std::multimap<std::pair<const BinaryImage *, size_t>, ProgramPlan *> byProgram;
  /// The programs of forward, backward and optimizer, and those of evaluations.
  Order phases[3], evaluation;
  std::map<std::string, std::unique_ptr<Weight>> weights;
  std::vector<Weight *> weightOrder;
  /// Streamed weights, by the storage of their tensor of the host.
  std::map<uint64_t, Weight *> byHome;
  std::vector<std::unique_ptr<Block>> blocks;
  std::map<std::string, Block *> byId;
  /// The table of the blocks as items, while started.
  std::optional<Residency> residency;
  std::map<Item::Id, Block *> byItem;
  /// Blocks whose readers are queued behind their load: if it fails, so do they.
  std::deque<Block *> awaited;
  std::vector<std::shared_ptr<const StoredFile>> files;

  /// All slabs that any form was chosen from.
  std::vector<std::shared_ptr<SlabSource>> formSlabs;
  FormFailed formFailed;

  std::optional<Policy> policy;
  /// Returns the policy, which must be there.
  const WeightStagehand &stagehand() const { return **policy; }
  /// The claims, which outlive their streamer with their scopes.
  int64_t claimsMade = 0;
  std::shared_ptr<std::vector<std::shared_ptr<Claim>>> claims = std::make_shared<std::vector<std::shared_ptr<Claim>>>();
  std::vector<std::shared_ptr<Storage>> ring;
  std::deque<std::shared_ptr<Storage>> freeSlots;
  uint64_t slotBytes = 0;
  /// The number of slots to be given back when there is a block less in them.
  size_t owedSlots = 0;
  /// The number of loads that were decided and are not queued yet: their slots are spoken for.
  size_t promised = 0;
  /// The least slots that the ring needs: as many as programs have open at once.
  size_t leastSlots = 1;
  /// Bytes of the ring before this start, and the most slots that it had: what programs have taken
  /// since the first start fits beside it.
  int64_t earlierRingBytes = 0, earlierMost = 0;
  WeightHints hints;
  std::optional<PinnedPool> pool;
  uint64_t poolBytes = 0;
  std::optional<JsonlWriter> telemetry;
  Json lastRecord = Json::object();

  /// Blocks that were opened for a program beside the step.
  std::vector<Block *> lent;

  /// The program that runs, the block of it that comes next, and those that are open.
  ProgramPlan *current = nullptr;
  size_t nextBlock = 0;
  std::vector<size_t> open;
  /// The fence at which the block that ran or runs last had all its weights, and that of its end.
  Fence started, computed;
  /// These follow the order of the compute queue.
  std::deque<Look> looks;
  std::deque<Run> runs;
  std::deque<Wait> waits;
  /// True if a block of this step has been reported for NaN or Inf.
  bool hasReported = false;
  int64_t step = 0;
  bool inStep = false, isEvaluating = false, isMakingRoom = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_WEIGHTSTREAMER_WEIGHTSTREAMERIMPL_H
