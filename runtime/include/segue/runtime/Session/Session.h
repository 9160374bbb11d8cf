//===- Session.h - a training step over stitched modules --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A Session owns parameters, gradients, optimizer state and random state by
// name, and runs STEP_BEGIN → FORWARD → BACKWARD → OPTIMIZER → STEP_END over
// modules that were compiled apart.
//
//   Session session(device, {{"front", Binary::load("front.segue")}, {"back", Binary::load("back.segue")}});
//   session.loadWeights("init.safetensors");
//   for (int step = 0; step < 1000; ++step)
//     std::cout << session.step({{"tokens", x}, {"targets", y}}, 3e-4).loss << '\n';
//   session.save("checkpoint.safetensors");
//
// Wiring joins outputs to inputs by the rule of Wiring.h. The gradient of the
// scalar output called "loss" is 1 (of several, their sum is the loss); that
// of another output is the sum of what its readers give, or zeros.
//
// Names: a parameter's *session key* is its name in the program where only one
// module has that name, otherwise "<module>.<name>" (a form that is always
// understood). Equal names alone never tie: two modules may each have an
// "h.0.weight". Tied parameters are given as groups in SessionOptions: one
// storage under the key of the first, gradients summed, optimized once.
//
// A step that fails leaves parameters, state and step counter as the last
// finished step left them; only a failure inside an optimizer program itself
// can break that, is reported as StateTorn, and stops the session until load().
//
// On a device with queues a step returns when its loss and norm are known; the
// optimizer may still be at work. If it fails there, the next call that needs
// parameters or states says so (StateTorn). Without bytes (`sim:virtual`) a step
// is queued, timed and counted as elsewhere; losses and norms are 0.
//
// One thread at a time.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_SESSION_H
#define SEGUE_RUNTIME_SESSION_SESSION_H

#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/HeldPointer.h"
#include "segue/runtime/Residency/Residency.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Session/Checkpoint.h"
#include "segue/runtime/Session/LossScaling.h"
#include "segue/runtime/Program/Module.h"
#include "segue/runtime/Session/Wiring.h"

