//===- SessionState.h - what a session holds --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This is shared by the files that a session is written in: Session.cpp has forward
// and backward, SessionOptimizer.cpp the optimizer, SessionParameters.cpp the values
// that come in from outside, SessionCheckpoint.cpp those of a finished step that go
// out and come back.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_SESSIONSTATE_H
#define SEGUE_RUNTIME_LIB_SESSION_SESSIONSTATE_H

#include "CheckpointFolder.h"
#include "GradientReduction.h"
#include "GradientTape.h"
#include "KeptValues.h"
#include "PlanStep.h"
#include "SealedCheckpoint.h"
#include "ShardedStates.h"
#include "StreamedParameters.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <list>
#include <set>

namespace segue::inline runtime {

/// A StepWord is what a rank says to others at a meeting in a step (SessionRanks.cpp).
struct StepWord {
  bool hasFailed = false, isOverflowed = false;
  /// True if gradients may not be ready where their program says, since they leave the device.
  bool holdsGradients = false;
  /// True if the rank was given values since all have found out that they train the same.
  bool wantsToAgree = false;
  /// The batches of the step so far; when it begins, the number of those that were given at once, or 0.
  int64_t batches = 0;
  double lossSum = 0, gradNorm = 0;
  std::vector<double> rates;
  std::string why;
  /// The squares of gradients in the order of ShardedStates::squares(), 0 for those of other ranks.
  std::vector<float> squares;
  /// The rank has failed for the want of what another one was to send, which says why itself.
  bool isEcho = false;
  /// In a pipeline: the losses of each batch, in the order of modules, 0 for those of other ranks; and a hash of the
  /// batches that the rank was given.
  std::vector<double> losses;
  uint64_t batchHash = 0;
  /// The word of Selective Precision (PrecisionActor::word).
  std::string precision;
};

struct Session::State {
  State(DeviceRef device, std::vector<SessionModule> given, SessionOptions options);

  void configure(const Config &config);
  /// Allocates the states. `inputs` names the inputs of optimizers that they are, by module.
  void allocateStates(std::span<const std::pair<size_t, size_t>> inputs);

  /// Returns the gradients that come by block, of `modules` or of the same for other extents.
  std::vector<GradientOutput> gradientsByBlock(const std::vector<Module> &modules) const;
  /// Has the service that moves states hold the gradients of all programs.
  void holdGradients();
  /// Returns memory for the state called `key` where homes are, with all bytes 0.
  Tensor stateHome(TensorDesc desc, const std::string &key);
  /// Makes gradients and states live on the host from now on, between two steps; they are
  /// brought as they are needed. Returns false, with nothing done, if no service moves
  /// them, or they do so already. Throws TransferFailed, with values as they were.
  bool letStatesLeave();
  /// Logs once that states leave, when a step is known to begin: a refused session has no use for it.
  void tellStatesLeave();

  // Parameters.
  void checkFits(size_t slot, const Tensor &tensor) const;
  void assign(size_t slot, const Tensor &tensor);
  bool canBeStreamedFrom(size_t slot, const Tensor &tensor) const;
  /// Makes memory for a parameter in the place where it lies between two uses, and a copy of `source` there.
  Tensor emptyParameter(size_t slot);
  Tensor placed(size_t slot, const Tensor &source);
  struct FileEntry {
    std::shared_ptr<const SafetensorsFile> file;
    std::string name;
  };
  /// Assigns sources by slot, and optimizer states by key. For a frozen parameter that is
  /// streamed the file in `files` serves itself. `checkSources` throws if the sources are
  /// not what they were when the copies began. All or nothing: a failure puts back what was
  /// written over, and leaves a torn state only where that fails too or the host had no
  /// memory to keep it. Each source is let go once it is copied, so that pages of a mapped
  /// file do not add up.
  void assignAll(
      std::vector<Tensor> sources, const std::vector<FileEntry> &files, TensorMap states,
      const std::function<void()> &checkSources = [] {});
  KeptValues keep(std::span<const Tensor> values);
  void requireValues() const;
  void requireWhole() const;
  /// Notes that step `number` is half done: requireWhole throws StateTorn from now on; tear() does at once.
  void noteTorn(int64_t number, const std::string &why);
  [[noreturn]] void tear(int64_t number, const std::string &why);
  /// Returns why queued writes of parameters or states have failed since, or null.
  const Error *lostState() const;
  /// Waits until what is queued to write them has ended, and notes where that has failed. Returns true if parameters
  /// are whole, so that somebody may be told so.
  bool settlesWhole() noexcept;
  /// Blocks until parameters and states are written, or have failed.
  void settle();
  /// Settles, and brings values of the device home to the host. Throws StateTorn
  /// if there are none, what StreamedParameters::flush throws.
  void flush();

