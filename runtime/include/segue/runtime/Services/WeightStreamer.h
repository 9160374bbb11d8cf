//===- WeightStreamer.h - weights that come with their block ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Does what WeightStagehand decides: the parameters that a program's blocks use
// lie in host memory, in a safetensors file, in a slab or on other ranks, and are in a ring of
// slots on the device while their block runs, and as long after as there is
// room. It is the sink of the executor's events:
//
//   WeightStreamer streamer(device, config);
//   streamer.add(StepPhase::Forward, module, binary.program("forward"), source);
//   streamer.add(StepPhase::Backward, module, binary.program("backward"), source);
//   bool isStreamed = !streamer.blockOf(module, "h.0.weight").empty();
//   streamer.start();                                     // ring and pool are taken
//   streamer.enter(Phase::StepBegin);
//   streamer.enter(Phase::Forward);
//   submit(device, binary.program("forward"), inputs, &streamer);
//
// A program is given its streamed parameters as they lie on the host: what
// `source` gave, or any tensor of that shape and type where the bytes are in a
// file. Values never depend on any of it: a load that fails, or a file that was
// changed, is an error, and no part of its block is used.
//
// Other holders of a host tensor, and owners of its memory, may read and write
// it between steps: such weights are saved back when a step ends, and are read
// again in the next. A weight that only the streamer and one owner hold is saved
// back when its block leaves, or by flush().
//
// With nan_inf_check, what blocks give in forward and backward is counted for NaN
// and Inf in the queue that computes it; STEP_END waits for the last of these.
//
// Everything is queued: a load waits for what used its slot before, a block for
// its load, in the queues of the device. A load that has failed, both times, fails
// what is queued behind it, and is thrown at a later event: at the latest when the
// optimizer begins, or the step ends. The thread, which is the one that submits,
// stays a block ahead of compute where loads are under way; before a block that is
// written in place it waits for the load.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_WEIGHTSTREAMER_H
#define SEGUE_RUNTIME_SERVICES_WEIGHTSTREAMER_H

#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Program/WeightLender.h"
#include "segue/runtime/Services/SlabSource.h"
#include "segue/runtime/Services/WeightStagehand.h"

namespace segue::inline runtime {

class Collectives;
class SafetensorsFile;

/// The place of a streamed parameter between two uses: one of four.
struct WeightSource {
  /// A tensor in memory of the host. What a program writes is copied back to it. Beside one
  /// of the others it stands for the parameter where programs are called, and its bytes are
  /// not read.
  Tensor host;
  /// A safetensors file that holds it under `name`; read-only. It is read as it was opened:
  /// a file that was changed or replaced since is SourceChanged.
  std::shared_ptr<const SafetensorsFile> file;
  /// True if it is in the slab of the options under `name`; it is read-only then.
  bool inSlab = false;
  std::string name;
  /// The rank that has it, if one alone has (WeightStreamer::gatherBy). It sends the others what `host` holds there;
  /// elsewhere `host` stands for the parameter, and its bytes are not read.
  std::optional<int> rank;
};

/// A parameter that comes with its block.
struct StreamedParameter {
  /// The key "module.name", by which the streamer knows it.
  std::string key;
  std::string module, name;
  /// The block as the program names it, "h.0".
  std::string block;
  TensorDesc desc;
  bool isTrained = false;
};

class EventLog;

struct WeightStreamerOptions {
  /// The slots of the ring; 0 for as many as fit under the high watermark beside what is
  /// allocated when `start` is called, at most one per block.
  int64_t slots = 0;
  /// True if the ring keeps its slots from the start, whatever the watermarks: that of a plan's twin.
  bool isKept = false;
  std::shared_ptr<SlabSource> slab;
  /// Other names that files may use.
  NameAliases aliases;
  /// Asked before the copies of a block are queued, which may go as long as the answer
  /// lives. If the answer is null, the load is forgotten, which is no answer to Required.
  /// Without this function all go at once.
  std::function<std::shared_ptr<void>(Queue direction, Priority priority, uint64_t bytes)> admit;
  /// `reserve` is asked before memory is taken for good, and returns false if there may not
  /// be so much; `release` is told when it is given back.
  std::function<bool(Space space, uint64_t bytes)> reserve;
  std::function<void(Space space, uint64_t bytes)> release;
  /// Functions that get warnings (by default they go to stderr), and the line of every
  /// telemetry_interval_steps (by default nobody gets it).
  std::function<void(const std::string &)> warn, log;
  /// The log that gets every event of the policy and what it decided, for `segue-run
  /// replay`; may be null.
  std::shared_ptr<EventLog> events;
};

class WeightStreamer final : public EventSink, public WeightLender {
public:
  explicit WeightStreamer(DeviceRef device, WeightStagehandConfig config = {}, WeightStreamerOptions options = {});
  /// Waits for what is queued. Changes that were not saved back are lost: see flush().
  ~WeightStreamer() override;

