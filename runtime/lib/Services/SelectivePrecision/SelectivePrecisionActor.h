//===- SelectivePrecisionActor.h - who streams in int8 ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Stands between a run and SelectivePrecision. Statistics of gradients are
// copied to the host as backward returns them, and read when the step ends;
// then come its loss and the decision. What was decided reaches the streamer at
// the next STEP_BEGIN, through Conductor's hints where Conductor is on. A unit
// that cannot be read in its low form is loaded from its source in that very
// load, and is refused or postponed.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_SELECTIVEPRECISION_SELECTIVEPRECISIONACTOR_H
#define SEGUE_LIB_SERVICES_SELECTIVEPRECISION_SELECTIVEPRECISIONACTOR_H

#include "../Actors/PrecisionActor.h"
#include "../../Replay/Recorded.h"
#include "segue/runtime/Services/GradientStatistics.h"
#include "segue/runtime/Services/PrecisionCalls.h"
#include "segue/runtime/Services/PrecisionUnits.h"
#include "segue/runtime/Services/WeightStreamer.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <nlohmann/json.hpp>
#include <set>

namespace segue::inline runtime {

class SelectivePrecisionActor final : public PrecisionActor {
public:
  SelectivePrecisionActor(ServiceContext &context, SelectivePrecisionConfig config, Json section,
                          std::vector<std::shared_ptr<SlabServer>> slabs);
  ~SelectivePrecisionActor() override;

  void start(PrecisionHost &host) override;
  Json report() const override;
  Json record() const override { return record_; }
  void chooseForms(int64_t step) override;
  void applyForms() override;
  int64_t calibrationSamples() const override;
  void calibrate(std::span<const TensorMap> batches) override;
  void batchEnded(const TensorMap &batch) override;
  void stepEnded(double loss) override;
  void lossOfAborted(double loss) override;
  std::string saveState() const override;
  std::function<void()> prepareState(const std::string &text) override;
  Json agreed() const override;
  std::string stateForRanks() const override;
  void takeState(const std::string &text) override;
  std::string word() override;
  void takeWords(std::span<const std::string> words) override;

  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin);
  void on(const event::Statistics &result);
  void on(const event::StepAbort &);

private:
  class Hints;
  struct Part {
    size_t unit;
    /// The values, on their way to the host.
    Tensor values;
  };
  using Collection = std::vector<Part>;
  using Norms = std::vector<std::optional<double>>;
  /// A low form of a unit that could not be read in a step, and is refused, or postponed.
  struct FailedForm {
    size_t unit;
    int64_t step;
    bool isRefused;
    auto operator<=>(const FailedForm &) const = default;
  };
  /// A backward program and its module.
  using Backward = std::pair<Program, std::string>;

  BlockPrecisionMap wanted(int64_t step) const;
  void prepareDecisions(bool hasStatistics);
  void formFailed(const std::string &unit, const Error &error);
  void readEstimates();
  void readCaches();
  void calibrated(Precision form, std::span<const std::optional<double>> errors, int64_t samples);
  void giveUpCalibration(const std::string &reason);
  /// Notes that a weight of the unit could not be read.
  void refused(size_t unit, const Error &error);
  void calibrateUnit(size_t unit, Precision form, double error) {
    policy_->tell(precision_calls::calibration, precision_calls::Calibration{{{nameOf(unit), form, error}}});
  }
  const SelectivePrecision &policy() const { return **policy_; }
  const std::string &nameOf(size_t unit) const { return policy().units()[unit].name; }
  std::shared_ptr<EventLog> openLog(const std::vector<PrecisionUnit> &units) const;
  std::function<void()> prepared(const Json &state);
  bool wantsErrors() const;
  void giveRoomBack();
  std::string fingerprint(Precision form, int64_t samples) const;
  std::filesystem::path cachePath(Precision form) const;
  std::vector<std::string> namesWith(Precision form) const;
  const Slab *slabOf(Precision form) const;
  /// Has the unit go on in bf16. Other ranks hear of it.
  void failed(const FailedForm &form);
  void takeFailed(const FailedForm &form);
  Norms normsOf(const Collection &collection) const;
  void tellNorms(const Norms &norms);
  /// Returns the norms of each batch that ranks have said in their words.
  std::vector<Norms> normsOfAll(const std::vector<Json> &words) const;
  using UnitForm = std::pair<size_t, Precision>;
  /// The errors that batches have shown, the number of batches, and the units whose slab this rank could not read.
  struct Measured {
    std::map<UnitForm, double> errors;
    int64_t samples = 0;
    std::map<size_t, Error> failures;
  };
  /// Plays so many batches of rank `measuring`, or in a pipeline of all; with `givesRing` without a ring beside them.
  /// Every rank calls this, and has what was found; what one of them throws, all throw.
  Measured measure(std::span<const TensorMap> batches, size_t samples, const std::set<UnitForm> &wanted, int measuring,
                   bool givesRing);
  Measured tellMeasured(Measured own, const std::exception_ptr &failure, int measuring);
  /// Returns true if this rank plays batches, where rank `measuring` does it for all.
  bool isMeasuring(int measuring) const { return host_->isPipelined() || host_->rank() == measuring; }
  void endStep();
  void logChanges(const PrecisionDecision &decision);
  void warnOnce(const std::string &text);

  ServiceContext &context_;
  SelectivePrecisionConfig config_;
  Json section_;
  std::vector<std::shared_ptr<SlabServer>> slabs_;
  PrecisionHost *host_ = nullptr;
  WeightStreamer *streamer_ = nullptr;
  /// Backward programs in the order in which they run.
  std::vector<Backward> backwards_;
  PrecisionPlan plan_;
  std::unique_ptr<Recorded<SelectivePrecision>> policy_;
  std::unique_ptr<Hints> hints_;
  std::optional<JsonlWriter> telemetry_;
  Json record_;
  /// The low forms whose errors are not known.
  std::vector<Precision> uncalibrated_;
  /// The names of this rank's modules.
  std::set<std::string, std::less<>> ownModules_;
  std::set<std::string> warned_;
  /// The lists of mode static are one decision, which is told at the first step's end.
  bool hasToldLists_ = false;

  /// The forms for the step that begins.
  BlockPrecisionMap chosen_;
  /// The state before the first step, for checkpoints that have none.
  Json initial_;
  /// The precision of each unit in the step under way.
  std::vector<Precision> inForce_;
  int64_t step_ = 0;
  std::vector<Collection> collections_;
  /// The number of times that a program has returned an output in the collection.
  std::map<std::tuple<const void *, size_t, uint32_t>, size_t> returned_;
  std::optional<double> loss_;
  /// The forms that failed here, and the loss that ended a step, with its number: other ranks have not heard of them yet.
  std::vector<FailedForm> failedForms_;
  std::optional<std::pair<int64_t, double>> lostLoss_;
  /// Copies of the batch, if the step that ends measures errors.
  TensorMap lastBatch_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_SELECTIVEPRECISION_SELECTIVEPRECISIONACTOR_H