  // Phases.
  void enter(Phase phase) {
    if (options.events)
      options.events->enter(phase);
  }
  void enterOptimizer();
  void checkPhases(std::span<const Module> modules) const;
  void checkHypers(const Module &module) const;
  void endStep();
  Wiring wiringFor(const TensorMap &batch, bool isEvaluation = false);
  TensorMap placeBatch(const Wiring &wiring, const TensorMap &batch) const;
  Module::Lookup lookup(size_t module, const Wiring &wiring, const TensorMap &batch,
                        const std::vector<std::vector<Tensor>> &outputs) const;
  int64_t seedOf(size_t module) const;
  /// Returns the losses of the modules.
  std::vector<Tensor> runForward(const Wiring &wiring, const TensorMap &batch);
  void runBackward();
  /// Throws where parameters are torn or have no values, or a module has no backward.
  void requireTrainable() const;
  /// Notes the loss of a batch that is none: it has the step skipped, or ends it.
  void noteLoss(double loss);
  /// Returns the modules that this rank runs, and up to where.
  std::pair<size_t, size_t> ownModules() const;
  /// Returns true if sums of several batches may be made in the midst of backward, as no service moves them.
  bool mayAddInBackward() const { return !residency && !(services && services->wantsPlan()); }
  /// Returns the states and scalars, by name, that backward of module `m` reads to update its parameters.
  TensorMap updateInputs(size_t m);
  /// An update that waits for the next forward: its gradients by slot, and the scalars of its step.
  struct Waiting {
    std::vector<Tensor> gradients;
    LearningRates rates;
    double clip = 1;
  };
  /// Has modules whose updates belong to forward keep their gradients for it.
  void deferUpdates(const LearningRates &rates, double clip);
  /// Returns what forward of module `m` reads besides, to make the update that waits.
  std::vector<Tensor> deferredInputs(size_t m);
  /// Returns what the optimizer of `plan` reads for the update that waits; its gradients are given away.
  std::vector<Tensor> deferredTensors(const OptimizerPlan &plan);
  /// Makes the updates that wait by the programs of the optimizer: between steps, before somebody reads or changes
  /// what they write. Throws StateTorn if one fails.
  void makeDeferred();
  /// Returns the sum of gradients that an update of parameter `slot` reads.
  Tensor &gradientFor(size_t slot);
  /// Returns the number of the step whose update is made.
  int64_t updatedStep() const { return deferred ? step : step + 1; }
  /// Returns true if backward of some module updates parameters.
  bool updatesInBackward() const;
  /// Throws where the step under way cannot be one whose backward updates parameters.
  void checkInBackward() const;
  void drop();
  /// Gives up a step that cannot be finished.
  void abort();
  /// Does that for a step that `error` has ended, when other ranks have been told. `midway`: what was at work if it may
  /// have updated parameters. The caller throws on, unless requireWhole throws.
  void giveUp(const std::exception &error, const std::string &midway);
  double gradientNorm();
  /// Returns what norms of some gradients each come to over all ranks, added up as those of one rank.
  double squareOverRanks(const std::vector<std::vector<Tensor>> &norms);
  /// The memory with the newest value of a gradient: its own, or where its home is on the host, the device's copy if there
  /// is one, in which a plan counts on it. `item` is null for one without a home.
  struct NewestGradient {
    Tensor tensor;
    Item *item = nullptr;
  };
  /// Returns true if another value of the step is the memory of this gradient, so that it is not to be written in place.
  /// A program that keeps the memory for its next run does not count: what lies there serves nobody.
  bool isSeenElsewhere(size_t slot);
  /// Returns it for a caller who writes there, and says so by written().
  NewestGradient newestOf(const Tensor &sum);
  void written(const NewestGradient &gradient);
  /// Hands gradients, which are sums of `divisor` times what they mean, to hooks.
  void callHooks(std::span<const GradientHook> hooks, double divisor);
  double lossScale() const { return options.lossScaling ? options.lossScaling->scale : 1; }
  /// Throws InvalidArgument where a module wants more rates, or one is not finite.
  void checkRates(const LearningRates &rates) const;
  Tensor optimizerTensor(const Value &value, const OptimizerValue &input, bool comesByBlock, const LearningRates &rates,
                         double clip);
  /// The gradients that a program of the phase is the last to read: Others are those that no optimizer here reads, as
  /// another rank does. A twin knows no ranks, and has the same programs.
  enum class GivesGradients : int8_t { None, Others, All };
  bool isReadByOptimizer(size_t slot) const;
  std::vector<Tensor> optimizerTensors(const Program &program, const std::vector<OptimizerValue> &inputs,
                                       const LearningRates &rates, double clip, GivesGradients gives,
                                       const std::vector<Tensor> &scalars = {});
  StepResult optimize(const LearningRates &rates, std::span<const GradientHook> hooks);
  std::vector<Tensor> optimizerScalars(const Program &program, const std::vector<OptimizerValue> &inputs,
                                       const LearningRates &rates, double clip);
  bool isBroughtFrom(const OptimizerValue &input, const Tensor &tensor);
  void runOptimizer(const OptimizerPlan &plan, std::vector<Tensor> tensors);
  /// Makes the results of a program the values of parameters and states.
  void storeUpdated(const OptimizerPlan &plan, std::vector<Tensor> results);

