//===- SessionRanks.h - what a session does with other ranks ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A session that trains with other ranks calls this wherever a step concerns them. It is
// written in Ranks/, a part of the library SegueCollectives, whose Collectives::join makes it:
// a session that is alone has none, and a program without ranks has nothing of it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_SESSIONRANKS_H
#define SEGUE_RUNTIME_LIB_SESSION_SESSIONRANKS_H

#include "GradientTape.h"
#include "StreamedParameters.h"
#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Session/Session.h"
#include "segue/runtime/Session/Wiring.h"

namespace segue::inline runtime {

class SessionRanks {
public:
  SessionRanks(std::shared_ptr<Collectives> group, Sharding sharding) : group_(std::move(group)), sharding_(sharding) {}
  virtual ~SessionRanks() = default;

  Collectives &group() const { return *group_; }
  int rank() const { return group_->rank(); }

  //===--------------------------------------------------------------------===//
  // What each rank has
  //===--------------------------------------------------------------------===//

  /// Returns true if each rank has the states of some parameters alone.
  bool isSharded() const { return sharding_ != Sharding::None; }
  /// Returns true if parameters come from the ranks that have them (Ranks/Gathering.cpp).
  bool isGathered() const { return sharding_ == Sharding::Parameters; }
  /// Returns true if each rank has modules of its own (Ranks/Pipeline.cpp).
  bool isPipelined() const { return sharding_ == Sharding::Modules; }
  /// Returns the parameters of each rank; null where every rank updates all.
  const std::shared_ptr<const ShardedStates> &shards() const { return shards_; }
  /// Returns true if each rank has the sums of some gradients alone.
  bool sharesGradients() const { return shards_ && sharding_ >= Sharding::Gradients; }

  /// Takes the updates and modules of other ranks out of the session's modules, and wants Weight Stagehand's ring where
  /// parameters are gathered. Is the first thing that a session does. Throws InvalidArgument for a config that switches
  /// the ring off.
  virtual void share() = 0;
  /// Has the ring of weights gather blocks from other ranks. Returns who has which parameter, or null where none is
  /// gathered.
  virtual StreamedParameters::RankOf gatherBlocks() = 0;
  /// Puts tensors that stand for them in the place of what other ranks have. Throws Unsupported for what several ranks
  /// cannot do.
  virtual void leaveElsewhere() = 0;
  /// Takes the programs of modules that other ranks run out of these.
  virtual void leaveModules(std::vector<Module> &modules) const = 0;
  /// Returns the modules that this rank runs, and up to where.
  virtual std::pair<size_t, size_t> ownModules() const = 0;
  /// Returns the rank that updates a parameter which not every rank has, or nothing where every rank has it.
  virtual std::optional<int> rankOf(size_t slot) const = 0;
  virtual bool isElsewhere(size_t slot) const = 0;
  /// Returns true if some rank has the state, and how many states there are; where they are shared out.
  virtual bool hasState(const std::string &key) const = 0;
  virtual size_t stateCount() const = 0;

  //===--------------------------------------------------------------------===//
  // What is agreed on
  //===--------------------------------------------------------------------===//

  /// Note that the session has other programs, or was given values: ranks agree again before the next step.
  virtual void programsChanged() = 0;
  virtual void valuesGiven() = 0;

  //===--------------------------------------------------------------------===//
  // A step
  //===--------------------------------------------------------------------===//

  /// Notes that a step begins in which other ranks have not been met yet.
  virtual void beginStep() = 0;
  /// Returns when every rank begins the step, before it is planned; `batches` are those that were given at once. Before
  /// the first one, and where a rank was given values since, it is agreed on what is trained.
  virtual void meetToBegin(std::span<const TensorMap> batches) = 0;
  /// Meets the others when this rank is ready to take the step, and is to gather what others send.
  virtual void beginGathering() = 0;
  /// Returns true while the step has blocks to gather that other ranks wait for.
  virtual bool gathersMore() const = 0;
  /// Returns what other ranks have of the parameters that a module reads and that come with no block, by name, for the
  /// forward that is next; queues wait for them. Every rank calls this.
  virtual TensorMap gatherForModule(size_t module) = 0;
  /// Notes that backward of a batch has ended, behind the last of which nothing is gathered.
  virtual void backwardEnded() = 0;
  /// Returns the number of the batch at hand among those of all ranks in this step, as one rank would count them.
  virtual uint64_t batchNumber() const = 0;

