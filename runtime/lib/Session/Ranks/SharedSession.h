//===- SharedSession.h - a session among ranks ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This is shared by the files that SessionRanks is written in: SharedSession.cpp has what of
// the session is whose, Agreement.cpp what ranks agree on before they train, Meetings.cpp
// what they do together in a step, Gathering.cpp parameters that one rank has each, Shards.cpp
// updates of some parameters and checkpoints of all, Pipeline.cpp modules that one rank has
// each.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_RANKS_SHAREDSESSION_H
#define SEGUE_RUNTIME_LIB_SESSION_RANKS_SHAREDSESSION_H

#include "../SessionRanks.h"
#include "../SessionState.h"
#include "GradientReduction.h"
#include "ShardedStates.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// A StepWord is what a rank says to others at a meeting in a step (Meetings.cpp).
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

class SharedSession final : public SessionRanks {
public:
  /// `session` owns this, and has modules, parameters and options by now.
  explicit SharedSession(SessionState &session);

  void share() override;
  StreamedParameters::RankOf gatherBlocks() override;
  void leaveElsewhere() override;
  void leaveModules(std::vector<Module> &modules) const override;
  std::pair<size_t, size_t> ownModules() const override;
  std::optional<int> rankOf(size_t slot) const override;
  bool isElsewhere(size_t slot) const override;
  bool hasState(const std::string &key) const override;
  size_t stateCount() const override;

  void programsChanged() override;
  void valuesGiven() override;

  void beginStep() override;
  void meetToBegin(std::span<const TensorMap> batches) override;
  void beginGathering() override;
  bool gathersMore() const override { return gathersMore_; }
  TensorMap gatherForModule(size_t module) override;
  void backwardEnded() override;
  uint64_t batchNumber() const override;
  void enterStage(std::vector<std::vector<Tensor>> &outputs,
                  std::vector<std::vector<GradientTape::ValueId>> &ids) override;
  void leaveStage(const std::vector<std::vector<Tensor>> &outputs,
                  const std::vector<std::vector<GradientTape::ValueId>> &ids) override;
  bool isPartOfOther(size_t slot) const override;
  void takeGradients() override;
  void runPipeline(std::span<const TensorMap> batches) override;
  EventSink *beginSending() override;
  void sendingEnded() override;
  int64_t addUp(StepResult &result) override;
  double squareOverRanks(const std::vector<std::vector<Tensor>> &norms) override;
  void agreeToUpdate(const StepResult &result, const LearningRates &rates) override;
  void shareUpdates(int64_t number) override;
  void drop() override;
  void tellFailure(const std::exception &error) noexcept override;
  void throwCause() override;

  void meetToEvaluate(const std::string &failure) override;
  void agreeToPlay() override;
  void meetToPlay(const std::string &failure) override;
  void allKnow() override { hasTold_ = true; }
  TensorMap gatherFor(size_t module, const Program &program) override;
  void passStage(const Wiring &wiring, std::vector<std::vector<Tensor>> &outputs,
                 const std::function<void()> &run) override;
  std::vector<StreamedParameter> parametersOfStages() const override;
  std::vector<Tensor> evaluatePipeline(const Wiring &wiring, const TensorMap &placed) override;
  void gatherParameters(const std::function<void(const ParameterInfo &, const Tensor &)> &take) override;
  void saveTogether(const std::filesystem::path &path, const std::function<Checkpoint()> &make) override;

private:
  struct Passage;
  class PipelineStep;

  // What each rank has.
  /// Adds Weight Stagehand's ring, for what other ranks have, to a config that says nothing of it. Throws
  /// InvalidArgument for one that switches it off.
  void wantRing();
  /// Throws Unsupported for what several ranks cannot do yet.
  void checkCanBeShared() const;
  /// Has what is kept in page-locked memory leave the room that messages of a step take there, which has these batches.
  void leaveHostToMessages(std::span<const TensorMap> batches);

  // Agreement.cpp.
  /// Finds out whether all ranks train the same; values and the seed are those of rank 0 then. Throws RankFailed,
  /// naming rank and difference.
  void agree();
  /// Returns what has to be the same on every rank, by what it is called in messages.
  Json trainedAsJson() const;
  Json programsAsJson() const;
  void takeValuesOfRank0();
  /// Has every rank decide about forms from the state of rank 0 on.
  void takePrecisionOfRank0();

