//===- WeightStagehand.h - which weights are on the device ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Decides which blocks of weights are loaded ahead of their use and which leave
// when memory is short. The order in which blocks run is in the compiled
// programs, backward included, so that the next use of each is known. A policy:
// events in, decisions out; it copies nothing, allocates nothing and knows no
// time. Whoever carries it out tells it when copies have ended.
//
//   WeightStagehand stagehand(config, config.limits(sizes));
//   stagehand.registerBlock({.id = "h.0", .bytes = n});      // forward order
//   stagehand.setRing(5);                                    // slots on the device
//   stagehand.beginStep(step);
//   stagehand.enterPhase(StepPhase::Forward);
//   BeforeBlock before = stagehand.beforeBlock("h.0");       // start before.actions;
//   stagehand.loaded("h.0");                                 // if not a hit, wait
//   ...                                                      // the block runs
//   for (const WeightAction &action : stagehand.afterBlock("h.0")) ...
//   for (const WeightAction &action : stagehand.endStep()) ...
//   Json record = stagehand.telemetry();
//
// A block is UNLOADED, HOST_STAGED, PREFETCHING, GPU_READY, and then EVICTING
// (its changed parameters go back to the host) or GPU_FREEING, and UNLOADED. A
// call that throws changes nothing. All on the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_WEIGHTSTAGEHAND_H
#define SEGUE_RUNTIME_SERVICES_WEIGHTSTAGEHAND_H

#include "segue/runtime/Services/ConductorTypes.h"
#include "segue/runtime/Services/HostSlabQueue.h"
#include "segue/runtime/Services/WeightPlan.h"
#include "segue/runtime/Services/WeightStagehandConfig.h"
#include "segue/runtime/Layout/ElementType.h"
#include <deque>
#include <unordered_map>

namespace segue::inline runtime {

/// The source of a block's bytes.
enum class WeightBacking : uint8_t { ResidentSource, File, Slab, FileMutable };
template <> std::span<const std::string_view> namesOf<WeightBacking>();

enum class BlockState : uint8_t { Unloaded, HostStaged, Prefetching, GpuReady, Evicting, GpuFreeing };
template <> std::span<const std::string_view> namesOf<BlockState>();

/// A model that must keep its place on the device, or may be asked to give way.
enum class ResidencyRank : uint8_t { Primary, Secondary };

struct WeightBlock {
  std::string id;
  /// Bytes as they are stored, which cross the link.
  int64_t bytes = 0;
  WeightBacking backing = WeightBacking::File;
  /// True if loads pass through slabs of the pinned pool.
  bool staged = true;
  /// The model that the block belongs to, for guests; and the place that it comes from, for errors.
  std::string model, source;
};

/// Slots on the device that loads go to, each for any block.
struct WeightRing {
  /// The slots that are there now, and the most that there may be; 0 for no limit but the watermarks.
  int64_t slots = 0, most = 0;
  /// The bytes of each slot. With 0, the slots' memory is nobody's to give back, and the
  /// bytes of the blocks in them count against the watermarks.
  int64_t slotBytes = 0;
  /// The number of blocks that programs use at once.
  int64_t openAtOnce = 1;
  /// True if a plan counts on these slots: no watermark takes one, and only an allocation that
  /// finds no room does.
  bool isKept = false;
};

struct WeightAction {
  /// GiveSlot gives back the memory of a slot with no block in it.
  enum class Kind : uint8_t { Load, Evict, GiveSlot };
  Kind kind = Kind::Load;
  std::string block;
  /// The priority of a Load.
  Priority priority = Priority::Required;
  /// True if an Evict first copies the block's changed parameters to the host.
  bool saveBack = false;
};
using WeightActions = std::vector<WeightAction>;

struct BeforeBlock {
  /// Hit: the block is there. Late: its copy is under way. Miss: its copy starts now, or
  /// when a copy that is under way has ended.
  enum class Use : uint8_t { Hit, Late, Miss };
  Use use = Use::Hit;
  /// The actions to start, in order.
  WeightActions actions;
};

struct LoadFailure {
  /// True if the copy is to be started again. Otherwise the block is UNLOADED, its slabs
  /// and its place on the device are free, and TRANSFER_FAILED is due.
  bool retry = false;
  WeightActions actions;
};

/// The values that a block gave, as nan_inf_check counts them.
struct BlockOutput {
  int64_t nans = 0, infs = 0;
  /// The milliseconds that the block took on the device, where that was measured.
  std::optional<double> computeMs;
};

/// The measured times of a load.
struct LoadTimes {
  double copyMs = 0, fileReadMs = 0;
};

/// The hints of Conductor that concern weights.
struct WeightHints {
  int64_t maxInflightH2d = INT32_MAX, windowCap = INT32_MAX;
  bool suppressSpeculative = false;
};

class WeightStagehand {
public:
  /// Throws ConfigError for limits that contradict each other.
  WeightStagehand(WeightStagehandConfig config, const WeightLimits &limits);
  ~WeightStagehand();
  WeightStagehand(WeightStagehand &&) noexcept;