  /// Put what the stage before has sent of the batch at hand in the place of outputs of modules that other ranks run, and
  /// take what the next stage is sent; for modules of a pipeline alone.
  virtual void enterStage(std::vector<std::vector<Tensor>> &outputs,
                          std::vector<std::vector<GradientTape::ValueId>> &ids) = 0;
  virtual void leaveStage(const std::vector<std::vector<Tensor>> &outputs,
                          const std::vector<std::vector<GradientTape::ValueId>> &ids) = 0;
  /// Returns true if the gradient that backward of this stage makes of a parameter is a part that goes to another rank.
  virtual bool isPartOfOther(size_t slot) const = 0;
  /// Takes the gradients that other stages are sent.
  virtual void takeGradients() = 0;
  /// Runs forward and backward of all batches of a step, in the order of a pipeline.
  virtual void runPipeline(std::span<const TensorMap> batches) = 0;

  /// Returns the sink for the backward that begins, which sends gradients as they become final; null where it is none of
  /// other ranks'. Where it was one, sendingEnded() follows.
  virtual EventSink *beginSending() = 0;
  virtual void sendingEnded() = 0;
  /// Puts the sums over ranks in the place of gradients, and the mean of all losses into `result`. Returns the number of
  /// batches of all ranks.
  virtual int64_t addUp(StepResult &result) = 0;
  /// Returns what norms of some gradients each come to over all ranks, added up as those of one rank.
  virtual double squareOverRanks(const std::vector<std::vector<Tensor>> &norms) = 0;
  /// Returns when every rank is ready to write parameters.
  virtual void agreeToUpdate(const StepResult &result, const LearningRates &rates) = 0;
  /// Gives every rank the parameters that others have updated in step `number`. Throws StateTorn.
  virtual void shareUpdates(int64_t number) = 0;
  /// Forgets what waits of a step.
  virtual void drop() = 0;

  /// Has other ranks know at their next meeting that this one cannot go on, unless they know.
  virtual void tellFailure(const std::exception &error) noexcept = 0;
  /// Throws what another rank says of the failure that was told, where this one failed for the want of what that was to
  /// send, or that one has no whole parameters; returns otherwise.
  virtual void throwCause() = 0;

  //===--------------------------------------------------------------------===//
  // Between steps
  //===--------------------------------------------------------------------===//

  /// Meets the others before a batch is evaluated, where that takes them all. `failure` says why this rank cannot. Throws
  /// RankFailed where another one cannot.
  virtual void meetToEvaluate(const std::string &failure = "") = 0;
  /// Has ranks agree on what they train, as before a step, if one has not: on the seed, too. All call this.
  virtual void agreeToPlay() = 0;
  /// Meets the others before blocks are played by themselves, as meetToEvaluate; ranks of every strategy do.
  virtual void meetToPlay(const std::string &failure = "") = 0;
  /// Notes that what has failed here is known to all ranks.
  virtual void allKnow() = 0;
  /// Returns what other ranks have of the parameters that a program of a module reads, by name, in memory of the host.
  /// Every rank calls this, for the same programs in one order.
  virtual TensorMap gatherFor(size_t module, const Program &program) = 0;
  /// Puts what the stage before sends in the place of outputs of its modules, calls `run`, which puts those of this
  /// rank's modules there, and sends on what the next stages read. Every rank of a pipeline calls this: whatever `run`
  /// throws, the others get something, and fail for that.
  virtual void passStage(const Wiring &wiring, std::vector<std::vector<Tensor>> &outputs,
                         const std::function<void()> &run) = 0;
  /// Returns the parameters that come with their blocks, of all stages of a pipeline.
  virtual std::vector<StreamedParameter> parametersOfStages() const = 0;
  /// Returns the outputs of the last module of a pipeline for a batch, on every rank.
  virtual std::vector<Tensor> evaluatePipeline(const Wiring &wiring, const TensorMap &placed) = 0;
  /// Is Session::gatherParameters.
  virtual void gatherParameters(const std::function<void(const ParameterInfo &, const Tensor &)> &take) = 0;
  /// Writes what `make` returns of each rank: to a file rank 0 does, with the states of the others, which send them, and
  /// to a folder each its part. Throws RankFailed where another rank cannot.
  virtual void saveTogether(const std::filesystem::path &path, const std::function<Checkpoint()> &make) = 0;

protected:
  std::shared_ptr<Collectives> group_;
  Sharding sharding_;
  std::shared_ptr<const ShardedStates> shards_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_SESSIONRANKS_H
