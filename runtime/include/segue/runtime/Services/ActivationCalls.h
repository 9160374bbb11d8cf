//===- ActivationCalls.h - what logs of activations hold --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The calls of Activation Stagehand as events of a log; docs/specs/replay.md has
// them as a table.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_ACTIVATIONCALLS_H
#define SEGUE_RUNTIME_SERVICES_ACTIVATIONCALLS_H

#include "segue/runtime/Replay/PolicyCall.h"
#include "segue/runtime/Services/ActivationStagehand.h"

namespace segue::inline runtime {

void visitFields(CallFields &fields, SaveEvent &event);
void visitFields(CallFields &fields, ActivationHints &hints);
Json answerOf(const ActivationStagehand &policy, const SaveDecision &decision);
Json answerOf(const ActivationStagehand &policy, const TransferDecision &decision);
Json answerOf(const ActivationStagehand &policy, const NeedDecision &decision);
/// Returns the record of the step. The growth is not part of the answer: the caller tells how it went next.
Json answerOf(const ActivationStagehand &policy, const std::vector<HostBufferBook::Growth> &growth);

namespace activation_calls {

/// These throw InvalidArgument for an index that is no class of the pool.
void growPool(ActivationStagehand &policy, int64_t poolClass, int64_t slabs);
void failGrowth(ActivationStagehand &policy, int64_t poolClass, int64_t slabs);

inline constexpr AnswerAs issued{"issued"};

inline constexpr PolicyCall stepBegin("step_begin", &ActivationStagehand::stepBegin, NoAnswer(), "step");
inline constexpr PolicyCall hints("hints", &ActivationStagehand::setHints, NoAnswer(), "");
inline constexpr PolicyCall watermarks("watermarks", &ActivationStagehand::setWatermarks, NoAnswer(), "high_mb",
                                       "low_mb");
inline constexpr PolicyCall save("save", &ActivationStagehand::save, AnswerOf(), "");
inline constexpr PolicyCall transferDone(
    "transfer_done", &ActivationStagehand::transferDone,
    [](const ActivationStagehand &policy, const TransferDecision &decision) { return issued(policy, decision.issued); },
    "id", "used_mb");
inline constexpr PolicyCall transferFailed("transfer_failed", &ActivationStagehand::transferFailed, AnswerOf(), "id",
                                           "used_mb");
inline constexpr PolicyCall backwardBegin("backward_begin", &ActivationStagehand::backwardBegin, issued, "order",
                                          "used_mb");
inline constexpr PolicyCall need("need", &ActivationStagehand::need, AnswerOf(), "id", "used_mb");
inline constexpr PolicyCall release("release", &ActivationStagehand::release, issued, "id", "used_mb");
inline constexpr PolicyCall dropRestored("drop_restored", &ActivationStagehand::dropRestored, AnswerAs{"dropped"},
                                         "bytes");
inline constexpr PolicyCall checksumFailed("checksum_failed", &ActivationStagehand::checksumFailed,
                                           AnswerAs{"recovered"}, "id");
inline constexpr PolicyCall poolGrown("pool_grown", &growPool, NoAnswer(), "class", "slabs");
inline constexpr PolicyCall growthFailed("growth_failed", &failGrowth, NoAnswer(), "class", "slabs");
inline constexpr PolicyCall stall("stall", &ActivationStagehand::addStall, NoAnswer(), "ms");
inline constexpr PolicyCall abortStep("abort_step", &ActivationStagehand::abortStep, NoAnswer());
inline constexpr PolicyCall stepEnd("step_end", &ActivationStagehand::stepEnd, AnswerOf());

inline constexpr std::tuple all{stepBegin,      hints,         watermarks, save,    transferDone, transferFailed,
                                backwardBegin,  need,          release,    dropRestored, checksumFailed,
                                poolGrown,      growthFailed,  stall,      abortStep,    stepEnd};

} // namespace activation_calls

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_ACTIVATIONCALLS_H