  const WeightStagehandConfig &config() const { return config_; }
  const WeightLimits &limits() const { return limits_; }
  const HostSlabQueue &slabs() const { return slabs_; }

  //===--------------------------------------------------------------------===//
  // Blocks
  //===--------------------------------------------------------------------===//

  /// Registers a block. Blocks run forward in the order of their registration and backward
  /// in the reverse, unless setOrder says otherwise. Throws StateTransition for an id that
  /// is taken and InvalidArgument for a block without bytes or one that is greater than the
  /// whole pinned pool.
  void registerBlock(WeightBlock block);
  /// Sets the compiled order of a phase: forward, backward, optimizer. A block may occur
  /// several times or not at all. Throws NameUnknown.
  void setOrder(StepPhase phase, std::span<const std::string> ids);
  /// Notes that slots were taken, or given back by somebody else. A plan is made anew for
  /// the next step.
  void setRing(const WeightRing &ring);
  /// Sets a ring of slots whose memory stays.
  void setRing(int64_t slots) { setRing({.slots = slots, .most = slots}); }
  const WeightRing &ring() const { return ring_; }
  /// Returns the number of slots that programs do not need at once, beside those of blocks
  /// that may not leave. A block that is being saved back counts as leaving.
  int64_t spareSlots() const;
  /// Returns true if one more slot would be used and memory is below the low watermark, or
  /// if `next`, which runs next, has no other way to a place because what is in the slots
  /// cannot leave. Asked before a block, after measure().
  bool wantsSlot(std::string_view next = {}) const;
  /// Notes that the block is stored in another form from its next load on, or from the one
  /// under way. Throws StateTransition while it is on the device, InvalidArgument as
  /// registerBlock does.
  void restate(std::string_view id, int64_t bytes, bool staged);

  BlockState state(std::string_view id) const;
  int64_t useCount(std::string_view id) const;
  /// Returns the blocks on the device, in the order of registration.
  std::vector<std::string> resident() const;
  /// Returns all blocks that are not UNLOADED, with what they do, for errors.
  std::string describe() const;
  /// Returns the number of uses, in the compiled order, from the block that ran last until
  /// the block is needed.
  int64_t nextUse(std::string_view id) const;
  int64_t window() const;
  /// Returns the plan of the policy `planned`, once all blocks have been measured.
  const std::optional<WeightPlan> &plan() const { return plan_; }

  /// Returns the score by which v0 chose: distance by order and position, modulo the number of blocks.
  static int64_t scoreOfV0(int64_t order, int64_t position, int64_t blocks, int64_t bytes);

  //===--------------------------------------------------------------------===//
  // A step
  //===--------------------------------------------------------------------===//

  /// Begins a step. Evaluation has no backward pass.
  void beginStep(int64_t step, bool isTraining = true);
  void enterPhase(StepPhase phase);
  void setHints(const WeightHints &hints) { hints_ = hints; }
  /// Notes the bytes that are allocated on the device now, and those reserved by its allocator.
  void measure(int64_t allocatedBytes, std::optional<int64_t> reservedBytes = {});

