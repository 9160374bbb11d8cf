//===- Replayer.h - a policy as segue-run replay sees it --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One per service, in Replay<Service>.cpp, that makes the policy from the head of a log;
// CMake lists those that are there. The calls of the policy are described beside it
// (PolicyCall.h); what is in logs that people write and in no recorded one, questions
// mostly, is described in the same way here:
//
//   static std::unique_ptr<Replayer> createWidgetReplayer(const ReplayLog &log) {
//     return replay(log, Widget(readConfig(log)),
//                   std::tuple_cat(widget_calls::all, std::tuple(PolicyCall("size", &Widget::size, AnswerAs{"size"}))),
//                   [](ConfigReader &reader, EventReader &) { WidgetConfig::read(reader); });
//   }
//
//   ReplayService replayOfWidget() { return {"widget", createWidgetReplayer}; }
//
// The command adds `op` and `id`, turns a segue::Error into `error`, and
// compares with `expect`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_REPLAY_REPLAYER_H
#define SEGUE_TOOLS_SEGUERUN_REPLAY_REPLAYER_H

#include "EventReader.h"
#include "segue/runtime/Config/ConfigReader.h"
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::tool {

/// A log without its events.
struct ReplayLog {
  std::string service, name;
  /// The keys of the service's section; an object.
  Json config;
  /// `register`: the owners that Conductor knows, in order.
  std::vector<std::string> owners;
  /// `units` of Selective Precision: names, and what recorded runs say of each;
  /// null for a name alone.
  std::vector<std::string> units;
  std::vector<Json> unitDetails;
  /// `base` of SquareQ, `plan` of a plan; null if absent.
  Json base, plan;

  /// A reader of the config; the log must outlive it. Files are not looked
  /// for: a log replays on any machine.
  ConfigReader readConfig() const { return ConfigReader(config, "", ConfigReader::Files::Ignore); }
};

class Replayer {
public:
  virtual ~Replayer() = default;

  /// Gives one event to the policy and returns the answer's fields. A
  /// segue::Error becomes the answer's `error`: the policy must be as before.
  /// Throws MalformedEvent for a field that is missing or has the wrong type.
  virtual Json apply(EventReader &event) = 0;
};

struct ReplayService {
  /// The name in the log's `service`.
  std::string_view name;
  /// Throws ConfigError for a bad `config`, MalformedEvent for a bad head.
  std::unique_ptr<Replayer> (*create)(const ReplayLog &log);
};

/// All services of this build.
std::span<const ReplayService> replayServices();

/// The answer of a `config_case` event: reads the log's config with that of
/// the event put over it, and says `error`, `key` and `hint`, or nothing.
Json answerConfigCase(const Json &config, EventReader &event, const std::function<void(ConfigReader &reader)> &read);

/// Reads the config of a `config_case`, and throws ConfigError for one that is invalid;
/// empty for a policy without a config.
using ReadConfig = std::function<void(ConfigReader &reader, EventReader &event)>;

/// Gives events to a policy, by the descriptions of its calls.
template <typename Policy, typename Calls> class PolicyReplayer final : public Replayer {
public:
  PolicyReplayer(const ReplayLog &log, Policy policy, Calls calls, ReadConfig readConfig)
      : policy_(std::move(policy)), calls_(std::move(calls)), config_(log.config), readConfig_(std::move(readConfig)) {}

  Json apply(EventReader &event) override {
    if (readConfig_ && event.op() == "config_case")
      return answerConfigCase(config_, event, [&](ConfigReader &reader) { readConfig_(reader, event); });
    return std::apply(
        [&](const auto &...call) {
          Json answer;
          if (!((event.op() == call.op && (answer = make(call, event), true)) || ...))
            event.unknownOp({call.op..., "config_case"});
          return answer;
        },
        calls_);
  }

private:
  template <typename Call> Json make(const Call &call, EventReader &event) {
    typename Call::Arguments arguments;
    call.visit(event, arguments);
    Json made;
    std::apply([&](auto &...given) { (void)call.answered(policy_, [&](Json answer) { made = std::move(answer); }, given...); },
               arguments);
    return made;
  }

  Policy policy_;
  Calls calls_;
  Json config_;
  ReadConfig readConfig_;
};

template <typename Policy, typename Calls>
std::unique_ptr<Replayer> replay(const ReplayLog &log, Policy policy, Calls calls, ReadConfig readConfig = {}) {
  return std::make_unique<PolicyReplayer<Policy, Calls>>(log, std::move(policy), std::move(calls),
                                                         std::move(readConfig));
}

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_REPLAY_REPLAYER_H