  // Meetings.cpp.
  /// Says what this rank says at the meeting that is next, and returns what all say. Throws RankFailed where one has
  /// failed, and StateTorn where parameters of this rank have turned out to be between two steps then.
  std::vector<StepWord> meetOnce(const StepWord &own);
  std::vector<StepWord> meet(const StepWord &own);
  /// Meets the others where a rank has failed, and what was queued in the step before may have: returns if parameters are
  /// whole on all ranks. Throws StateTorn where they are not on this one, which ends the group, RankFailed where they are
  /// not on another.
  void requireWholeOnAll();
  std::span<const std::string_view> meetingsOfStep() const;
  /// Has Selective Precision take what that of each rank has said in a meeting.
  void takePrecisionWords(const std::vector<StepWord> &words);
  /// Puts the sums over ranks in the place of gradients, those that were sent in backward among them.
  void sendGradients();

  // Gathering.cpp.
  /// Meets the other ranks before something that gathers parameters outside of a step's own meetings. Throws RankFailed
  /// where one of them says why it cannot.
  void meetToGather(std::string_view what, const std::string &failure = "") const;
  /// Gathers, in a step that has failed here, what is left for the others to gather, as it was in a step before.
  /// Returns false where that is not known or fails.
  bool gatherRest() noexcept;
  /// Brings parameters from the ranks that have them into these tensors, by slot; null where this rank has it itself.
  Fence gather(std::span<const std::pair<size_t, Tensor>> slots);
  /// Returns the slots of the parameters of a module that come with no block.
  std::vector<size_t> slotsBesideBlocks(size_t module) const;
  /// A Gathering is one of a block, or where that is empty of what a module has beside its blocks, behind so many
  /// messages with gradients.
  struct Gathering {
    std::string block;
    size_t module;
    size_t messagesBefore;
    bool operator==(const Gathering &) const = default;
  };
  /// Returns what such steps gather, in their order; nothing before one has.
  const std::vector<Gathering> *knownGatherings() const;

  // Shards.cpp.
  void saveShards(const std::filesystem::path &path, Checkpoint checkpoint);
  void sendStates();
  /// Returns a parameter or state that another rank has, by the key that it has in a file.
  Tensor receive(const std::string &key, const TensorDesc &desc, int rank);
  /// Writes this rank's part of the save called `name`; `save` is that of rank 0, and null on the others.
  void saveParts(const std::filesystem::path &folder, CheckpointSave *save, const std::string &name,
                 const std::function<Checkpoint()> &make);
  /// Returns what a checkpoint has, and who has it: the same list on every rank.
  std::vector<CheckpointTensor> checkpointTensors() const;

  // Pipeline.cpp.
  /// Returns what comes to this rank's stage and goes from there for a batch that the modules at hand run.
  Passage passageOf(const Wiring &wiring) const;
  /// Adds the bytes of the messages of a step of a pipeline, and of those behind it.
  void leavePipelineTo(std::span<const TensorMap> batches, std::vector<std::vector<uint64_t>> &steps,
                       std::vector<std::vector<uint64_t>> &updates);
  /// Returns true if this stage and another one share a parameter that is trained.
  bool isTiedHere(size_t slot) const;
  /// Brings the values of such parameters from the ranks that update them to the others.
  void shareTied();
  /// Throws where ranks were not given the same batches.
  void requireSameBatches(const std::vector<StepWord> &words);
  /// Returns the mean of the losses of all ranks, added up as one rank adds them.
  double meanLoss(const std::vector<StepWord> &words) const;

  SessionState &s;
  /// The programs of the modules as they were compiled, for other ranks to compare.
  Json compiledPrograms_;
  bool hasAgreed_ = false;
  /// How often values came from outside. A rank alone that was given some would have them of another model.
  int64_t timesGiven_ = 0;
  size_t leftForBatches_ = 0;

  /// The meetings that the step under way has had, and whether others know that it has failed here.
  size_t meetings_ = 0;
  bool hasTold_ = false;
  std::optional<Error> cause_;
  /// The gradients on their way to other ranks; nothing before all have agreed.
  std::optional<GradientReduction> reduction_;
  /// True if a rank of these sends sums of several batches when backward has ended.
  bool sendsBehind_ = false;

  /// True while this step has blocks to gather that other ranks wait for; those of it so far; and those of each kind of
  /// step.
  bool gathersMore_ = false;
  std::vector<Gathering> gatherings_;
  std::vector<std::pair<SessionState::StepSizes, std::vector<Gathering>>> knownGatherings_;

  /// The values of the batch at hand that come from the stage before and go to the next one; null outside of a pipeline's
  /// batch.
  Passage *passage_ = nullptr;
  /// The number of the batch at hand within the step of a pipeline; elsewhere that is SessionState::waiting.
  int64_t batchAtHand_ = 0;
  /// The losses of the step under way, as StepWord has them.
  std::vector<double> batchLosses_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_RANKS_SHAREDSESSION_H