  // Other ranks (SessionRanks.cpp).
  /// Returns true if other ranks take the step with this one.
  bool isShared() const;
  /// Returns true if each of them has the states of some parameters alone.
  bool isSharded() const { return isShared() && options.sharding != Sharding::None; }
  /// Returns true if parameters come from the ranks that have them (SessionGathering.cpp).
  bool isGathered() const { return isShared() && options.sharding == Sharding::Parameters; }
  /// Returns true if each of them has modules of its own (SessionPipeline.cpp).
  bool isPipelined() const { return isShared() && options.sharding == Sharding::Modules; }
  /// Takes the programs of modules that other ranks run out of these.
  void leaveModules(std::vector<Module> &modules) const;
  struct Passage;
  /// Returns what comes to this rank's stage and goes from there for a batch that the modules at hand run.
  Passage passageOf(const Wiring &wiring) const;
  /// Adds the bytes of the messages of a step of a pipeline, and of those behind it.
  void leavePipelineTo(std::span<const TensorMap> batches, std::vector<std::vector<uint64_t>> &steps,
                       std::vector<std::vector<uint64_t>> &updates);
  /// Returns true if this stage and another one share a parameter that is trained.
  bool isTiedHere(size_t slot) const;
  /// Brings the values of such parameters from the ranks that update them to the others.
  void shareTied();
  /// Runs forward and backward of all batches of a step, in the order of a pipeline.
  void runPipeline(std::span<const TensorMap> batches);
  /// Throws where ranks were not given the same batches.
  void requireSameBatches(const std::vector<StepWord> &words);
  /// Returns the mean of the losses of all ranks, added up as one rank adds them.
  double meanLoss(const std::vector<StepWord> &words) const;
  /// Has the ranks of a pipeline agree on what is evaluated, as before a step: on the seed, too.
  void agreeToEvaluate();
  /// Returns the outputs of the last module for a batch, on every rank.
  std::vector<Tensor> evaluatePipeline(const Wiring &wiring, const TensorMap &placed);
  class PipelineStep;
  /// The values of the batch at hand that come from the stage before and go to the next one; null outside of a pipeline's
  /// batch.
  Passage *passage = nullptr;
  /// The number of the batch at hand within the step of a pipeline; elsewhere that is `waiting`.
  int64_t batchAtHand = 0;
  /// The losses of the step under way, as StepWord has them.
  std::vector<double> batchLosses;
  /// Returns the rank that updates a parameter which not every rank has, or nothing where every rank has it.
  std::optional<int> rankOf(size_t slot) const;
  bool isElsewhere(size_t slot) const;
  /// Adds Weight Stagehand's ring, for what other ranks have, to a config that says nothing of it. Throws
  /// InvalidArgument for one that switches it off.
  void wantRing();
  WeightStreamer *weights() const { return services ? services->weights() : options.weights; }
  /// Puts tensors that stand for them in the place of what other ranks have.
  void leaveElsewhere();
  /// Meets the other ranks before something that gathers parameters outside of a step's own meetings. Throws RankFailed
  /// where one of them says why it cannot.
  void meetToGather(std::string_view what, const std::string &failure = "") const;
  /// Meets them when this rank is ready to take the step, and is to gather what others send.
  void beginGathering();
  /// True while this step has blocks to gather that other ranks wait for.
  bool gathersMore = false;
  /// Notes that it has none any more, and which there were.
  void endGathering();
  /// Gathers, in a step that has failed here, what is left for the others to gather, as it was in a step before.
  /// Returns false where that is not known or fails.
  bool gatherRest() noexcept;
  /// A Gathering is one of a block, behind so many messages with gradients. These of the step under way.
  struct Gathering {
    std::string block;
    size_t messagesBefore;
    bool operator==(const Gathering &) const = default;
  };
  std::vector<Gathering> gatherings;
  /// True if a rank of these sends sums of several batches when backward has ended.
  bool sendsBehind = false;
  /// A loss that was none of a batch that others follow, which are gathered for all the same.
  std::optional<Error> lateFailure;
  /// How often values came from outside. A rank alone that was given some would have them of another model.
  int64_t timesGiven = 0;
  /// Returns true if each of them has the sums of some gradients alone.
  bool sharesGradients() const { return shards && options.sharding >= Sharding::Gradients; }
  /// Throws Unsupported for what several ranks cannot do yet.
  void checkCanBeShared() const;
  /// Leaves the updates of this rank's parameters in the modules, and no others.
  void shareOptimizers();
  /// Has what is kept in page-locked memory leave the room that messages of a step take there, which has these batches.
  void leaveHostToMessages(std::span<const TensorMap> batches);
  size_t leftForBatches = 0;
  /// Gives every rank the parameters that others have updated. Throws StateTorn.
  void shareUpdates(int64_t number);
  /// Writes what `make` returns of each rank: to a file rank 0 does, with the states of the others, which send them, and
  /// to a folder each its part. Throws RankFailed where another rank cannot.
  void saveTogether(const std::filesystem::path &path, const std::function<Checkpoint()> &make);
  void saveShards(const std::filesystem::path &path, Checkpoint checkpoint);
  void sendStates();
  /// Returns a parameter or state that another rank has, by the key that it has in a file.
  Tensor receive(const std::string &key, const TensorDesc &desc, int rank);
  /// Writes this rank's part of the save called `name`; `save` is that of rank 0, and null on the others.
  void saveParts(const std::filesystem::path &folder, CheckpointSave *save, const std::string &name,
                 const std::function<Checkpoint()> &make);
  /// Returns what a checkpoint has, and who has it: the same list on every rank.
  std::vector<CheckpointTensor> checkpointTensors() const;
  /// Finds out whether all ranks train the same; values and the seed are those of rank 0 then. Throws RankFailed,
  /// naming rank and difference.
  void agree();
  /// Returns what has to be the same on every rank, by what it is called in messages.
  Json trainedAsJson() const;
  Json programsAsJson() const;
  void takeValuesOfRank0();
  /// Says what this rank says at the meeting that is next, and returns what all say. Throws RankFailed where one has
  /// failed, and StateTorn where parameters of this rank have turned out to be between two steps then.
  std::vector<StepWord> meetOnce(const StepWord &own);
  std::vector<StepWord> meet(const StepWord &own);
  /// Meets the others where a rank has failed, and what was queued in the step before may have: returns if parameters are
  /// whole on all ranks. Throws StateTorn where they are not on this one, which ends the group, RankFailed where they are
  /// not on another.
  void requireWholeOnAll();
  /// Puts the sums over ranks in the place of gradients, those that were sent in backward among them.
  void sendGradients();
  /// Does that, and puts the mean of all losses into `result`. Returns the number of batches of all ranks.
  int64_t addOverRanks(StepResult &result);
  /// Returns when every rank is ready to write parameters.
  void agreeToUpdate(const StepResult &result, const LearningRates &rates);
  /// Has other ranks know at their next meeting that this one cannot go on, unless they know. Where it cannot for the
  /// want of what another one was to send, or another one has no whole parameters, `cause` is what that one says.
  void tellFailure(const std::exception &error) noexcept;
  std::optional<Error> cause;
  bool hasAgreed = false, hasTold = false;
  /// The parameters of each rank; nothing where every rank updates all.
  std::shared_ptr<const ShardedStates> shards;
  /// The programs of the modules as they were compiled, for other ranks to compare.
  Json compiledPrograms;
  /// The gradients on their way to other ranks; nothing where there are none.
  std::optional<GradientReduction> reduction;
  /// Notes that a step begins in which other ranks have not been met yet.
  void beginMeetings();
  /// Returns when every rank begins a step, before it is planned. Before the first one, and where a rank was given values
  /// since, it is agreed on what is trained.
  void beginShared(std::span<const TensorMap> batches);
  /// The meetings that the step under way has had, and what those of a step are about.
  size_t meetings = 0;
  std::span<const std::string_view> meetingsOfStep() const;

