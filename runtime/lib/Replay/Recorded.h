//===- Recorded.h - a policy and its log ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Makes the calls of a policy and writes each into a log, if there is one:
//
//   Recorded<ActivationStagehand> policy(std::move(log), config);
//   NeedDecision decision = policy.tell(activation_calls::need, id, usedBytes);
//
// An event is written when the policy has answered and before the answer is carried
// out, so that what that brings about follows it. A call that throws is an event,
// too: the replay is to throw the same.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_REPLAY_RECORDED_H
#define SEGUE_LIB_REPLAY_RECORDED_H

#include "EventLog.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Replay/PolicyCall.h"
#include <memory>

namespace segue::inline runtime {

template <typename Policy> class Recorded {
public:
  /// Makes the policy of the other arguments. `log` may be null.
  template <typename... Given>
  explicit Recorded(std::shared_ptr<EventLog> log, Given &&...given)
      : policy_(std::forward<Given>(given)...), log_(std::move(log)) {}
  Recorded(const Recorded &) = delete;

  const Policy &operator*() const { return policy_; }
  const Policy *operator->() const { return &policy_; }
  /// Returns the policy, for calls that change nothing, or that are noted afterwards.
  Policy &unrecorded() { return policy_; }

  /// Makes the call.
  template <typename Call, typename... Given> typename Call::Result tell(const Call &call, Given &&...given) {
    if (!log_)
      return call.make(policy_, std::forward<Given>(given)...);
    typename Call::Arguments arguments(call::own(given)...);
    try {
      return call.answered(
          policy_, [&](Json answer) { write(call, arguments, std::move(answer)); }, std::forward<Given>(given)...);
    } catch (const Error &error) {
      Json answer = Json::object();
      answer["error"] = errorCodeName(error.code());
      write(call, arguments, std::move(answer));
      throw;
    }
  }

  /// Writes a call that was made in another way; it has no answer.
  template <typename Call, typename... Given> void note(const Call &call, Given &&...given) {
    if (!log_)
      return;
    typename Call::Arguments arguments(call::own(given)...);
    write(call, arguments, Json::object());
  }

  /// Makes the file whole. Called at the end of a step.
  void flush() {
    if (log_)
      log_->flush();
  }

private:
  template <typename Call> void write(const Call &call, typename Call::Arguments &arguments, Json answer) {
    EventWriter event(call.op);
    call.visit(event, arguments);
    log_->add(event.take(), std::move(answer));
  }

  Policy policy_;
  std::shared_ptr<EventLog> log_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_REPLAY_RECORDED_H