namespace segue::inline runtime {

/// A module of a session. An empty name stands for its position: "0", "1".
struct SessionModule {
  std::string name;
  Binary binary;
};

/// The learning rates of a step: that of the optimizer, and those of groups 1, 2, ... of parameters that were compiled
/// with one of their own.
class LearningRates {
public:
  LearningRates(double rate) : rates_{rate} {}
  /// Takes the rates of all groups; there must be one at least.
  LearningRates(std::vector<double> rates) : rates_(std::move(rates)) {}
  /// Returns one rate for so many groups.
  static LearningRates same(double rate, size_t count) { return std::vector<double>(count, rate); }
  size_t size() const { return rates_.size(); }
  double operator[](size_t group) const { return rates_.at(group); }

private:
  std::vector<double> rates_;
};

/// A parameter (or frozen value), by the name that its module has for it.
struct ParameterRef {
  std::string module, name;
};

class ShardedStates;
struct SessionState;

/// A Sharding says what each rank has a piece of, and not all.
enum class Sharding : int8_t {
  None = 0,
  /// The states of optimizers: each rank has those of some parameters, makes their updates, and sends the others their
  /// values (ZeRO's first stage).
  States = 1,
  /// And gradients: the sum of one is made where the parameter is updated, and nobody else keeps any (the second stage).
  Gradients = 2,
  /// And parameters: each rank has those that it updates, and they come to the others by Weight Stagehand's ring,
  /// with their block, in forward and in backward (the third stage, FSDP). Parameters that come with no block stay on
  /// every rank.
  Parameters = 3,
  /// Modules, with all that is theirs: each rank runs some, one behind the other, for every batch of a step. All ranks
  /// are given the same batches (a pipeline, 1F1B).
  Modules = 4
};
inline constexpr Sharding shardings[] = {Sharding::None, Sharding::States, Sharding::Gradients, Sharding::Parameters,
                                         Sharding::Modules};
/// Returns the name that users give: "ddp", "zero1", "zero2", "zero3", "pipeline".
std::string_view name(Sharding sharding);
/// Reads such a name. Throws InvalidArgument, naming those that there are.
Sharding parseSharding(const std::string &text);

struct SessionOptions {
  /// Gradients are scaled so that their joint norm is at most this; 0 or less
  /// leaves them as they are.
  double maxGradNorm = 0;
  /// Scales the loss. A step whose loss or gradients are not finite is then skipped with nothing changed but the
  /// scale, until that has fallen below 1; then it throws NanLoss as without. Not with an optimizer in backward.
  std::optional<LossScaling> lossScaling;
  /// Value of the hyper "seed" in the first module and batch of a step; others
  /// get numbers made from it, so that no two share their random masks.
  int64_t seed = 0;
  /// Groups of parameters that are tied: each group is one parameter.
  std::vector<std::vector<ParameterRef>> tied;
  /// Wires that win over batch and position.
  std::vector<Wire> wires;
  /// The ranks that train the same parameters on batches of their own; null: this one is alone. Gradients are added
  /// up over ranks, and the mean is that over the batches of all. Every rank makes the same calls in one order.
  std::shared_ptr<Collectives> collectives;
  /// Says what each of these ranks has a piece of; the same on every rank.
  Sharding sharding = Sharding::None;
  /// With Sharding::Modules, how many modules each rank runs, in their order; empty: so that the costliest stage is as
  /// cheap as can be. The same on every rank.
  std::vector<size_t> stages;
  /// A sink that is told of phases and blocks; not owned, may be null.
  EventSink *events = nullptr;
  /// The config file of the run. A section that it lacks leaves its service
  /// off; `memory.stitch` sets up the device's transfer engine and writes one
  /// line of telemetry per step; the memory services that it enables are made
  /// with the session, and told of everything beside `events`.
  std::optional<Config> config;
  /// The function precisionService() of PrecisionService.h, if the config may ask for
  /// Selective Precision; without it, such a config is refused.
  MakePrecision makePrecision = nullptr;
  /// The folder for logs of what the services decide; see MemoryServices.h.
  std::filesystem::path recordEvents;
  /// Opens the slab that the config names for Weight Stagehand: openSlab of the
  /// library SegueSquareQ. Without it such a config is an error.
  SlabOpener openSlab;
  /// Names that files and slabs may give parameters: pairs of runs of components that mean
  /// the same, {"fc.base", "fc"} for an adapter around "fc". The component `orig` of an
  /// adapter may always be left out.
  NameAliases aliases;
  /// If it is not null, and the config's services do not decide, parameters and
  /// states of optimizers that all programs touch within blocks alone live in the
  /// host's memory, and come to the device through this. `events` brings them
  /// (see PlannedResidency). Not owned.
  Residency *residency = nullptr;
  /// Brings parameters alone, in blocks; both may be given. Not owned.
  WeightStreamer *weights = nullptr;
  /// Names the shares that the modules have been sliced to already, if this session is a twin, whose `collectives` are its
  /// own (Collectives::twin).
  std::shared_ptr<const ShardedStates> shards;
  /// True if this session is a twin on which another one tries its first steps. A session
  /// does so where the device's budget may be too small for them, and throws
  /// BudgetInfeasible before them if it is.
  bool isRehearsal = false;
  /// Gets each warning once; by default they go to stderr.
  std::function<void(const std::string &)> warn;
  /// Gets what services say every so many steps; by default nobody does.
  std::function<void(const std::string &)> log;
};

struct StepResult {
  /// The mean over the accumulated batches.
  double loss = 0;
  /// The joint norm of the (mean) gradients before clipping; NaN if no module has a
  /// grad_norm program.
  double gradNorm = 0;
  /// The factor that gradients were scaled down by to keep to maxGradNorm.
  double clip = 1;
  /// Number of the step, 1 for the first; of one that is skipped, that of the step before it.
  int64_t step = 0;
  /// The factor that the loss was scaled by; and whether it has made the gradients infinite, so that nothing
  /// was updated.
  double lossScale = 1;
  bool isSkipped = false;
  /// Outputs of the last module for the last batch, by name; in a pipeline, on the rank that has that module alone.
  TensorMap outputs;
};

struct ParameterInfo {
  /// The session key.
  std::string key;
  TensorDesc desc;
  /// False for frozen parameters and buffers.
  bool trained = true;
  /// Every module and name it goes by; more than one if it is tied.
  std::vector<ParameterRef> members;
};

/// Sees the gradient of one parameter in every step, before the norm is taken and before clipping.
struct GradientHook {
  /// Session key of the parameter, which is trained.
  std::string key;
  /// Gets a copy in the host's memory: the mean over batches, not scaled. What it writes there the step goes
  /// on with. What it throws ends the step before anything was updated.
  std::function<void(Tensor &gradient)> call;
};

/// Returns each parameter with each of its names, against which a slab is checked.
std::vector<ProgramWeight> programWeights(std::span<const ParameterInfo> parameters);

class Session {
public:
  /// Allocates the optimizer state (zeros) and no parameters. Throws
  /// LayoutMismatch where tied parameters or a wire's ends differ, NameUnknown
  /// for a tie or wire to nothing, InvalidArgument for two modules of one name.
  Session(DeviceRef device, std::vector<SessionModule> modules, SessionOptions options = {});
  ~Session();
  Session(Session &&) noexcept;
  Session &operator=(Session &&) noexcept;