  /// The session as Selective Precision sees it.
  struct Host;
  void startPrecision();
  /// Measures what forms change, on such batches, if that is to be known before the first step and is not.
  void calibrateIfNeeded(std::span<const TensorMap> batches);
  /// Has every rank decide about forms from the state of rank 0 on.
  void takePrecisionOfRank0();
  /// Has Selective Precision take what that of each rank has said in a meeting.
  void takePrecisionWords(const std::vector<StepWord> &words);

  DeviceRef device;
  SessionOptions options;
  std::vector<Module> modules;
  std::vector<ModulePorts> ports;
  /// A Sizes has the same modules for batches of other extents (addSizes).
  struct Sizes {
    std::vector<Module> modules;
    std::vector<ModulePorts> ports;
  };
  std::vector<std::unique_ptr<const Sizes>> otherSizes, evaluationSizes;
  /// The modules that run the batch at hand: an element of one of these, or null for `modules`. Set by wiringFor.
  const Sizes *sizes = nullptr;
  /// Returns the modules that run a batch whose tensors are of these descriptions, as `sizes` says it.
  const Sizes *sizesFor(const BatchDescs &batch, bool isEvaluation = false) const;
  const std::vector<Module> &modulesOf(const Sizes *of) const { return of ? of->modules : modules; }
  const std::vector<Module> &modulesNow() const { return modulesOf(sizes); }
  const std::vector<ModulePorts> &portsNow() const { return sizes ? sizes->ports : ports; }
  ParameterTable table;
  std::vector<OptimizerPlan> plans;
  std::optional<JsonlWriter> stitchTelemetry;
  /// Warnings that were given, each once.
  std::set<std::string> warned;

