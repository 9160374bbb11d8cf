//===- RecordedPrecision.h - decisions that can be played again -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// SelectivePrecision with a log of its events and answers, for `segue-run
// replay`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_SELECTIVEPRECISION_RECORDEDPRECISION_H
#define SEGUE_LIB_SERVICES_SELECTIVEPRECISION_RECORDEDPRECISION_H

#include "../Memory/EventLog.h"
#include "segue/runtime/Services/SelectivePrecision.h"
#include <memory>

namespace segue::inline runtime {

class RecordedPrecision {
public:
  /// `folder` gets the log; empty: there is none. `section` is the config's.
  RecordedPrecision(SelectivePrecisionConfig config, std::vector<PrecisionUnit> units, Json section,
                    const std::filesystem::path &folder, const std::function<void(const std::string &)> &warn);

  const SelectivePrecision &policy() const { return policy_; }

  void calibrate(size_t unit, Precision form, double error);
  void observeError(size_t unit, Precision form, double error);
  bool stats(int64_t step, std::span<const std::optional<double>> norms);
  std::vector<size_t> loss(int64_t step, double value);
  PrecisionDecision decide(int64_t step);
  void refuse(size_t unit, int64_t step);
  void postpone(size_t unit, int64_t step);
  void abortStep(int64_t step);
  std::function<void()> prepareState(const Json &state);
  void flush() {
    if (log_)
      log_->flush();
  }

private:
  const std::string &nameOf(size_t unit) const { return policy_.units()[unit].name; }

  SelectivePrecision policy_;
  std::unique_ptr<EventLog> log_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_SELECTIVEPRECISION_RECORDEDPRECISION_H