  // A Session that was moved from refuses every call. A temporary gives copies of what it has.

  const DeviceRef &device() const &;
  const std::vector<Module> &modules() const &;
  DeviceRef device() && { return device(); }
  std::vector<Module> modules() && { return modules(); }
  /// Returns the services, or null if the config enables none.
  const MemoryServices *services() const;
  /// Adds the same modules, compiled for batches of other extents: such a batch runs
  /// them, on the parameters and states of the session; optimizers stay the first
  /// ones. `areForEvaluation`: evaluate alone runs them, also for the extents of the first ones, as
  /// where dropout is not compiled in; they need no backward. Throws InvalidArgument if a name,
  /// parameter or frozen value differs, StateTransition within a step, Unsupported with Selective Precision, which has
  /// measured one set of programs, and where the ring of weights finds other blocks.
  void addSizes(std::vector<SessionModule> modules, bool areForEvaluation = false);

  /// Goes on with the same modules, compiled for other parameters to train: values and states stay where they are
  /// and as they are, those of parameters that are frozen now too; a state that is new is 0. `stepLags`: for parameters of rate
  /// group n, whose optimizer was compiled with `own-steps`, how many steps of the session they did not take part in.
  /// Programs for other extents (addSizes) are dropped, and waiting gradients; a step is planned anew. Throws, with
  /// nothing changed, what the constructor throws, InvalidArgument if a name or parameter differs, DeviceOom where the
  /// disk has no room to seal what is trained from here on, and Unsupported with a ring of weights or Selective
  /// Precision, whose blocks have one set of trained parameters.
  void setTrained(std::vector<SessionModule> modules, std::vector<int64_t> stepLags);
  /// The scale of the next step's loss; nothing without loss scaling.
  const std::optional<LossScaling> &lossScaling() const;

  /// Returns the services, for claims on what stays on the device: `services()->weights()->keepResident`.
  MemoryServices *services();

  /// Returns the trained and frozen values, each once, in order of appearance.
  const std::vector<ParameterInfo> &parameters() const &;
  std::vector<ParameterInfo> parameters() && { return parameters(); }

  /// Copies `tensor` into the parameter (trained or frozen) called `key`, into
  /// bound memory where there is any; does nothing where another rank alone has it, which sets it, too. Throws
  /// NameUnknown with the nearest key, LayoutMismatch for another shape or element type.
  void setParameter(std::string_view key, const Tensor &tensor);

  /// Makes the parameter use the storage of `tensor`, so that training changes it in place
  /// and what the caller writes there counts. Returns true if the layout of `tensor` fits
  /// and it is writable (a frozen value need not be); otherwise the value was copied and
  /// the two are apart. They are always apart on a device with memory of its own, except
  /// where blocks are streamed; a plan (`mode: planned`) binds frozen values alone, which
  /// nobody may change then. Throws as setParameter does.
  bool bindParameter(std::string_view key, const Tensor &tensor);

  /// Returns the bytes of device_dram that are enough for steps of so many batches, whatever time
  /// copies take: those of a plan's addresses, or, where no plan is made, the most that steps on a
  /// twin held, which then trained with no more than that. Bytes that others hold now are among
  /// them. From here on such steps keep to that number: an allocation beyond it waits for what
  /// leaves. On a device of as many bytes the session trains to the same bits. With Selective
  /// Precision, which no twin can play, it is the budget. A call before the first step takes the
  /// ring and the pool, and needs parameters that have values. Throws BudgetInfeasible as step
  /// does, StateTransition within a step, Unsupported for a device that has no twin.
  uint64_t certify(size_t microBatches = 1);

  /// Gives every parameter that has no value memory, with unspecified contents, for
  /// planning on a device without bytes, where a step takes its memory and its time and
  /// computes nothing.
  void allocateParameters();