  /// The parameters by slot; null until set.
  std::vector<Tensor> values;
  /// The values that a load has placed so far and that are not yet among `values`; null if none is under way.
  const std::vector<Tensor> *loading = nullptr;
  TensorMap optimizerState;
  int64_t step = 0;
  /// By rate group, the steps that its parameters did not take part in; what is missing is 0.
  std::vector<int64_t> stepLags;
  /// Why parameters are between two steps; empty: they are not.
  std::string torn;

  /// The tape, whose first values are the slots: the sums that wait, over `waiting` batches.
  GradientTape tape;
  /// The batch under way: its tensors, and the losses with what they are.
  std::map<std::string, GradientTape::ValueId, std::less<>> batchValues;
  std::vector<std::pair<GradientTape::ValueId, const Value *>> losses;
  TensorMap inputGradients;
  TensorMap lastOutputs;
  int64_t waiting = 0;
  double lossSum = 0;
  /// A loss of the step under way is not finite, which its scale may be the cause of.
  bool isOverflowed = false;
  /// The learning rates of the step under way, where they are known before backward.
  std::optional<LearningRates> rates;
  /// The update that waits for the next forward, if any does.
  std::optional<Waiting> deferred;
  /// True if forward or backward has begun to update parameters; and squares of their gradients, by module.
  bool isUpdating = false;
  std::vector<Tensor> squares;