  /// Says how the block gets to its place. Throws NameUnknown, InvalidArgument for a block
  /// that is in no order, and DeviceOom with the holders where nothing can leave for it.
  /// With `isBeside`, a program beside the order reads it, and the order goes on from where
  /// it is; any block will do.
  BeforeBlock beforeBlock(std::string_view id, bool isBeside = false);
  /// Notes that the block has run. Its load may still be under way if the block waits for
  /// it in a queue; its end is told later. Throws StateTransition if the block is not in
  /// use or no load of it has begun.
  WeightActions afterBlock(std::string_view id, const BlockOutput &output = {});
  /// Takes the values that a run of the block gave, where the device is known only later to
  /// have done it. They count in the step that is current.
  void observe(std::string_view id, const BlockOutput &output);

  /// Notes that the program has written so many bytes of the block's parameters: they go
  /// back to the host before the block leaves. Throws StateTransition if it is not on the
  /// device.
  void changed(std::string_view id, int64_t bytes);

  WeightActions loaded(std::string_view id, const LoadTimes &times = {});
  LoadFailure loadFailed(std::string_view id);
  /// Notes that Conductor denied a speculative load: it is forgotten, not queued.
  WeightActions loadDenied(std::string_view id);
  WeightActions evicted(std::string_view id);
  /// Notes that the copy back failed: the device's copy is kept. Throws DeviceOom where a
  /// block waits for room and nothing else can leave; the step is to be aborted.
  WeightActions saveBackFailed(std::string_view id);

  /// Notes that the block is needed before its copy back has ended: it stays, and nothing
  /// has to come over the link. Throws StateTransition if it is not leaving.
  WeightActions rescued(std::string_view id);
  /// Notes that the block's changed parameters are on the host again; the block stays.
  void savedBack(std::string_view id);

  /// Notes that the host has other values now: what the device has of the block leaves, and
  /// nothing goes back. Throws StateTransition if it is in use or on its way.
  WeightActions drop(std::string_view id);

  /// Returns what leaves since somebody needs `bytes` of the device: by score, whatever the
  /// watermarks and the plan say. Slots are given back for good, until as few are left as
  /// programs need at once.
  WeightActions makeRoom(int64_t bytes);

  void addStall(double milliseconds);
  /// Notes that the block, whose copy was under way when its use was queued, was there when
  /// the device came to it: that was a hit.
  void inTime(std::string_view id);
  /// Adds the time that a needed block has waited for slabs of the pool. Returns a warning
  /// if that was 100 ms or more, or an empty text.
  std::string addPoolWait(std::string_view id, double milliseconds);

  /// Ends a step that was aborted. Use counts are 0 afterwards, since compute has drained.
  void abortStep();
  /// Forgets uses within a step that goes on: a program beside it has failed.
  void abandonUses();
  /// Returns what leaves between steps, where the cooldown counts.
  WeightActions endStep();
  /// Returns the record of the step that ended or was aborted last.
  Json telemetry() const;
  /// Returns hit rate, stalls and the trend of memory over the last 100 steps.
  Json rolling() const;
  /// Returns a line such as `[STAGEHAND step=42] hit=95.2% stall=1.3ms evict=2 vram=21.4G
  /// pool=6/8`; empty unless one is due at the step that ended last.
  std::string logLine() const;

  //===--------------------------------------------------------------------===//
  // Numeric guards
  //===--------------------------------------------------------------------===//

  /// Throws DtypeMismatch naming the tensor, with strict_bf16, if the stored type is not
  /// the declared one.
  void checkStored(std::string_view tensor, ElementType stored, ElementType declared) const;
  /// Counts a promotion; throws DtypeMismatch with fail_on_dtype_promotion. Types are
  /// texts: "fp8", "bf16", "f16", "f32", "f64".
  void checkPromotion(std::string_view block, std::string_view input, std::string_view output);

  //===--------------------------------------------------------------------===//
  // Residency control
  //===--------------------------------------------------------------------===//

  /// An object that undoes a claim when it is released or destroyed, once.
  class Scope {
  public:
    Scope() = default;
    explicit Scope(std::function<void()> undo) : undo_(std::move(undo)) {}
    Scope(Scope &&other) noexcept : undo_(std::exchange(other.undo_, nullptr)) {}
    Scope &operator=(Scope &&other) noexcept {
      release();
      undo_ = std::exchange(other.undo_, nullptr);
      return *this;
    }
    ~Scope() { release(); }
    void release() {
      if (auto undo = std::exchange(undo_, nullptr))
        undo();
    }