  /// A function that returns the source of a parameter; nothing if it is not streamed. start() calls it.
  using Sources = std::function<std::optional<WeightSource>(const Value &parameter)>;
  /// Streams the parameters of a program that touches them within blocks alone.
  /// `module` keeps names apart: parameters of one name and module are one, in
  /// whatever program. Programs of a phase are added in the order in which they
  /// are submitted; the same program may belong to several.
  void add(StepPhase phase, const std::string &module, const Program &program, const Sources &sources);
  /// Adds a program that runs in evaluations, in the same way.
  void addEvaluation(const std::string &module, const Program &program, const Sources &sources);
  /// Throws Unsupported unless `program` can run in the place of `like`, which was added: its blocks use the same
  /// parameters, though its batches have other extents.
  void requireAlike(const std::string &module, const Program &program, const Program &like) const;
  /// Adds such a program. Throws StateTransition after start().
  void addAlike(const std::string &module, const Program &program, const Sources &sources);
  /// Returns the slab of the options.
  const std::shared_ptr<SlabSource> &slab() const;
  /// Adds another slab that forms come from; start() gives it its buffers.
  void addSlab(std::shared_ptr<SlabSource> slab);
  /// Asks, as the options say, for page-locked memory of the host that weights live in.
  /// Returns false if it is not granted.
  bool reservePinned(uint64_t bytes);
  void releasePinned(uint64_t bytes);

  /// Has weights come from the ranks that have them, which all of these take part in. Every rank then brings the same
  /// blocks in the same order, whatever its memory and link are like, as the others wait for what it sends: the ring
  /// has as many slots as programs use at once and the window ahead, and none are given back or lent; ends of loads are
  /// heard where the order of blocks says; and a step or evaluation finds nothing there of the one before. `told` hears
  /// of each block when it is gathered. Called before start(). Throws Unsupported for a policy that goes by measured
  /// times.
  void gatherBy(std::shared_ptr<Collectives> ranks, std::function<void(const std::string &block)> told);
  /// Takes part in the gathering of a block, by the name that `told` was given, for the other ranks alone: in a step
  /// that has failed here. Blocks until it has ended.
  void gatherForOthers(const std::string &block);
  /// Waits for the blocks that programs were begun with, which may begin to gather others that were asked for ahead.
  /// Throws what a load does.
  void settleLoads();
  bool gathers() const;

  /// Returns the block in which all programs added so far touch the parameter, so that it
  /// can come with it; empty if there is none.
  std::string blockOf(const std::string &module, std::string_view parameter) const;
  bool hasProgram(const Program &program) const;

  /// Returns the streamed parameters, in the order of forward.
  std::vector<StreamedParameter> parameters() const;

  /// The slab from which a weight comes, from the next load on, in the place of its source;
  /// null for its source. `weight` is a key. Weights of a unit go together.
  struct FormChoice {
    std::string unit, weight;
    std::shared_ptr<SlabSource> slab;
  };
  /// Chooses forms. Called between steps. A weight that is on the device in another form
  /// leaves. Throws StateTransition within a step, NameUnknown, TransferFailed if trained
  /// parameters of such a block cannot be saved back.
  void setForms(std::span<const FormChoice> choices);
  /// A function that is told when a weight of a unit could not be read from its slab: the
  /// whole unit comes from its source from that load on, until other forms are chosen.
  using FormFailed = std::function<void(const std::string &unit, const Error &error)>;
  void onFormFailed(FormFailed handler);

  /// Opens the files, matches all weights, takes ring and pool. Throws what matchWeights throws,
  /// DtypeMismatch where strict_bf16, or where a block gives activations of a higher precision than
  /// it takes (fail_on_dtype_promotion), InvalidArgument for a read-only source that a program
  /// writes, LayoutMismatch for a source of another shape, BudgetInfeasible naming the largest block
  /// where not one slot fits, DeviceOom. After a failure everything is as before.
  void start();
  bool isStarted() const;
  /// Gives ring, pool and files back, so that start() asks for sources anew. Loses changes
  /// that were not saved back: see flush().
  void stop();

