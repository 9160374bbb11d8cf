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
#include "GradientTape.h"
#include "KeptValues.h"
#include "PlanStep.h"
#include "ParameterTable.h"
#include "SealedCheckpoint.h"
#include "SessionRanks.h"
#include "StreamedParameters.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <list>
#include <set>

namespace segue::inline runtime {

struct SessionState {
  SessionState(DeviceRef device, std::vector<SessionModule> given, SessionOptions options);

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
  /// Is Session::parameter.
  const Tensor &parameter(size_t slot);
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
  /// Returns a function that finds the values of a module; `gathered` has parameters of other ranks, by name, which are
  /// given away.
  Module::Lookup lookup(size_t module, const Wiring &wiring, const TensorMap &batch,
                        const std::vector<std::vector<Tensor>> &outputs, TensorMap gathered = {}) const;
  int64_t seedOf(size_t module) const;
  /// Returns the losses of the modules.
  std::vector<Tensor> runForward(const Wiring &wiring, const TensorMap &batch);
  void runBackward();
  /// Throws where parameters are torn or have no values, or a module has no backward.
  void requireTrainable() const;
  /// Throws StateTransition where a hook on a gradient is at work, in whose step `what` would be.
  void requireOutsideOfHooks(std::string_view what) const;
  bool isInHook = false;
  /// Notes the loss of a batch that is none: it has the step skipped, or ends it.
  void noteLoss(double loss);
  /// Returns the modules that this rank runs, and up to where.
  std::pair<size_t, size_t> ownModules() const {
    return ranks ? ranks->ownModules() : std::pair(size_t(0), modules.size());
  }
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

  /// The session among other ranks; null if it is alone.
  std::unique_ptr<SessionRanks> ranks;
  /// Returns true if another rank has the parameter, and this one a tensor that stands for it.
  bool isElsewhere(size_t slot) const { return ranks && ranks->isElsewhere(slot); }
  WeightStreamer *weights() const { return services ? services->weights() : options.weights; }
  /// A loss that was none of a batch behind which others are run all the same.
  std::optional<Error> lateFailure;

  /// The session as Selective Precision sees it.
  struct Host;
  void startPrecision();
  /// Measures what forms change, on such batches, if that is to be known before the first step and is not.
  void calibrateIfNeeded(std::span<const TensorMap> batches);

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
  /// The options of `memory.stitch`, in force while this session computes; null where the config has none.
  TransferEngine::OptionsHandle stitchOptions;
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