  private:
    std::function<void()> undo_;
  };

  // The stagehand must not be moved while a scope lives.

  /// Keeps these blocks on the device. Throws NameUnknown.
  [[nodiscard]] Scope keepResident(std::span<const std::string> ids);
  /// Puts `bytes` out of reach of guests; what a PRIMARY model has on the device does not
  /// leave for them either.
  [[nodiscard]] Scope reserve(const std::string &model, ResidencyRank rank, int64_t bytes);
  /// Makes blocks run in the name of a model that is a guest.
  [[nodiscard]] Scope asGuest(const std::string &model);
  /// Returns the bytes that may be allocated before something must leave, for the guest or,
  /// if there is none, for everybody; may be negative.
  int64_t headroomBytes() const;

private:
  struct Block;
  struct Counts;
  struct Reservation {
    std::string model;
    ResidencyRank rank;
    int64_t bytes;
  };

  Block &find(std::string_view id);
  const Block &find(std::string_view id) const { return const_cast<WeightStagehand *>(this)->find(id); }
  void checkBytes(const std::string &id, int64_t bytes, bool staged) const;
  void move(Block &block, BlockState to);
  void forgetOrder() { cycle_.clear(); }
  void buildOrder();
  int64_t distance(const Block &block) const;
  int64_t highBytes() const;
  int64_t lowBytes() const { return limits_.lowBytes - (limits_.highBytes - highBytes()); }
  /// The blocks that may leave: by the rules of a step; also those of the window; and also
  /// those that the plan keeps.
  enum class Reach : uint8_t { Usual, Window, Plan };
  WeightActions stay(Block &block);
  bool mayLeave(const Block &block) const;
  bool canLeave(const Block &block, Reach reach) const;
  Block *bestToLeave(int64_t minDistance, Reach reach);
  Block *bestToLeave(int64_t minDistance, std::initializer_list<Reach> order);
  void startEviction(Block &block, WeightActions &actions, bool givesSlot = false);
  void giveSlot(WeightActions &actions);
  int64_t leastSlots(Reach reach) const;
  bool ownsMemory() const { return ring_.slotBytes > 0; }
  void relievePressure(WeightActions &actions);
  bool tryLoad(Block &block, Priority priority, bool isNeeded, WeightActions &actions);
  void servePending(WeightActions &actions);
  void prefetch(WeightActions &actions);
  void goOn(WeightActions &actions);
  void releaseSlabs(Block &block);
  void dropLoad(Block &block, WeightActions &actions);
  bool isAnythingUnderWay() const;
  [[noreturn]] void failForRoom(const Block &block) const;
  bool retrySaveBacks();
  void replan();
  Json makeRecord(bool aborted) const;
  void closeStep(bool aborted);
  void dropPending();

  WeightStagehandConfig config_;
  WeightLimits limits_;
  HostSlabQueue slabs_;
  WeightHints hints_;
  WeightRing ring_;
  /// The fewest slots that there were in the step.
  int64_t leastSlots_ = 0;
  std::deque<Block> blocks_;
  std::unordered_map<std::string, Block *> byId_;

  /// The orders of forward, backward and optimizer, and those of the step in a row.
  std::vector<Block *> orders_[3];
  bool hasOrder_[3] = {};
  std::vector<Block *> cycle_;
  size_t phaseBegin_[3] = {};
  /// The index in cycle_ of the block that ran or runs last; -1 before the first.
  int64_t cursor_ = -1;

  int64_t step_ = 0;
  bool inStep_ = false, isTraining_ = true;
  int64_t vramBytes_ = 0, reservedBytes_ = 0;
  bool retriedSaveBacks_ = false;
  int64_t occupied_ = 0, inflight_ = 0;
  /// The blocks that are needed now, and wait for slabs or room.
  std::deque<Block *> pending_;
  std::vector<Reservation *> reservations_;
  std::optional<std::string> guest_;

  std::optional<WeightPlan> plan_;
  std::unique_ptr<Counts> counts_;
  std::shared_ptr<const Json> lastRecord_;
  struct StepSummary {
    int64_t hits, late, misses;
    double stallMs, vramMiB;
  };
  std::deque<StepSummary> history_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTSTAGEHAND_H