  /// Copies back what was changed and waits for it: before a checkpoint, or at the end.
  /// Throws TransferFailed.
  void flush();
  /// Notes that somebody has written this tensor of the host, after flush(): what the
  /// device has of it is not used again.
  void hostChanged(const Tensor &host);
  /// Returns true while a weight is copied back to `host`: then it is not known yet whether
  /// that failed, and the device has its value.
  bool isSavingBack(const Tensor &host) const;
  /// Throws SourceChanged if a file is not the one that was opened.
  void checkFiles() const;
  /// Blocks until what programs have queued is done.
  void wait();

  /// Sets Conductor's hints, which hold until the next ones.
  void setHints(const WeightHints &hints);
  /// Makes room when memory of the device is short: gives slots of the ring back for good,
  /// those of blocks that leave by score, until `bytes` are free or as few are left as
  /// programs need at once. Returns the bytes that were freed.
  uint64_t makeRoom(uint64_t bytes);
  /// Gives up the room that is kept for lending, since a plan is about to be made, which says anew how much is kept.
  void giveUpRoom();
  /// Settles the ring after a plan was made beside it and certified: from here on no slot more is taken, none is given
  /// back at a watermark, and room to lend is kept for as many slots that are open at once as the ring of the plan's
  /// twin had.
  void settle(int64_t openAtOnce);

  //===--------------------------------------------------------------------===//
  // Programs beside the order: saved values that are computed again
  //===--------------------------------------------------------------------===//

  // A block that is open serves such a program where it lies. Another block is loaded into
  // a slot for the run. For that, from keepRoom() on, one slot more than the step has open
  // at once is kept free of what may not leave.

  bool canLend(std::span<const Tensor> homes) const override;
  void keepRoom(std::span<const Tensor> homes) override;
  uint64_t bytesToBring(std::span<const Tensor> homes) const override;
  std::vector<Tensor> lend(std::span<const Tensor> homes) override;
  void giveBack() override;

  //===--------------------------------------------------------------------===//
  // Residency control
  //===--------------------------------------------------------------------===//

  // A claim holds until its scope ends, also over stop() and start().
  // Blocks are called "module/block", models as their module.
  using Scope = WeightStagehand::Scope;
  /// Keeps these blocks on the device once they are there. Throws NameUnknown for what is
  /// no block that is streamed, here or, before it, in start().
  [[nodiscard]] Scope keepResident(std::vector<std::string> blocks);
  /// Puts `bytes` of the device out of reach of guests; what a PRIMARY model has there does
  /// not leave for them either.
  [[nodiscard]] Scope reserve(std::string model, ResidencyRank rank, int64_t bytes);
  /// Makes blocks run in the name of a model that is a guest.
  [[nodiscard]] Scope asGuest(std::string model);
  /// Returns the bytes that may be allocated before something must leave, for the guest or, if
  /// there is none, for everybody; may be negative. Throws StateTransition if
  /// not started.
  int64_t headroomBytes() const;

  /// Sets the number of the step that the next STEP_BEGIN begins; numbers count up from 1
  /// by themselves.
  void setStep(int64_t step);
  /// Enclose programs that run outside of steps, in the order of addEvaluation; nothing is
  /// recorded. Within a step these do nothing.
  void beginEvaluation();
  void endEvaluation();
  /// Ends a program of an evaluation that has failed, in a step or outside: waits for the
  /// device, and forgets its uses.
  void abortEvaluation();
  /// Ends a step that cannot be finished: waits for the device, and forgets its uses.
  /// STEP_BEGIN in the midst of a step does the same.
  void abortStep();

  const WeightStagehand &policy() const;
  int64_t slots() const;
  /// Returns the fewest slots that programs can do with.
  int64_t leastSlots() const;
  const WeightStagehandConfig &config() const;
  /// Returns the most bytes that a load takes of the device beside its slot, for bytes that
  /// are not stored as programs want them; with `anyForm`, those of any weight may be
  /// stored otherwise.
  uint64_t stagingBytes(bool anyForm) const;
  /// Returns the bytes of the ring.
  uint64_t ringBytes() const;
  /// Returns the record of the last step, as in the telemetry file: that of the policy and
  /// that of the slab.
  Json record() const;

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::OfferInput &offer);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockInput &need);
  void on(const event::BlockEnd &end);
  void on(const event::OfferResults &offer);
  void on(const event::BlockResult &written);
  void on(const event::Pressure &pressure) { makeRoom(pressure.bytes); }
  void on(const event::StepAbort &) { abortStep(); }
  void on(const event::EvaluationBegin &) { beginEvaluation(); }
  void on(const event::EvaluationEnd &) { endEvaluation(); }
  void on(const event::EvaluationAbort &) { abortEvaluation(); }

private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_WEIGHTSTREAMER_H
