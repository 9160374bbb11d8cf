//===- RateOptions.h - learning rates on the command line -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `--lr`, `--lr-schedule` and `--warmup`: the rates of each step, by the formulas
// of RateSchedule.h. A schedule goes by the step of the whole training, so that a
// run that is resumed goes on where it was.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_RATEOPTIONS_H
#define SEGUE_TOOLS_SEGUERUN_RATEOPTIONS_H

#include "Commands.h"
#include "segue/runtime/Session/RateSchedule.h"
#include <map>

namespace segue::tool {

/// Says how a rate changes: `kind[:key=value,...]`, as cosine:final=1e-5.
class RateForm {
public:
  /// Reads the text of --lr-schedule; empty stands for `constant`. Throws InvalidArgument, which names what is known.
  explicit RateForm(const std::string &text);

  /// Returns "{constant,cosine,...}[:key=value,...]".
  static std::string grammar();

  /// Throws InvalidArgument for a form that has no rise over steps of its own choice.
  void checkWarmup(int64_t warmup) const;
  /// Returns true for a form that goes by the number of all steps, where the text does not say it.
  bool needsSteps() const;
  /// Returns the rate of each step; `steps` is the number of all, where the text does not say it.
  RateSchedule of(double rate, int64_t steps, int64_t warmup) const;

private:
  /// Returns the number that the text has for `key`.
  double get(const std::string &key, double otherwise) const;

  std::string kind_;
  /// Only `at` may have several values.
  std::map<std::string, std::vector<double>> values_;
};

/// Returns the rates of all groups. `begin` is the number of steps that were done before this run. Throws
/// InvalidArgument where a schedule goes by the number of all steps, and nothing says it.
std::vector<RateSchedule> schedulesOf(const TrainOptions &options, int64_t begin);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_RATEOPTIONS_H