  /// Sets parameters from safetensors files that must have all of them between them; if
  /// several files have one, the last file's value counts. If the config has Weight
  /// Stagehand stream blocks, frozen parameters of theirs stay in their file, which must
  /// not change from here on, and take no memory. Weights that its slab (squareq_slab_path)
  /// holds stay there: no file need have them, and a file that has them serves for those
  /// whose bytes in the slab are damaged. Returns for each file the names in it that no
  /// module has. Throws IoFailed, FileCorrupt, MissingWeight naming module, parameter and
  /// the nearest name in the files, LayoutMismatch; nothing has changed then.
  std::vector<std::vector<std::string>> loadWeights(std::span<const std::filesystem::path> paths);
  /// Sets parameters from one file, and returns the names in it that no module has.
  std::vector<std::string> loadWeights(const std::filesystem::path &path) { return loadWeights(std::span(&path, 1))[0]; }

  /// Returns the keys of the frozen parameters that come from the slab of the config: they
  /// have a value from the start, and setting one takes it out of the slab.
  std::vector<std::string> slabParameters() const;

  /// Returns the parameter itself, not a copy: the next step changes it. Throws
  /// NameUnknown, MissingWeight if it has no value yet; InvalidArgument for one that another rank alone has
  /// (Sharding::Parameters, Sharding::Modules).
  const Tensor &parameter(std::string_view key) const &;
  Tensor parameter(std::string_view key) && { return parameter(key); }

  /// Returns the keys of the parameters that other ranks have alone.
  std::vector<std::string> parametersElsewhere() const;

  /// Calls `take` with each parameter, in the order of parameters(). Where other ranks have some alone
  /// (Sharding::Parameters, Sharding::Modules) every rank calls this, and these come in memory of the host that is
  /// their own; all else is what parameter() returns. Throws what that throws; RankFailed where another rank cannot.
  /// What `take` throws ends the ranks, as they wait for what is left.
  void gatherParameters(const std::function<void(const ParameterInfo &, const Tensor &)> &take);

  /// Returns how many batches calibrate() needs; 0: nothing is to be measured. Of several ranks all call it, and that.
  int64_t calibrationSamples() const;
  /// Measures on these batches, before training, what each form of a block changes, if the
  /// config has Selective Precision choose forms. A first step before which this was not
  /// done does it with its own batches. Changes no parameter. Throws InvalidArgument within
  /// a step or without a batch, and what evaluate throws; nothing is kept of it then.
  void calibrate(std::span<const TensorMap> batches);

  /// Runs one training step. Drops gradients that wait from forwardBackward first. Throws
  /// what forwardBackward and optimize throw.
  StepResult step(const TensorMap &batch, const LearningRates &rates);
  /// A step over micro-batches: the gradient is the mean of theirs. Throws what forwardBackward() and optimize() throw,
  /// StateTorn also for an update of the step before that has failed in its queue. RankFailed where another rank cannot
  /// take the step: whoever is told that parameters are those of the step before may count on it, on every rank.
  StepResult step(std::span<const TensorMap> microBatches, const LearningRates &rates,
                  std::span<const GradientHook> hooks = {});

  /// Runs FORWARD and BACKWARD of one batch, and adds its gradients to those that wait.
  /// Returns the loss. Throws MissingWeight naming what has no value, what wireModules
  /// throws, NanLoss, StateTorn, InvalidArgument if a module has no backward or none has a
  /// loss. When it throws, no gradients wait any more.
  double forwardBackward(const TensorMap &batch);

  /// OPTIMIZER with the mean of the waiting gradients, and STEP_END. Throws
  /// InvalidArgument if none wait, a module was compiled without optimizer, or rates are missing or not finite,
  /// NanLoss if their norm is not finite, StateTorn; NameUnknown for a hook on no parameter, InvalidArgument for one
  /// on a parameter that has no gradient here: frozen, or updated in backward. Hooks are called in their order; each
  /// costs a copy of its gradient to the host and back, and the wait for both.
  StepResult optimize(const LearningRates &rates, std::span<const GradientHook> hooks = {});
  /// Makes the updates of the last step that wait for the next forward, where modules were compiled with in-forward, and
  /// waits for those that are queued. Calls that read or replace parameters or states do so, too; who makes none behind the
  /// last step, as a rank that saves nothing, calls this. Throws StateTorn if an update fails, or has failed, midway.
  void finishUpdates();
  /// The rates that a step wants: 1, or one more than the highest group of a parameter.
  size_t rateCount() const;