  /// The modules that run each micro-batch of a step, as `sizes` says it.
  using StepSizes = std::vector<const Sizes *>;
  StepSizes stepSizes(std::span<const TensorMap> batches) const;
  StepToPlan stepToPlan(const StepSizes &step, std::span<const TensorMap> batches = {}) const;
  /// Has services follow a plan for such a step, in `mode: planned`; otherwise, finds out whether Conductor's cap
  /// leaves room for one, when its extents come first. `batches` are those that are known. Throws BudgetInfeasible before
  /// anything of the step has begun.
  void planFor(const StepSizes &step, std::span<const TensorMap> batches);
  /// Does that without a plan; with one.
  void checkFor(const StepSizes &step, std::span<const TensorMap> batches);
  void followPlanFor(const StepSizes &step, std::span<const TensorMap> batches);
  /// Returns a plan to go on with instead of the one in force; null, and the log says why, where that stays.
  std::unique_ptr<TriedPlan> tryAnother(const StepSizes &step, std::span<const TensorMap> batches,
                                        const MeasuredStep *measured);
  /// Throws BudgetInfeasible with the budget that is enough if `error` says that memory of
  /// the device was missing before the first step; returns if that cannot be said.
  /// `step` is empty before one is asked for.
  void refuseTooSmall(const Error &error, const StepSizes &step = {}, std::span<const TensorMap> batches = {}) const;
  /// Has the device take what it will for programs of such a step (Device::bytesForPrograms), before rings, states and
  /// plans share out the rest. Throws BudgetInfeasible.
  void takeForPrograms(const StepSizes &step = {}, std::span<const TensorMap> batches = {});
  /// Makes the ring ready for such a step. Throws BudgetInfeasible.
  void prepareStreamed(const StepSizes &step, std::span<const TensorMap> batches);
  /// Returns true if the user's sink may move tensors itself, of which a twin knows nothing.
  bool hasOwnSink() const { return !services && (options.events || options.residency || options.weights); }
  /// The step of the plan in force, or that was checked last, and the ring's slots beside it; empty if there is none.
  StepSizes plannedFor;
  /// The step that was certified last: such steps alone are held to what that said.
  StepSizes certifiedFor;
  /// The step under way if its batches were given at once; empty if that is not known.
  StepSizes announced;
  int64_t plannedSlots = 0;
  /// True if a step has been aborted since the plan in force was last looked at.
  bool hasAborted = false;
  /// A KnownStep is what was found out about one kind of step.
  struct KnownStep {
    StepSizes step;
    /// The bytes that are certified to be enough.
    std::optional<uint64_t> certified;
    /// The plan that was made for it; where it goes by none, what its check has found.
    std::optional<PlannedStep> planned;
    std::optional<CheckedStep> checked;
    /// The blocks that such a step gathers, in their order; none before one has.
    std::vector<Gathering> gatherings;
  };
  std::list<KnownStep> known;
  /// Returns what is known of the step, with nothing found out yet if it comes first.
  KnownStep &knownOf(const StepSizes &step);
  /// True if optimizer states have begun to leave, and the log has no line of it yet.
  bool statesLeaveUntold = false;
  /// The services; null unless the config enables some. `options.events` is theirs then.
  std::unique_ptr<MemoryServices> services;
  /// Selective Precision among the services, or null, and what the session does for it.
  PrecisionActor *precision = nullptr;
  std::shared_ptr<Host> host;
  std::optional<StreamedParameters> streamed;
  /// The sealer; null unless checkpoints are sealed.
  std::unique_ptr<CheckpointSealer> sealer;
  /// The table of states and gradients that may be away; null if none may.
  Residency *residency = nullptr;
};

/// The error of parameters that are between two steps.
Error tornError(const std::string &why);

/// The reason why parameters are not whole while they are loaded.
inline constexpr const char *loadTorn = "a load of parameters failed midway";

/// The modules of a session under their names. Throws InvalidArgument for none, and for two of one name.
std::vector<Module> makeModules(const DeviceRef &device, std::vector<SessionModule> given);

/// A scalar for a hyper value, in the element type that the program declares.
Tensor hyperTensor(const DeviceRef &device, const Value &value, double number);

/// Returns true if two tensors of one shape and type have the same bytes, which are read where they lie.
bool haveEqualBytes(const Tensor &a, const Tensor &b);

/// Throws where `tensor` is null or not of the shape and type of `wanted`.
void checkSame(const std::string &what, const Tensor &tensor, const TensorDesc &wanted);

/// Returns a new tensor under its own name in the books of memory.
Tensor emptyNamed(const DeviceRef &device, const TensorDesc &wanted, std::string name, std::string_view role);
Tensor zerosNamed(const DeviceRef &device, const TensorDesc &wanted, std::string name, std::string_view role);

/// Returns the room that seals take of the disk of such values, by slot, and states.
SealRoom sealRoomOf(const ParameterTable &table, const std::vector<Tensor> &values, const TensorMap &states);

/// Blocks until memory of the caller is the caller's again.
void giveBack(const Tensor &tensor);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_SESSIONSTATE_H
