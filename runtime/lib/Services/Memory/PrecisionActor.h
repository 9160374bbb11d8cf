//===- PrecisionActor.h - which blocks are streamed in int8 -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Between a run and SelectivePrecision. Statistics of gradients are copied to
// the host as backward returns them, and read when the step ends; then come its
// loss and the decision. What was decided reaches the streamer at the next
// STEP_BEGIN, through Conductor's hints where Conductor is on. A unit that
// cannot be read in its low form is loaded from its source in that very load,
// and refused or postponed.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_MEMORY_PRECISIONACTOR_H
#define SEGUE_LIB_SERVICES_MEMORY_PRECISIONACTOR_H

#include "RecordedPrecision.h"
#include "ServiceActor.h"
#include "segue/runtime/Services/GradientStatistics.h"
#include "segue/runtime/Services/PrecisionUnits.h"
#include "segue/runtime/Services/WeightStreamer.h"
#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <set>

namespace segue::inline runtime {

class PrecisionActor final : public ServiceActor {
public:
  PrecisionActor(ServiceContext &context, SelectivePrecisionConfig config, Json section,
                 std::vector<std::shared_ptr<SlabServer>> slabs);
  ~PrecisionActor() override;

  /// A backward program and its module.
  using Backward = std::pair<Program, std::string>;
  /// Makes the units and the policy. `backwards` in the order in which they run.
  /// Throws ConfigError for forced units that are none or not eligible, and for
  /// statistics of another granularity.
  void start(WeightStreamer &streamer, std::vector<Backward> backwards);
  bool isStarted() const { return policy_ != nullptr; }

  const PrecisionPlan &plan() const { return plan_; }
  /// The units, what each is stored in and what stays as it is.
  Json report() const;
  /// The last line of telemetry; null before the first decision.
  const Json &record() const { return record_; }
  /// Of the last step's last micro-batch, by unit; nothing for silent ones.
  const std::vector<std::optional<GradientStatistics>> &statistics() const { return statistics_; }

  /// Before Conductor begins the step. Steps count from 0 here.
  void chooseForms(int64_t step);
  /// The loss of the step under way; of one that has been aborted just now.
  void tellLoss(double loss) { loss_ = loss; }
  void tellLossOfAborted(double loss);

  // Calibration: what is to be measured, and what came out.

  /// Low forms whose errors are not known.
  const std::vector<Precision> &uncalibrated() const { return uncalibrated_; }
  const SelectivePrecisionConfig &config() const { return config_; }
  /// Errors by unit, nothing where a unit lacks the form; `samples` were taken.
  /// They are kept on disk for the next run.
  void calibrated(Precision form, std::span<const std::optional<double>> errors, int64_t samples);
  /// There will be no calibration.
  void giveUpCalibration(const std::string &reason);
  /// Whether the step that ends now takes a decision for which the errors of
  /// units in a low form are to be measured again; what was measured.
  bool wantsErrors() const;
  Precision precisionNow(size_t unit) const { return inForce_[unit]; }
  void observed(size_t unit, double error);

  /// For a checkpoint; empty before start().
  std::string saveState() const;
  /// Throws FileCorrupt, VersionUnsupported.
  void restoreState(const std::string &text);

  void beginStep(int64_t step) override;
  void onPhase(Phase phase) override;
  void onStatistics(const Program &program, uint32_t output, const Tensor &statistics) override;
  void abortStep() override;

private:
  class Hints;
  struct Part {
    size_t unit;
    /// On its way to the host.
    Tensor values;
  };
  using Collection = std::vector<Part>;

  void apply(const BlockPrecisionMap &map);
  void formFailed(const std::string &unit, const Error &error);
  void readEstimates();
  void readCaches();
  std::string fingerprint(Precision form, int64_t samples) const;
  std::filesystem::path cachePath(Precision form) const;
  std::vector<std::string> namesWith(Precision form) const;
  const Slab *slabOf(Precision form) const;
  void collect(const Collection &collection);
  void endStep();
  void warnOnce(const std::string &text);

  ServiceContext &context_;
  SelectivePrecisionConfig config_;
  Json section_;
  std::vector<std::shared_ptr<SlabServer>> slabs_;
  WeightStreamer *streamer_ = nullptr;
  std::vector<Backward> backwards_;
  PrecisionPlan plan_;
  std::unique_ptr<RecordedPrecision> policy_;
  std::unique_ptr<Hints> hints_;
  std::optional<JsonlWriter> telemetry_;
  Json record_;
  std::vector<Precision> uncalibrated_;
  std::set<std::string> warned_;

  /// By unit, in the step under way.
  std::vector<Precision> inForce_;
  int64_t step_ = 0;
  std::vector<Collection> collections_;
  /// How often a program has returned an output in the collection.
  std::map<std::tuple<const void *, size_t, uint32_t>, size_t> returned_;
  std::vector<std::optional<GradientStatistics>> statistics_;
  std::optional<double> loss_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_MEMORY_PRECISIONACTOR_H
