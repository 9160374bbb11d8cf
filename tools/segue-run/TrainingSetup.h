//===- TrainingSetup.h - what a training run begins with --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Session, values and batches as the command line of `segue-run train` says, so
// that a run can be made more than once.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_TRAININGSETUP_H
#define SEGUE_TOOLS_SEGUERUN_TRAININGSETUP_H

#include "ByteWindows.h"
#include "Commands.h"
#include "segue/runtime/Session/Session.h"
#include <optional>

namespace segue::tool {

class TrainingSetup {
public:
  /// Makes the setup. `text` is what --data names, opened once for all runs; null without it.
  /// `given` brings sink and config; the command line says the rest.
  TrainingSetup(const DeviceRef &device, const TrainOptions &options, TrainingTextRef text, SessionOptions given);

  /// Returns the micro-batches of this rank for the session's next step. Throws what TrainingText::read throws.
  std::vector<TensorMap> batches() const;
  /// The first `count` micro-batches of this step and those after it.
  std::vector<TensorMap> upcoming(int64_t count) const;
  /// Returns the bytes that a step of all ranks learns from; 0 without --data.
  int64_t tokensPerStep() const { return windows_ ? windows_->tokensPerBatch() * accumulate_ * ranks_ : 0; }

  /// Returns the rows that a step of all ranks learns from: what all inputs that are the same in every step begin with; 0
  /// where they have nothing in common.
  int64_t rowsPerStep() const;
  /// Returns the inputs that are the same in every step.
  const TensorMap &fixed() const { return fixed_; }

  Session session;

private:
  std::vector<TensorMap> batchesOf(int64_t step) const;

  int64_t accumulate_;
  /// Ranks take the batches of a step by turns; those of a pipeline have all of them.
  int64_t rank_ = 0, ranks_ = 1;
  TensorMap fixed_;
  std::optional<ByteWindows> windows_;
};

/// Opens what --data names; null without it.
TrainingTextRef openTrainingData(const TrainOptions &options);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_TRAININGSETUP_H