  /// The sum of the gradients waiting for a parameter, between forwardBackward
  /// and optimize, times the scale of the loss. Throws NameUnknown, InvalidArgument if it has none.
  const Tensor &gradient(std::string_view key) const &;
  Tensor gradient(std::string_view key) && { return gradient(key); }
  /// Returns the gradients of batch tensors in the last forwardBackward, by name.
  const TensorMap &inputGradients() const &;
  TensorMap inputGradients() && { return inputGradients(); }
  /// Drops the gradients that wait.
  void clearGradients();

  /// Runs inference, and returns the outputs of the last module by name. Changes nothing. Where ranks gather
  /// parameters, or have modules each, every rank calls it, in a pipeline with the same batch; RankFailed where one
  /// does something else.
  TensorMap evaluate(const TensorMap &batch);

  /// Returns the number of steps finished since the beginning of training.
  int64_t stepCount() const;
  int64_t seed() const;
  /// Returns the optimizer state, "m.<key>" and so on, of the last finished step; the tensors are not copies. Where ranks
  /// share states out, those of this one.
  const TensorMap &state() const &;
  TensorMap state() && { return state(); }

  /// Returns parameters, states, step and seed; tensors are not copied. Parameters that live in a slab are among
  /// Checkpoint::deferred, and those that another rank alone has are not there.
  Checkpoint checkpoint() const;
  /// Restores all of a checkpoint by copying; steps after it give the same losses to the
  /// bit. Drops waiting gradients. Throws MissingWeight, NameUnknown, LayoutMismatch,
  /// FileCorrupt, and the error of a copy. All or nothing: values that are written over are
  /// kept on the host until the last copy has arrived, and put back if one fails. Only if
  /// the host has no memory for that, or the link stays cut, a failed copy leaves the state
  /// torn (StateTorn).
  void restore(const Checkpoint &checkpoint);

  //===--------------------------------------------------------------------===//
  // Sealed checkpoints
  //===--------------------------------------------------------------------===//

  /// Returns true on a device with a disk below its memory or its host's, and in virtual time on the twin of one; not
  /// where ranks share states out.
  bool canSeal() const;
  /// Returns the bytes of the disk that sealed checkpoints take beside what lies there: as much again as the trained
  /// parameters and states there take, and a copy of frozen ones that lie elsewhere, in a slab, a file or memory. What
  /// has no memory yet does not count. Throws Unsupported without a disk.
  uint64_t sealRoom() const;
  /// Lets seal() write sealed checkpoints (Checkpoint.h) to `path`. Takes sealRoom() of the disk. Called before the
  /// first step, whose plan then goes by what is left. Throws Unsupported without a disk, IoFailed where no file can be
  /// written at `path`, InvalidArgument where the disk has sealed a checkpoint at another path, DeviceOom, with nothing changed, where there is no room, naming a
  /// capacity that has it.
  void sealAt(const std::filesystem::path &path);
  struct SealFigures {
    /// The bytes of tensors that are sealed where they lie, of those that were written to the disk
    /// for that, and of the file at the path.
    uint64_t sealedBytes = 0, writtenBytes = 0, fileBytes = 0;
    double seconds = 0;
  };
  /// Makes the last finished step the sealed checkpoint at the path: writes what is newer in memory, and the file
  /// there. Frozen parameters that do not lie on the disk are copied there by the first seal, and by a later one if
  /// they were replaced since: neither a slab nor a file of weights is needed to resume. The one before is valid until
  /// this one is, whatever ends the process, and if this throws. Then spill files of earlier runs that only the one
  /// before named are removed. Throws InvalidArgument without sealAt, IoFailed, DeviceOom, TransferFailed, StateTorn,
  /// MissingWeight, SourceChanged; Unsupported on a file system where no file without a name can get one, and where
  /// somebody has removed the spill file since the seal before, or moved it. `notes` are kept with it.
  SealFigures seal(std::string notes = {});

  /// saveCheckpoint(path, checkpoint()) and restore(loadCheckpoint(path)). A save to the path of
  /// sealAt takes the place of what is sealed. `notes` are kept with it, and load returns them. Where ranks share
  /// states out, every rank saves, and rank 0 writes the file with those of all; RankFailed where one cannot. To a
  /// folder (isCheckpointFolder) every rank of several saves, and each writes its share: what it alone has, and an equal
  /// part of what all have; values are agreed on before, as before a step. Every rank loads either, as many as there are
  /// then, and reads what it needs.
  void save(const std::filesystem::path &path, std::string notes = {}) const;
  std::string load(const std::filesystem::path &path);

private:
  HeldPointer<std::unique_ptr<SessionState>, "Session"> state_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_SESSION_H
