//===- PrecisionCalls.h - what logs of precisions hold ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The calls of Selective Precision as events of a log; docs/specs/replay.md has them
// as a table. Units have their names there.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_PRECISIONCALLS_H
#define SEGUE_RUNTIME_SERVICES_PRECISIONCALLS_H

#include "segue/runtime/Replay/PolicyCall.h"
#include "segue/runtime/Services/SelectivePrecision.h"
#include <map>

namespace segue::inline runtime {

template <> std::span<const std::string_view> namesOf<Precision>();

/// Visits the entry of a unit in the head of a log.
void visitFields(CallFields &fields, PrecisionUnit &unit);

namespace precision_calls {

struct UnitError {
  std::string unit;
  Precision form = Precision::Int8;
  double error = 0;
};
struct Calibration {
  std::vector<UnitError> errors;
};
/// The gradient norms by unit; nothing for a unit without gradients.
struct Norms {
  std::map<std::string, std::optional<double>> l2;
};
struct Decision : PrecisionDecision {
  int64_t step = 0;
};

void visitFields(CallFields &fields, Calibration &calibration);
void visitFields(CallFields &fields, Norms &norms);

/// Takes all errors or none: throws NameUnknown, InvalidArgument.
void calibrateAll(SelectivePrecision &policy, const Calibration &calibration);
void observeError(SelectivePrecision &policy, std::string_view unit, Precision form, AnyNumber error);
/// Throws NameUnknown for a name that is no unit.
bool takeNorms(SelectivePrecision &policy, int64_t step, const Norms &norms);
Decision decideStep(SelectivePrecision &policy, int64_t step);
std::vector<size_t> takeLoss(SelectivePrecision &policy, int64_t step, AnyNumber value);
Json answerOf(const SelectivePrecision &policy, const Decision &decision);
Json skippedOf(const SelectivePrecision &policy, bool isTaken);
Json rollbackOf(const SelectivePrecision &policy, const std::vector<size_t> &units);

using P = SelectivePrecision;
inline constexpr PolicyCall calibration("calibration", &calibrateAll, NoAnswer(), "");
inline constexpr PolicyCall observe("observe", &observeError, NoAnswer(), "unit", "form", "error");
inline constexpr PolicyCall stats("stats", &takeNorms, &skippedOf, "step", "");
inline constexpr PolicyCall decide("decide", &decideStep, AnswerOf(), "step");
inline constexpr PolicyCall loss("loss", &takeLoss, &rollbackOf, "step", "value");
inline constexpr PolicyCall refuse("refuse", &P::refuse, NoAnswer(), "unit", "step");
inline constexpr PolicyCall postpone("postpone", &P::postpone, NoAnswer(), "unit", "step");
inline constexpr PolicyCall abortStep("abort_step", &P::abortStep, NoAnswer(), "step");
inline constexpr PolicyCall restore("restore", &P::restoreState, NoAnswer(), "state");

inline constexpr std::tuple all{calibration, observe, stats, decide, loss, refuse, postpone, abortStep, restore};

} // namespace precision_calls

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_PRECISIONCALLS_H
